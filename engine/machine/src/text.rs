//! The two formats of text in `/proc`.

/// Returns the rest of the line that starts with `key`, as in `Seccomp: 2`.
pub(super) fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
}

/// Returns the number of bytes from a line like `MemTotal: 512 kB`; in a node's `meminfo` two words
/// stand before the key.
pub(super) fn bytes(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace().skip_while(|word| *word != key);
        words.nth(1)?.parse::<u64>().ok()?.checked_mul(1024)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_reads_both_kinds_of_meminfo() {
        assert_eq!(bytes("MemTotal:     4 kB\nMemFree: 2 kB\n", "MemFree:"), Some(2048));
        assert_eq!(bytes("Node 3 MemTotal:     4 kB\n", "MemTotal:"), Some(4096));
        assert_eq!(bytes("MemTotal: lots kB\n", "MemTotal:"), None);
        assert_eq!(bytes("MemTotal: 18446744073709551615 kB\n", "MemTotal:"), None);
        assert_eq!(bytes("", "MemTotal:"), None);
    }

    #[test]
    fn field_takes_the_rest_of_the_line() {
        assert_eq!(field("NoNewPrivs:\t0\nSeccomp:\t2\n", "Seccomp:"), Some("2"));
        assert_eq!(field("NoNewPrivs:\t0\n", "Seccomp:"), None);
    }
}
