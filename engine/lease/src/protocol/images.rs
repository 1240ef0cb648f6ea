//! Messages about images: sealed memory that a broker holds under a name.

use std::fmt;
use std::str::FromStr;

use rustix::io::Errno;

use super::{FIGURES, Malformed, Rest, put, size};

/// The highest length of a name in bytes.
pub const NAME: usize = 40;

/// The highest number of descriptors that come with a load: a raw memory file or a full delta, and
/// deltas.
pub const MOST_SOURCES: usize = 32;

/// The highest number of ranges of a raw memory file in one load.
pub const MOST_RANGES: usize = 64;

/// The highest number of rows in a list of images.
pub const MOST_IMAGES: usize = 256;

/// Bytes that stand for one image behind the head of a list.
pub(super) const IMAGE_ROW: usize = NAME + 7 * 8;

/// The length in bytes of a load between its head and its ranges.
const STATE: usize = 16;
const RANGE: usize = 3 * 8;

/// Bytes of a load at most.
pub(super) const LONGEST_LOAD: usize = super::MESSAGE + STATE + MOST_RANGES * RANGE;

/// The name of an image: letters, digits, `.`, `_` and `-`. The first character is a letter or a digit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ImageName([u8; NAME]);

/// The error of a text that is not the name of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the name of an image has 1 to {NAME} letters, digits, `.`, `_` and `-`, and begins with a letter or a digit"
)]
pub struct NoImageName;

impl ImageName {
    /// Returns the name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let len = self.0.iter().position(|&byte| byte == 0).unwrap_or(NAME);
        // A name is ASCII.
        std::str::from_utf8(&self.0[..len]).unwrap_or_default()
    }

    fn of(bytes: [u8; NAME]) -> Option<Self> {
        let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(NAME);
        let (name, rest) = bytes.split_at(len);
        let is_name = std::str::from_utf8(name).is_ok_and(|name| name.parse::<Self>().is_ok());
        (is_name && rest.iter().all(|&byte| byte == 0)).then_some(Self(bytes))
    }
}

impl FromStr for ImageName {
    type Err = NoImageName;

    fn from_str(text: &str) -> Result<Self, NoImageName> {
        let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let first = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if !first || text.len() > NAME || !text.bytes().all(is_of_name) {
            return Err(NoImageName);
        }
        let mut bytes = [0; NAME];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Ok(Self(bytes))
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// A request to load an image. Descriptors of the sources come with the message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// The name that the image gets.
    pub name: ImageName,
    /// The highest number of bytes to populate for the image. Until the image is loaded, they count
    /// against the user's quota.
    pub most: u64,
    /// True if all users may use the image.
    pub is_for_all: bool,
    /// True if the broker reports the progress of the load by
    /// [`Answer::Loading`](super::Answer::Loading).
    pub tells_progress: bool,
    /// The state of the raw memory file. `None` if the first delta may begin with any state of the
    /// same length.
    pub state: Option<[u8; STATE]>,
    /// The parts of the raw memory file to load. Empty for the whole file.
    pub ranges: Vec<ImageRange>,
}

/// A part of a raw memory file, and its place in the image. All numbers are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageRange {
    /// The offset of the part in the file.
    pub from: u64,
    /// The length of the part.
    pub len: u64,
    /// The offset of the part in the image.
    pub to: u64,
}

/// The size of an image that a broker holds. All numbers are in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ImageFacts {
    /// The length of the image.
    pub bytes: u64,
    /// Bytes that are populated.
    pub present: u64,
    /// Bytes that were on huge pages when the image was loaded.
    pub huge: u64,
}

/// A row in a list of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageRow {
    /// The name of the image.
    pub name: ImageName,
    /// The size of the image.
    pub facts: ImageFacts,
    /// The device of the image's file, as in `stat`.
    pub device: u64,
    /// The inode number of the image's file.
    pub inode: u64,
    /// The user that loaded the image.
    pub uid: u32,
    /// True if all users may use the image.
    pub is_for_all: bool,
    /// True if the image was dropped, but processes still use it.
    pub is_dropped: bool,
    /// The time since the load, in milliseconds.
    pub age_ms: u64,
}

/// The reason why an image was not loaded. Sources are numbered from 0. All sizes are in bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotLoaded {
    /// The sources are empty.
    #[error("there is nothing to load: no source, or an empty one")]
    Nothing,
    /// A source is not a regular file.
    #[error("source {nth} is no regular file")]
    NoFile {
        /// The number of the source.
        nth: u64,
    },
    /// A source was changed while it was read.
    #[error("source {nth} was changed while it was read: it had {had} bytes, and has {has}")]
    Changed {
        /// The number of the source.
        nth: u64,
        /// Bytes of the source before the change.
        had: u64,
        /// Bytes of the source now.
        has: u64,
    },
    /// A source could not be read.
    #[error("source {nth} cannot be read at byte {at}: {}", system_error(*errno))]
    Read {
        /// The number of the source.
        nth: u64,
        /// The offset in the source.
        at: u64,
        /// The number of the system error, or 0.
        errno: u64,
    },
    /// A range is empty, extends beyond the file, or overlaps another range.
    #[error(
        "a range of {len} bytes from byte {from} of the file to byte {to} of the image is empty, ends behind the file, \
         or overlaps another one"
    )]
    Range {
        /// The offset of the range in the file.
        from: u64,
        /// The length of the range.
        len: u64,
        /// The offset of the range in the image.
        to: u64,
    },
    /// A source after the first source is not a delta, or a delta is damaged.
    #[error("source {nth} is no delta, or a damaged one: `hugekit delta info` says where")]
    Delta {
        /// The number of the source.
        nth: u64,
    },
    /// A delta does not begin with the state of the memory.
    #[error("source {nth} is a delta of another state than the one before it")]
    OtherState {
        /// The number of the source.
        nth: u64,
    },
    /// A delta has states of another length.
    #[error("source {nth} is a delta of states of {delta} bytes, and the image has {image}")]
    OtherLength {
        /// The number of the source.
        nth: u64,
        /// Bytes of the delta's states.
        delta: u64,
        /// Bytes of the image.
        image: u64,
    },
    /// The sources need more memory than the client permitted.
    #[error("the image needs more than the {} that were asked for", size(most))]
    TooLarge {
        /// The limit that the client set.
        most: u64,
    },
    /// Memory was short.
    #[error("memory is short")]
    NoMemory,
    /// The source is a VM that QEMU has saved with its memory, in QEMU's own format.
    #[error("source {nth} is a saved VM of QEMU, and no raw memory file")]
    SavedVm {
        /// The number of the source.
        nth: u64,
    },
    /// The kernel refused another system call.
    #[error("the kernel refused: {}", system_error(*errno))]
    Kernel {
        /// The number of the system error, or 0.
        errno: u64,
    },
}

/// The remedy for a saved VM of QEMU.
pub const SAVE_MEMORY: &str = "give QEMU's memory a file with share=on, and save the rest with \
                               x-ignore-shared: see Clones of a template in docs/qemu.md";

fn system_error(errno: u64) -> String {
    match i32::try_from(errno) {
        Ok(0) | Err(_) => "an unknown error".to_owned(),
        Ok(errno) => std::io::Error::from_raw_os_error(errno).to_string(),
    }
}

impl NotLoaded {
    /// Returns a step by which the client can prevent the failure; `None` if no step is known.
    #[must_use]
    pub fn remedy(&self) -> Option<&'static str> {
        Some(match self {
            Self::Nothing | Self::NoFile { .. } => {
                "name a memory file, or a chain of deltas that begins with a full one"
            }
            Self::Changed { .. } | Self::TooLarge { .. } => {
                "load it when the program that writes it is done, or load a copy"
            }
            Self::OtherState { .. } => {
                "name all deltas in their order, and of a raw memory file no other --state than its own"
            }
            Self::SavedVm { .. } => SAVE_MEMORY,
            Self::NoMemory => "free memory, or raise the limit of the charged control group",
            Self::Kernel { errno } if *errno == Errno::FBIG.raw_os_error() as u64 => {
                "start the broker with `ulimit -f unlimited` (LimitFSIZE=infinity of its unit): memory in files counts"
            }
            _ => return None,
        })
    }

    /// Returns the number of the source that caused the failure, if a source did.
    #[must_use]
    pub fn source(&self) -> Option<u64> {
        match *self {
            Self::NoFile { nth }
            | Self::SavedVm { nth }
            | Self::Changed { nth, .. }
            | Self::Read { nth, .. }
            | Self::Delta { nth }
            | Self::OtherState { nth }
            | Self::OtherLength { nth, .. } => Some(nth),
            _ => None,
        }
    }

    /// Encodes the reason as the figures of a refusal.
    pub(super) fn figures(self) -> [u64; FIGURES] {
        match self {
            Self::Nothing => [1, 0, 0, 0],
            Self::NoFile { nth } => [2, nth, 0, 0],
            Self::Changed { nth, had, has } => [3, nth, had, has],
            Self::Read { nth, at, errno } => [4, nth, at, errno],
            Self::Range { from, len, to } => [5, from, len, to],
            Self::Delta { nth } => [6, nth, 0, 0],
            Self::OtherState { nth } => [7, nth, 0, 0],
            Self::OtherLength { nth, delta, image } => [8, nth, delta, image],
            Self::TooLarge { most } => [9, most, 0, 0],
            Self::NoMemory => [10, 0, 0, 0],
            Self::Kernel { errno } => [11, errno, 0, 0],
            Self::SavedVm { nth } => [12, nth, 0, 0],
        }
    }

    pub(super) fn of_figures([which, a, b, c]: [u64; FIGURES]) -> Option<Self> {
        Some(match which {
            1 => Self::Nothing,
            2 => Self::NoFile { nth: a },
            3 => Self::Changed { nth: a, had: b, has: c },
            4 => Self::Read { nth: a, at: b, errno: c },
            5 => Self::Range { from: a, len: b, to: c },
            6 => Self::Delta { nth: a },
            7 => Self::OtherState { nth: a },
            8 => Self::OtherLength { nth: a, delta: b, image: c },
            9 => Self::TooLarge { most: a },
            10 => Self::NoMemory,
            11 => Self::Kernel { errno: a },
            12 => Self::SavedVm { nth: a },
            _ => return None,
        })
    }
}

impl Rest<'_> {
    pub(super) fn name(&mut self) -> Result<ImageName, Malformed> {
        let bytes = self.bytes::<NAME>()?;
        ImageName::of(bytes).ok_or(Malformed::Meaning)
    }
}

pub(super) fn put_name(message: &mut Vec<u8>, name: ImageName) {
    message.extend_from_slice(&name.0);
}

const FOR_ALL: u64 = 1;
const DROPPED: u64 = 2;
const TELLS_PROGRESS: u64 = 2;

impl Load {
    pub(super) fn flags(&self) -> u64 {
        let for_all = if self.is_for_all { FOR_ALL } else { 0 };
        for_all | if self.tells_progress { TELLS_PROGRESS } else { 0 }
    }

    pub(super) fn put_body(&self, message: &mut Vec<u8>) {
        message.extend_from_slice(&self.state.unwrap_or_default());
        for range in self.ranges.iter().take(MOST_RANGES) {
            [range.from, range.len, range.to].into_iter().for_each(|number| put(message, number));
        }
    }

    pub(super) fn of(
        most: u64,
        flags: u64,
        name: ImageName,
        mut rest: Rest<'_>,
    ) -> Result<Self, Malformed> {
        let state = Some(rest.bytes()?).filter(|state| *state != [0; STATE]);
        let mut ranges = Vec::new();
        while !rest.is_empty() {
            let [from, len, to] = rest.numbers()?;
            ranges.push(ImageRange { from, len, to });
        }
        if flags > FOR_ALL | TELLS_PROGRESS || ranges.len() > MOST_RANGES {
            return Err(Malformed::Meaning);
        }
        let (is_for_all, tells_progress) = (flags & FOR_ALL != 0, flags & TELLS_PROGRESS != 0);
        Ok(Self { name, most, is_for_all, tells_progress, state, ranges })
    }
}

impl ImageRow {
    pub(super) fn put(&self, message: &mut Vec<u8>) {
        put_name(message, self.name);
        let for_all = if self.is_for_all { FOR_ALL } else { 0 };
        let flags = for_all | if self.is_dropped { DROPPED } else { 0 };
        let ImageFacts { bytes, present, huge } = self.facts;
        let whose = u64::from(self.uid) | flags << 32;
        [bytes, present, huge, self.device, self.inode, whose, self.age_ms]
            .into_iter()
            .for_each(|number| put(message, number));
    }

    pub(super) fn of(rest: &mut Rest<'_>) -> Result<Self, Malformed> {
        let name = rest.name()?;
        let [bytes, present, huge, device, inode, whose, age_ms] = rest.numbers()?;
        let flags = whose >> 32;
        if flags > FOR_ALL | DROPPED {
            return Err(Malformed::Meaning);
        }
        Ok(Self {
            name,
            facts: ImageFacts { bytes, present, huge },
            device,
            inode,
            uid: whose as u32,
            is_for_all: flags & FOR_ALL != 0,
            is_dropped: flags & DROPPED != 0,
            age_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_plain_words() {
        for good in ["web", "0", "a.b_c-d", &"x".repeat(NAME)] {
            assert_eq!(good.parse::<ImageName>().unwrap().to_string(), good);
        }
        for bad in ["", ".", "..", "-x", "_x", "a/b", "a b", "a\n", "ä", "a\0", "{}"] {
            assert!(bad.parse::<ImageName>().is_err(), "{bad:?}");
        }
        assert!("x".repeat(NAME + 1).parse::<ImageName>().is_err());
        let mut bytes = [0; NAME];
        bytes[..3].copy_from_slice(b"web");
        assert!(ImageName::of(bytes).is_some());
        bytes[9] = b'x';
        assert_eq!(ImageName::of(bytes), None, "bytes behind the end mean nothing");
        assert_eq!(ImageName::of([0xff; NAME]), None);
    }
}
