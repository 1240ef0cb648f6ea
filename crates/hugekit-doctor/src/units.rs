//! Sizes as people read them.

const UNITS: [(u64, &str); 4] =
    [(1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];

/// `2 MiB`, `7.6 GiB`, `0 bytes`: one decimal unless the number is whole.
pub(crate) fn bytes(bytes: u64) -> String {
    let Some((unit, name)) = UNITS.iter().find(|(unit, _)| bytes >= *unit) else {
        return format!("{bytes} bytes");
    };
    match bytes % unit {
        0 => format!("{} {name}", bytes / unit),
        _ => format!("{:.1} {name}", bytes as f64 / *unit as f64),
    }
}

/// `1 page`, `2 pages`.
pub(crate) fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_have_no_decimal() {
        assert_eq!(bytes(0), "0 bytes");
        assert_eq!(bytes(32 << 10), "32 KiB");
        assert_eq!(bytes(2 << 20), "2 MiB");
        assert_eq!(bytes(3 << 29), "1.5 GiB");
        assert_eq!(bytes(6 << 40), "6 TiB");
    }

    #[test]
    fn one_is_singular() {
        assert_eq!((count(1, "CPU"), count(2, "CPU")), ("1 CPU".into(), "2 CPUs".into()));
    }
}
