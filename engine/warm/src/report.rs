//! The result of a warm-up.

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

use hugekit_machine::size::Size;
use hugekit_sys::Remedy;
use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use crate::users::FileUsers;

/// The page cache of a file after a check or a warm-up. A unit is an aligned 2 MiB of the file. The
/// bytes after the last whole unit are not a unit: they are read, and stay on smaller pages.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WarmReport {
    /// Length of the file in bytes.
    pub bytes: u64,
    /// Units that were huge before the call.
    pub already_huge: u64,
    /// Units that the call made huge.
    pub made_huge: u64,
    /// Units without data, which were skipped.
    pub holes: u64,
    /// The units that are not huge, and the reason. `None` if all units are huge.
    pub left: Option<LeftSmall>,
    /// The duration of the call.
    pub time: Duration,
}

/// The units that are not huge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LeftSmall {
    /// The number of units.
    pub units: NonZeroU64,
    /// The reason. If there are several reasons, the reason of most units.
    pub why: WhySmall,
}

/// The reason why units are not huge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
#[non_exhaustive]
pub enum WhySmall {
    /// The call was only a check.
    NotMade {
        /// Units that are in memory, completely or partly on smaller pages.
        on_small_pages: u64,
        /// Units that are not in memory.
        not_in_memory: u64,
    },
    /// The file system makes no huge pages in the page cache.
    FileSystem {
        /// The name of the file system, such as `btrfs`.
        name: String,
    },
    /// Processes have mapped the file on smaller pages. Pages cannot be dropped while they are
    /// mapped.
    Mapped(FileUsers),
    /// The pages could not be dropped or collapsed, because they are being read or written, or
    /// because a process that this user may not inspect has mapped them.
    Busy,
    /// The kernel found no free blocks of 2 MiB.
    Fragmented {
        /// Bytes that are free in blocks of 2 MiB and more.
        free: u64,
    },
}

impl WarmReport {
    /// Returns the number of units of the file, without skipped holes.
    #[must_use]
    pub fn units(&self) -> u64 {
        self.huge() + self.left.as_ref().map_or(0, |left| left.units.get())
    }

    /// Returns the number of huge units.
    #[must_use]
    pub fn huge(&self) -> u64 {
        self.already_huge + self.made_huge
    }

    /// Returns true if all units are huge.
    #[must_use]
    pub fn is_warm(&self) -> bool {
        self.left.is_none()
    }
}

impl fmt::Display for WarmReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} units huge", self.huge(), self.units())?;
        match self.holes {
            0 => {}
            1 => f.write_str(", 1 hole skipped")?,
            holes => write!(f, ", {holes} holes skipped")?,
        }
        write!(f, ", {:.2?}", self.time)?;
        match &self.left {
            Some(LeftSmall { why, .. }) => write!(f, ": {why}{}", Remedy(Some(why.remedy()))),
            None => Ok(()),
        }
    }
}

impl WhySmall {
    /// Returns a step by which a user can make the remaining units huge.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::NotMade { .. } => "warm it: hugekit warm FILE".to_owned(),
            Self::FileSystem { name } if name == "tmpfs" => {
                "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled, or load an image: \
                 hugekit image load"
                    .to_owned()
            }
            Self::FileSystem { .. } => {
                "copy it to XFS, or to ext4 with Linux 6.16 or later, or load an image: hugekit image \
                 load"
                    .to_owned()
            }
            Self::Mapped(_) => {
                "warm it before they start, or warm a copy and have them map that".to_owned()
            }
            Self::Busy => "warm it again when the program is done, or as root".to_owned(),
            Self::Fragmented { .. } => {
                "warm it again, or after: echo 1 > /proc/sys/vm/compact_memory".to_owned()
            }
        }
    }
}

impl fmt::Display for WhySmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotMade { on_small_pages, not_in_memory } => {
                write!(f, "{on_small_pages} on smaller pages, {not_in_memory} not in memory")
            }
            Self::FileSystem { name } => {
                write!(f, "{name} makes no huge pages of its cache on this kernel")
            }
            Self::Mapped(users) => write!(f, "mapped on smaller pages by {users}"),
            Self::Busy => f.write_str(
                "its pages are in use: they are being read or written, or a process has mapped them \
                 that this user may not look at",
            ),
            Self::Fragmented { free } => {
                let free = Size(usize::try_from(*free).unwrap_or(usize::MAX)).rounded();
                write!(f, "memory is fragmented: {free} free in blocks of 2 MiB")
            }
        }
    }
}

/// With the sums, which programs in other languages read.
impl Serialize for WarmReport {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_struct("WarmReport", 8)?;
        fields.serialize_field("bytes", &self.bytes)?;
        fields.serialize_field("units", &self.units())?;
        fields.serialize_field("huge", &self.huge())?;
        fields.serialize_field("already_huge", &self.already_huge)?;
        fields.serialize_field("made_huge", &self.made_huge)?;
        fields.serialize_field("holes", &self.holes)?;
        fields.serialize_field("left", &self.left)?;
        fields.serialize_field("seconds", &self.time.as_secs_f64())?;
        fields.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(left: Option<WhySmall>) -> WarmReport {
        let units = NonZeroU64::MIN;
        let left = left.map(|why| LeftSmall { units, why });
        let time = Duration::from_millis(1500);
        WarmReport { bytes: 8 << 20, already_huge: 1, made_huge: 2, holes: 1, left, time }
    }

    #[test]
    fn line_says_how_many_units_are_huge_and_why_not_all() {
        assert_eq!(report(None).to_string(), "3 of 3 units huge, 1 hole skipped, 1.50s");
        let users = FileUsers { pids: vec![7, 12], hidden: 1 };
        let mapped = report(Some(WhySmall::Mapped(users)));
        assert_eq!(
            mapped.to_string(),
            "3 of 4 units huge, 1 hole skipped, 1.50s: mapped on smaller pages by processes 7 and \
             12 (remedy: warm it before they start, or warm a copy and have them map that)"
        );
        assert!(!mapped.is_warm() && report(None).is_warm());
    }

    #[test]
    fn programs_get_the_reason_by_name() {
        let why = WhySmall::Fragmented { free: 5 };
        let json = serde_json::to_value(report(Some(why))).unwrap();
        assert_eq!(json["seconds"], 1.5);
        assert_eq!((&json["units"], &json["huge"]), (&4.into(), &3.into()));
        assert_eq!(json["left"]["why"]["reason"], "fragmented");
        let users = FileUsers { pids: vec![7], hidden: 0 };
        let json = serde_json::to_value(WhySmall::Mapped(users)).unwrap();
        assert_eq!((&json["reason"], &json["pids"][0]), (&"mapped".into(), &7.into()));
    }
}
