//! Sizes as people write them: `4KiB`, `2MiB`, `1GiB`.

use std::fmt;
use std::str::FromStr;

/// Bytes per KiB, MiB, GiB.
pub const KIB: usize = 1 << 10;
/// Bytes per MiB.
pub const MIB: usize = 1 << 20;
/// Bytes per GiB.
pub const GIB: usize = 1 << 30;

/// A number of bytes that prints as `4KiB`, `2MiB`, `1.5GiB`, and parses from the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub usize);

/// A size that could not be understood.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a size: write bytes or a number with KiB, MiB, GiB or TiB, such as 512MiB")]
pub struct ParseSizeError(String);

const UNITS: [(&str, usize); 4] = [("TiB", 1 << 40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)];

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match UNITS.into_iter().find(|&(_, bytes)| self.0 >= bytes) {
            None => format!("{}B", self.0),
            Some((unit, bytes)) if self.0.is_multiple_of(bytes) => {
                format!("{}{unit}", self.0 / bytes)
            }
            Some((unit, bytes)) => format!("{:.1}{unit}", self.0 as f64 / bytes as f64),
        };
        f.pad(&text)
    }
}

impl FromStr for Size {
    type Err = ParseSizeError;

    /// Takes `KiB`, `kib`, `K` and `k` alike, always as powers of 1024; a bare number is bytes.
    fn from_str(text: &str) -> Result<Self, ParseSizeError> {
        let error = || ParseSizeError(text.to_owned());
        let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let factor = factor_of(&text[digits.len()..]).ok_or_else(error)?;
        let number: f64 = digits.trim().parse().map_err(|_| error())?;
        let bytes = number * factor as f64;
        if bytes.is_finite() && (0.0..=isize::MAX as f64).contains(&bytes) {
            Ok(Self(bytes as usize))
        } else {
            Err(error())
        }
    }
}

fn factor_of(unit: &str) -> Option<usize> {
    if unit.is_empty() || unit.eq_ignore_ascii_case("b") {
        return Some(1);
    }
    let named = |name: &str| {
        unit.eq_ignore_ascii_case(name)
            || unit.eq_ignore_ascii_case(&name[..1])
            || unit.eq_ignore_ascii_case(&name.replace('i', ""))
    };
    UNITS.into_iter().find(|&(name, _)| named(name)).map(|(_, bytes)| bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_the_largest_unit_that_fits() {
        let print = |bytes| Size(bytes).to_string();
        assert_eq!(print(0), "0B");
        assert_eq!(print(4096), "4KiB");
        assert_eq!(print(2 * MIB), "2MiB");
        assert_eq!(print(3 * GIB / 2), "1.5GiB");
    }

    #[test]
    fn parses_what_people_write() {
        for text in ["2MiB", "2mib", "2M", "2m", "2MB", "2097152", "2097152B", "2 MiB"] {
            assert_eq!(text.parse(), Ok(Size(2 * MIB)), "{text}");
        }
        assert_eq!("1.5GiB".parse(), Ok(Size(3 * GIB / 2)));
    }

    #[test]
    fn refuses_what_is_no_size() {
        for text in ["", "MiB", "2XiB", "-1MiB", "1e400", "9999999TiB", "nan", "inf", "2 3"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
