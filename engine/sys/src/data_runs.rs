//! Runs of data: the bytes of a file outside of holes.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// Returns the first run of data within `range`; `None` if all of the range is a hole or lies after
/// the end of the file. If the file system does not report holes, everything is data. The call
/// moves the position of the file.
///
/// The kernel may walk to the end of the run, which lasts milliseconds for each GiB on tmpfs. So
/// call this once for a run, not for each piece of it.
///
/// # Errors
/// The errors of lseek(2).
pub fn next(file: impl AsFd, range: &Range<u64>) -> io::Result<Option<Range<u64>>> {
    if range.is_empty() {
        return Ok(None);
    }
    let start = match seek(&file, SeekFrom::Data(range.start)) {
        Ok(start) => start.max(range.start),
        Err(Errno::NXIO) => return Ok(None),
        Err(errno) if tells_no_holes(errno) => return Ok(Some(range.clone())),
        Err(errno) => return Err(errno.into()),
    };
    if start >= range.end {
        return Ok(None);
    }
    let end = match seek(&file, SeekFrom::Hole(start)) {
        // A hole begins at once if the file was changed meanwhile: one byte is progress.
        Ok(end) => end.clamp(start + 1, range.end),
        Err(errno) if errno == Errno::NXIO || tells_no_holes(errno) => range.end,
        Err(errno) => return Err(errno.into()),
    };
    Ok(Some(start..end))
}

/// Returns all runs of data within `range`, ascending. After `most` runs the rest of the range counts as data.
///
/// # Errors
/// The errors of lseek(2).
pub fn all(file: impl AsFd, range: Range<u64>, most: usize) -> io::Result<Vec<Range<u64>>> {
    let (mut found, mut left) = (Vec::new(), range);
    while let Some(run) = next(&file, &left)? {
        left.start = run.end;
        found.push(run);
        if found.len() == most {
            let last = found.last_mut();
            last.expect("one was just added").end = left.end;
            break;
        }
    }
    Ok(found)
}

fn tells_no_holes(errno: Errno) -> bool {
    matches!(errno, Errno::INVAL | Errno::NOTSUP | Errno::NOSYS)
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use super::*;

    /// Bytes of a unit. A unit is not smaller than the blocks of a file system.
    const UNIT: u64 = 2 << 20;

    /// Makes a file of ten units, of which units 0, 4 and 8 are data.
    fn file() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(10 * UNIT).unwrap();
        for index in [0, 4, 8] {
            file.write_all_at(&vec![1; UNIT as usize], index * UNIT).unwrap();
        }
        file
    }

    #[test]
    fn runs_lie_within_the_range() {
        let file = file();
        let runs = all(&file, 0..10 * UNIT, 100).unwrap();
        assert_eq!(runs, [0..UNIT, 4 * UNIT..5 * UNIT, 8 * UNIT..9 * UNIT]);
        let within = all(&file, 4 * UNIT + 10..8 * UNIT + 20, 100).unwrap();
        assert_eq!(within, [4 * UNIT + 10..5 * UNIT, 8 * UNIT..8 * UNIT + 20]);
        assert_eq!(next(&file, &(UNIT..4 * UNIT)).unwrap(), None);
        assert_eq!(next(&file, &(20 * UNIT..30 * UNIT)).unwrap(), None);
        assert_eq!(next(&file, &(5..5)).unwrap(), None);
    }

    #[test]
    fn behind_the_last_run_that_is_kept_all_is_data() {
        let two = all(file(), 0..10 * UNIT, 2).unwrap();
        assert_eq!(two, [0..UNIT, 4 * UNIT..10 * UNIT]);
    }

    #[test]
    fn what_cannot_be_sought_is_an_error() {
        let (pipe, _writer) = rustix::pipe::pipe().unwrap();
        assert!(next(&pipe, &(0..10)).is_err());
    }
}
