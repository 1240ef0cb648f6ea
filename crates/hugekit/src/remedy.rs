//! Errors as people read them: `Debug` is the message and the remedy, because that is what Rust
//! prints for a program that ends with `fn main() -> Result<(), E>`, and for `unwrap`.

use std::fmt::{Debug, Display, Formatter, Result};

use crate::cpu_set::ParseCpuSetError;
use crate::engine::HintError;
use crate::lease::protocol::{Malformed, Refusal};
use crate::lease::{LeaseError, Unfit};
use crate::machine::hugepages::Shortage;
use crate::parallel::{JobError, NodeMapError};
use crate::pool::FaultError;
use crate::profile::AlreadyInstalled;
use crate::region::ForkError;
use crate::snapshot::Unsuitable;
use crate::{
    ClearError, CopyError, HeapShortage, PoolError, PopulateError, RegionError, SnapshotError,
    machine,
};

/// Gives each error its `Debug`; those that know a remedy name the function.
macro_rules! print_well {
    ($($error:ty $(=> $remedy:ident)?),+ $(,)?) => {
        $(impl Debug for $error {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                print(f, self, None$(.or(self.$remedy()))?)
            }
        })+
    };
}

print_well! {
    PoolError => remedy,
    FaultError => remedy,
    ForkError => remedy,
    SnapshotError => remedy,
    LeaseError => remedy,
    Refusal => remedy,
    Malformed,
    Unfit,
    RegionError,
    ClearError,
    CopyError,
    PopulateError,
    HintError,
    NodeMapError,
    Unsuitable,
    AlreadyInstalled,
    ParseCpuSetError,
    machine::Error,
}

impl Debug for HeapShortage {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        print(f, self, Some(self.remedy()))
    }
}

impl Debug for Shortage {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        print(f, self, Some(self.remedy()))
    }
}

impl<E: Display> Debug for JobError<E> {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        print(f, self, None)
    }
}

fn print(f: &mut Formatter<'_>, error: &dyn Display, remedy: Option<String>) -> Result {
    match remedy {
        Some(remedy) => write!(f, "{error}\nremedy: {remedy}"),
        None => write!(f, "{error}"),
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::io;
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::parallel::Done;
    use crate::pool::{Backing, Fallback};

    fn one_of_each() -> Vec<Box<dyn Error>> {
        let file = || PathBuf::from("/proc/meminfo");
        let gone = || io::Error::from_raw_os_error(libc::ENOENT);
        let job = JobError::Chunk {
            range: 0..1,
            done: Done::nothing(1),
            error: PopulateError::NotWritable,
        };
        vec![
            Box::new(PoolError::NoBytes),
            Box::new(FaultError::NoThreads),
            Box::new(ForkError::Gigantic),
            Box::new(SnapshotError::Unserved),
            Box::new(LeaseError::HungUp),
            Box::new(Refusal::Ending),
            Box::new(Malformed::Magic),
            Box::new(Unfit::NotSealed),
            Box::new(RegionError::Populate(job.clone())),
            Box::new(ClearError::Hint(HintError::TargetOutside { target: 2, len: 1 })),
            Box::new(CopyError::LengthsDiffer { dst: 1, src: 2 }),
            Box::new(PopulateError::OutOfMemory),
            Box::new(HintError::TargetOutside { target: 2, len: 1 }),
            Box::new(NodeMapError::Empty),
            Box::new(Unsuitable::Shared),
            Box::new(AlreadyInstalled),
            Box::new(ParseCpuSetError),
            Box::new(machine::Error::Unreadable { path: file(), source: gone() }),
            Box::new(job),
        ]
    }

    fn shortage() -> Shortage {
        Shortage { page_size: 2 << 20, wanted: 2, total: 1, free: 1, promised: 0, spare: None }
    }

    #[test]
    fn error_without_a_remedy_prints_its_message() {
        for error in one_of_each() {
            assert_eq!(format!("{error:?}"), error.to_string());
        }
    }

    #[test]
    fn error_with_a_remedy_prints_it_below() {
        let fault = || FaultError::Blocked;
        let fallbacks =
            || vec![Fallback { backing: Backing::Base, reason: PoolError::Fault(fault()) }];
        let refusal = Refusal::Busy { most: 2, most_of_user: 1 };
        let errors: [(Box<dyn Error>, _); 9] = [
            (Box::new(HeapShortage), Some(HeapShortage.remedy())),
            (Box::new(PoolError::Heap(HeapShortage)), Some(HeapShortage.remedy())),
            (Box::new(shortage()), Some(shortage().remedy())),
            (Box::new(fault()), fault().remedy()),
            (Box::new(PoolError::NoBacking { fallbacks: fallbacks() }), fault().remedy()),
            (Box::new(ForkError::Fault(fault())), fault().remedy()),
            (Box::new(SnapshotError::Fault(fault())), fault().remedy()),
            (Box::new(refusal), refusal.remedy()),
            (Box::new(LeaseError::Refused(refusal)), refusal.remedy()),
        ];
        for (error, remedy) in errors {
            let remedy = remedy.expect("it can be unblocked");
            assert_eq!(format!("{error:?}"), format!("{error}\nremedy: {remedy}"));
        }
    }

    /// An error that is new here has its `Debug` from this file, and its row in the test above.
    #[test]
    fn error_of_any_kind_does_not_derive_debug() {
        let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("src")];
        let mut errors = 0;
        while let Some(folder) = folders.pop() {
            for entry in folder.read_dir().unwrap().flatten() {
                let path = entry.path();
                if path.is_dir() {
                    folders.push(path);
                    continue;
                }
                let text = std::fs::read_to_string(&path).unwrap();
                let derives =
                    |line: &&str| line.starts_with("#[derive(") && line.contains("::Error");
                for line in text.lines().filter(derives) {
                    errors += 1;
                    assert!(!line.contains("Debug"), "{}: {line}", path.display());
                }
            }
        }
        // Shortages always have a remedy.
        assert_eq!(errors, one_of_each().len() + 2);
    }
}
