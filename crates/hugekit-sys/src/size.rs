//! Sizes in messages.

use std::fmt;

/// Bytes in the largest unit that divides them. By hand, because crates that print sizes round them,
/// and an error is exact.
#[derive(Clone, Copy, Debug)]
pub struct Size(pub usize);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
        match units.into_iter().find(|(shift, _)| self.0 > 0 && self.0.trailing_zeros() >= *shift) {
            Some((shift, unit)) => write!(f, "{} {unit}", self.0 >> shift),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_with_sizes_is_exact() {
        let sizes =
            [0, 1, 4096, 3 << 20, 1 << 30, (1 << 30) + 1].map(|size| Size(size).to_string());
        assert_eq!(sizes, ["0 bytes", "1 bytes", "4 KiB", "3 MiB", "1 GiB", "1073741825 bytes"]);
    }
}
