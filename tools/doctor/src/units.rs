//! Sizes as people read them.

use hugekit_machine::size::Size;

/// `2 MiB`, `7.6 GiB`, `0 bytes`.
pub(crate) fn bytes(bytes: u64) -> String {
    Size::from(bytes).rounded()
}

/// `1 page`, `2 pages`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular() {
        assert_eq!((count(1, "CPU"), count(2, "CPU")), ("1 CPU".into(), "2 CPUs".into()));
    }
}
