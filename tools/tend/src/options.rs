//! The options of a tender. The command, Python and programs in Rust have their defaults from here. With the feature
//! `clap`, they are arguments of the command.

#[cfg(feature = "clap")]
use hugekit_machine::size::Size;
use serde::{Deserialize, Serialize};

/// The limits within which a tender works. Shares are numbers from 0 to 1; the command has them in percent.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(default, deny_unknown_fields)]
pub struct TendOptions {
    /// Collapse a 2 MiB range only if at least this share of it is populated. Holes are filled with
    /// zeroes.
    #[cfg_attr(feature = "clap", arg(
        long,
        value_name = "PERCENT",
        value_parser = arguments::share,
        default_value = arguments::percent(TendOptions::default().density)
    ))]
    pub density: f64,
    /// The most memory to fill holes with, as a share of the private memory of the process. Ranges
    /// with the fewest holes are filled first.
    #[cfg_attr(feature = "clap", arg(
        long,
        value_name = "PERCENT",
        value_parser = arguments::share_or_none,
        default_value = arguments::percent(TendOptions::default().growth)
    ))]
    pub growth: f64,
    /// The most CPU time to use, as a share of one CPU. While a process waits longer for CPUs because
    /// of the tender, it is 5 % at most.
    #[cfg_attr(feature = "clap", arg(
        long = "cpu",
        value_name = "PERCENT",
        value_parser = arguments::share,
        default_value = arguments::percent(TendOptions::default().cpu_share)
    ))]
    pub cpu_share: f64,
    /// The most bytes to collapse per second, at least 2MiB.
    #[cfg_attr(feature = "clap", arg(
        long = "rate",
        value_name = "SIZE",
        value_parser = arguments::rate,
        default_value = Size::from(TendOptions::default().bytes_per_second).to_string()
    ))]
    pub bytes_per_second: u64,
    /// Bytes of memory to leave for other programs: of the machine's available memory, and of the
    /// limit of the process's control group.
    #[cfg_attr(feature = "clap", arg(
        long,
        value_name = "SIZE",
        value_parser = hugekit_machine::size::parse_bytes,
        default_value = Size::from(TendOptions::default().keep_free).to_string()
    ))]
    pub keep_free: u64,
    /// The share of time in which tasks waited for memory in the last ten seconds (`some avg10` of
    /// `/proc/pressure/memory`), in percent, from which on nothing is collapsed. Default: 5.
    #[cfg_attr(feature = "clap", arg(skip = TendOptions::default().most_pressure))]
    pub most_pressure: f64,
}

impl Default for TendOptions {
    fn default() -> Self {
        Self {
            density: 0.5,
            growth: 0.2,
            cpu_share: 1.0,
            bytes_per_second: 1 << 30,
            keep_free: 256 << 20,
            most_pressure: 5.0,
        }
    }
}

#[cfg(feature = "clap")]
mod arguments {
    use hugekit::HUGE_PAGE_BYTES;
    use hugekit_machine::size::parse_bytes;

    pub(super) fn share(text: &str) -> Result<f64, &'static str> {
        let share = share_or_none(text).ok().filter(|&share| share > 0.0);
        share.ok_or("write a whole number from 1 to 100, without a sign: 50 is 50 %")
    }

    pub(super) fn share_or_none(text: &str) -> Result<f64, &'static str> {
        let percent = text.parse::<u8>().ok().filter(|&percent| percent <= 100);
        let share = percent.map(|percent| f64::from(percent) / 100.0);
        share.ok_or("write a whole number from 0 to 100, without a sign: 50 is 50 %")
    }

    pub(super) fn percent(share: f64) -> String {
        (share * 100.0).round().to_string()
    }

    pub(super) fn rate(text: &str) -> Result<u64, String> {
        match parse_bytes(text) {
            Ok(bytes) if bytes < HUGE_PAGE_BYTES as u64 => {
                Err("a huge page has 2 MiB: write at least 2MiB".to_owned())
            }
            bytes => bytes.map_err(|error| error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Python wants the figures of a class's signature as text.
    #[test]
    fn python_has_these_defaults() {
        let TendOptions { density, growth, cpu_share, bytes_per_second, keep_free, .. } =
            TendOptions::default();
        let read = |file: &str| {
            fs::read_to_string(format!("{}/../../bindings/py/{file}", env!("CARGO_MANIFEST_DIR")))
                .unwrap()
        };
        let signature = format!(
            "density={density:?}, growth={growth:?}, cpu_share={cpu_share:?}, bytes_per_second={bytes_per_second}, keep_free={keep_free})"
        );
        assert!(read("src/tend.rs").contains(&signature), "{signature}");
        let typed = [
            format!("density: float = {density:?},"),
            format!("growth: float = {growth:?},"),
            format!("cpu_share: float = {cpu_share:?},"),
            format!("bytes_per_second: int = {bytes_per_second},"),
            format!("keep_free: int = {keep_free},"),
        ];
        let stub = read("python/hugekit/__init__.pyi");
        typed.iter().for_each(|typed| assert!(stub.contains(typed), "{typed}"));
    }
}
