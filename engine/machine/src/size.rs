//! Numbers of bytes, in a form for people.

use std::fmt;
use std::str::FromStr;

/// Bytes per KiB.
pub const KIB: usize = 1 << 10;
/// Bytes per MiB.
pub const MIB: usize = 1 << 20;
/// Bytes per GiB.
pub const GIB: usize = 1 << 30;

/// A number of bytes. It is parsed from `2MiB`, `2M` or `2097152`, and printed as `4KiB`, `2MiB`,
/// `1.5GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub usize);

/// A [`Size`] in the largest unit that divides it.
#[derive(Clone, Copy, Debug)]
pub struct Exact(usize);

/// The error of a text that is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is not a size: write bytes or a number with KiB, MiB, GiB or TiB, such as 512MiB")]
pub struct ParseSizeError(String);

const UNITS: [(&str, usize); 4] = [("TiB", 1 << 40), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)];

impl Size {
    /// Returns an exact form for error messages: `4 KiB`, `1073741825 bytes`.
    #[must_use]
    pub fn exact(self) -> Exact {
        Exact(self.0)
    }

    /// Returns a form for prose, to one decimal: `2 MiB`, `7.6 GiB`, `0 bytes`.
    #[must_use]
    pub fn rounded(self) -> String {
        match self.in_largest_unit() {
            (number, Some(unit)) => format!("{number} {unit}"),
            (number, None) => format!("{number} bytes"),
        }
    }

    /// Returns the number to one decimal, unless it is whole, and its unit; no unit for less than 1
    /// KiB.
    fn in_largest_unit(self) -> (String, Option<&'static str>) {
        match UNITS.into_iter().find(|&(_, bytes)| self.0 >= bytes) {
            None => (self.0.to_string(), None),
            Some((unit, bytes)) if self.0 % bytes == 0 => {
                ((self.0 / bytes).to_string(), Some(unit))
            }
            Some((unit, bytes)) => (format!("{:.1}", self.0 as f64 / bytes as f64), Some(unit)),
        }
    }
}

impl From<u64> for Size {
    /// Converts a number of bytes. A number beyond all addresses of a process becomes
    /// [`usize::MAX`].
    fn from(bytes: u64) -> Self {
        Self(usize::try_from(bytes).unwrap_or(usize::MAX))
    }
}

impl fmt::Display for Exact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let divides = |(_, unit): &(_, usize)| self.0 > 0 && self.0 % unit == 0;
        match UNITS.into_iter().find(divides) {
            Some((name, unit)) => write!(f, "{} {name}", self.0 / unit),
            None => write!(f, "{} bytes", self.0),
        }
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, unit) = self.in_largest_unit();
        let text = format!("{number}{}", unit.unwrap_or("B"));
        f.pad(&text)
    }
}

impl FromStr for Size {
    type Err = ParseSizeError;

    /// Parses a size. `KiB`, `kib`, `K` and `k` are equal, and always powers of 1024. A number
    /// without a unit is bytes.
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

/// Parses a [`Size`] as a number of bytes.
///
/// # Errors
/// [`ParseSizeError`] if the text is not a size.
pub fn parse_bytes(text: &str) -> Result<u64, ParseSizeError> {
    text.parse().map(|Size(bytes)| bytes as u64)
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
    fn error_messages_are_exact() {
        let sizes = [0, 1, 4096, 3 << 20, 1 << 30, (1 << 30) + 1];
        let sizes = sizes.map(|size| Size(size).exact().to_string());
        assert_eq!(sizes, ["0 bytes", "1 bytes", "4 KiB", "3 MiB", "1 GiB", "1073741825 bytes"]);
    }

    #[test]
    fn prose_has_one_decimal_unless_the_number_is_whole() {
        let sizes = [0, 32 << 10, 2 << 20, 3 << 29, 6 << 40].map(|size| Size(size).rounded());
        assert_eq!(sizes, ["0 bytes", "32 KiB", "2 MiB", "1.5 GiB", "6 TiB"]);
    }

    #[test]
    fn parses_what_people_write() {
        for text in ["2MiB", "2mib", "2M", "2m", "2MB", "2097152", "2097152B", "2 MiB"] {
            assert_eq!(text.parse(), Ok(Size(2 * MIB)), "{text}");
        }
        assert_eq!("1.5GiB".parse(), Ok(Size(3 * GIB / 2)));
        assert_eq!(parse_bytes("2MiB"), Ok(2 << 20));
    }

    #[test]
    fn refuses_what_is_no_size() {
        for text in ["", "MiB", "2XiB", "-1MiB", "1e400", "9999999TiB", "nan", "inf", "2 3"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }
}
