//! Memory that this process may lock.

use hugekit_machine::{Error, Root};

use super::field;

/// A resource limit; `None` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResourceLimit {
    /// Active.
    pub(crate) soft: Option<u64>,
    /// The limit up to which the process may raise the soft one.
    pub(crate) hard: Option<u64>,
}

/// Returns the number of bytes of memory this process may lock (`RLIMIT_MEMLOCK`).
///
/// # Errors
/// `/proc/self/limits` cannot be read or understood.
pub(crate) fn locked_memory(root: &Root) -> Result<ResourceLimit, Error> {
    root.read_value("/proc/self/limits", "Max locked memory", |limits| {
        let mut words = field(limits, "Max locked memory")?.split_ascii_whitespace();
        Some(ResourceLimit { soft: limit(words.next()?)?, hard: limit(words.next()?)? })
    })
}

/// The outer option is understanding, the inner one the limit.
#[allow(clippy::option_option)]
fn limit(word: &str) -> Option<Option<u64>> {
    match word {
        "unlimited" => Some(None),
        number => number.parse().ok().map(Some),
    }
}

#[cfg(test)]
mod tests {
    use hugekit_invented_machines::Files;

    use super::*;

    #[test]
    fn locked_memory_may_be_unlimited() {
        let machine = Files::new().unwrap();
        let row = "Max locked memory         8388608              unlimited            bytes     ";
        machine.file("/proc/self/limits", row);
        let limit = locked_memory(&Root::at(machine.path())).unwrap();
        assert_eq!(limit, ResourceLimit { soft: Some(8 << 20), hard: None });
    }

    #[test]
    fn garbage_is_named() {
        let machine = Files::new().unwrap();
        machine.file("/proc/self/limits", "Max locked memory  lots");
        let error = locked_memory(&Root::at(machine.path())).unwrap_err().to_string();
        assert!(error.contains("Max locked memory"), "{error}");
    }
}
