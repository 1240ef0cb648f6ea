//! A profile as a table: value, what it is, where it came from.

use std::io;
use std::path::Path;

use anyhow::Context;
use comfy_table::{ContentArrangement, Table, presets};
use hugekit::Profile;
use hugekit::profile::{self, Bands, Measured, ProfileError, Source};
use hugekit_lab::size::Size;
use hugekit_lab::{Calibration, plain};

use super::{percent, shown};
use crate::text::write_out;

const WIDTH: u16 = 80;
const BUILT_IN: &str = "built in";

/// Prints the profile in force, and what is wrong with the one that is stored.
pub(super) fn show(problem: Option<&ProfileError>, path: Option<&Path>) -> io::Result<()> {
    let source = profile::source();
    let stored = match (source, problem) {
        (Some(Source { path, stored }), _) => format!(
            "{}, measured by `{}`, equal measurements ±{}",
            path.display(),
            stored.tuned.command,
            percent(stored.tuned.spread)
        ),
        (None, Some(problem)) => problem.to_string(),
        (None, None) => format!("none ({})", shown(path)),
    };
    let measured = source.map(|source| &source.stored.measured);
    let table = table(Profile::current(), measured, "stored");
    write_out(&format!("stored: {}\n{table}\n", plain(&stored)))
}

/// Prints what a calibration found.
pub(super) fn measured(calibration: &Calibration) -> anyhow::Result<()> {
    let profile = &calibration.profile;
    let here = profile.for_this_machine()?;
    let spread = percent(calibration.noise.spread());
    let table = table(&here, Some(&profile.measured), "measured");
    let notices: String =
        calibration.notices.iter().map(|notice| format!("· {notice}\n")).collect();
    let text = format!("equal measurements differ by ±{spread}\n{table}\n{notices}");
    write_out(&text).context("cannot print")
}

fn table(profile: &Profile, measured: Option<&Measured>, source: &str) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_width(WIDTH);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["value", "in force", "from"]);
    for (key, value, is_measured) in rows(profile, measured) {
        table.add_row([key, &value, if is_measured { source } else { BUILT_IN }]);
    }
    table
}

/// Every value, and whether it was measured.
fn rows(profile: &Profile, measured: Option<&Measured>) -> Vec<(&'static str, String, bool)> {
    let none = Measured::default();
    let measured = measured.unwrap_or(&none);
    let size = |bytes: usize| Size(bytes).to_string();
    vec![
        ("clear_warm", bands(&profile.clear.warm), measured.clear_warm.is_some()),
        ("clear_cold", bands(&profile.clear.cold), measured.clear_cold.is_some()),
        ("copy_warm", bands(&profile.copy.warm), measured.copy_warm.is_some()),
        ("copy_cold", bands(&profile.copy.cold), measured.copy_cold.is_some()),
        ("near_bytes", size(profile.near_bytes), measured.near_bytes.is_some()),
        ("near_bytes_all", size(profile.near_bytes_all), measured.near_bytes_all.is_some()),
        ("parallel_from", size(profile.parallel_from), measured.parallel_from.is_some()),
        ("min_chunk", size(profile.min_chunk), measured.min_chunk.is_some()),
        ("thread_cap", profile.thread_cap.to_string(), measured.thread_cap.is_some()),
    ]
}

/// `memset, avx2_cached from 2KiB`.
fn bands<F>(bands: &Bands<F>) -> String {
    let name = |band: &hugekit::profile::Band<F>| match band.from {
        0 => band.routine.name().to_owned(),
        from => format!("{} from {}", band.routine.name(), Size(from)),
    };
    bands.as_slice().iter().map(name).collect::<Vec<_>>().join(", ")
}
