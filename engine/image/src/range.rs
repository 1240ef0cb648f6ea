//! Ranges of a memory file, and their places in the image.

use hugekit_lease::protocol::ImageRange;

use crate::error::ImageError;

/// The reason why a range is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Misfit {
    /// The range has no bytes.
    #[error("it has no bytes")]
    Empty,
    /// The range ends beyond the end of the file.
    #[error("the file has {file} bytes")]
    BeyondFile {
        /// Bytes of the file.
        file: u64,
    },
    /// The range would end beyond the highest possible offset of a file.
    #[error("no image is that long")]
    BeyondImage,
    /// Another range has bytes at the same offsets of the image.
    #[error("it overlaps the one of {len} bytes at {to}")]
    Overlap {
        /// Bytes of the other range.
        len: u64,
        /// The offset of the other range in the image.
        to: u64,
    },
}

/// All of a file.
pub(crate) fn whole(file: u64) -> ImageRange {
    ImageRange { from: 0, len: file, to: 0 }
}

fn end(range: &ImageRange) -> u64 {
    range.to + range.len
}

fn misfit(range: &ImageRange, file: u64) -> Option<Misfit> {
    let longest = i64::MAX as u64;
    match (range.from.checked_add(range.len), range.to.checked_add(range.len)) {
        _ if range.len == 0 => Some(Misfit::Empty),
        (Some(end), Some(to)) if end <= file && to <= longest => None,
        (Some(end), _) if end <= file => Some(Misfit::BeyondImage),
        _ => Some(Misfit::BeyondFile { file }),
    }
}

/// Checks ranges of a file of `file` bytes, and returns how long an image of them is.
pub(crate) fn length(ranges: &[ImageRange], file: u64) -> Result<u64, ImageError> {
    let refused = |range: &ImageRange, why| Err(ImageError::Range { range: *range, why });
    for range in ranges {
        if let Some(why) = misfit(range, file) {
            return refused(range, why);
        }
    }
    let mut sorted = ranges.to_vec();
    sorted.sort_unstable_by_key(|range| range.to);
    for pair in sorted.windows(2) {
        let [before, range] = pair else { continue };
        if end(before) > range.to {
            return refused(range, Misfit::Overlap { len: before.len, to: before.to });
        }
    }
    Ok(sorted.last().map_or(0, end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn why(ranges: &[(u64, u64, u64)], file: u64) -> Misfit {
        let ranges: Vec<_> =
            ranges.iter().map(|&(from, len, to)| ImageRange { from, len, to }).collect();
        match length(&ranges, file) {
            Err(ImageError::Range { why, .. }) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn ranges_that_make_no_sense_are_refused() {
        assert_eq!(why(&[(0, 0, 0)], 9), Misfit::Empty);
        assert_eq!(why(&[(1, 9, 0)], 9), Misfit::BeyondFile { file: 9 });
        assert_eq!(why(&[(u64::MAX, 9, 0)], 9), Misfit::BeyondFile { file: 9 });
        assert_eq!(why(&[(0, u64::MAX, 1)], 9), Misfit::BeyondFile { file: 9 });
        assert_eq!(why(&[(0, 9, u64::MAX)], 9), Misfit::BeyondImage);
        assert_eq!(why(&[(0, 9, i64::MAX as u64)], 9), Misfit::BeyondImage);
        assert_eq!(why(&[(0, 5, 4), (0, 5, 0)], 9), Misfit::Overlap { len: 5, to: 0 });
        assert_eq!(why(&[(0, 1, 0), (0, 1, 0)], 9), Misfit::Overlap { len: 1, to: 0 });
    }

    #[test]
    fn image_is_as_long_as_its_last_range_reaches() {
        let range = |from, len, to| ImageRange { from, len, to };
        assert_eq!(length(&[range(4, 5, 100), range(0, 4, 7)], 9).unwrap(), 105);
        assert_eq!(length(&[whole(9)], 9).unwrap(), 9);
    }
}
