//! A profile as a table: value, what it is, where it came from.

use std::io::{self, Write};
use std::path::Path;

use comfy_table::{ContentArrangement, Table, presets};
use hugekit::Profile;
use hugekit::profile::{Bands, InForce, Measured};
use hugekit_lab::Calibration;
use hugekit_lab::size::Size;

use super::{percent, shown};

const WIDTH: u16 = 80;
const BUILT_IN: &str = "built in";

/// Prints the profile in force.
pub(super) fn show(in_force: &InForce, path: Option<&Path>) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match (&in_force.stored, &in_force.problem) {
        (Some((path, stored)), _) => writeln!(
            out,
            "stored: {}, measured by `{}`, equal measurements ±{}",
            path.display(),
            stored.tuned.command,
            percent(stored.tuned.spread)
        )?,
        (None, Some(problem)) => writeln!(out, "stored: {problem}")?,
        (None, None) => writeln!(out, "stored: none ({})", shown(path))?,
    }
    let measured = in_force.stored.as_ref().map(|(_, stored)| &stored.measured);
    writeln!(out, "{}", table(&in_force.profile, measured, "stored"))
}

/// Prints what a calibration found.
pub(super) fn measured(calibration: &Calibration) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    let profile = &calibration.profile;
    let here = profile.for_this_machine()?;
    writeln!(out, "equal measurements differ by ±{}", percent(calibration.noise.spread()))?;
    writeln!(out, "{}", table(&here, Some(&profile.measured), "measured"))?;
    for notice in &calibration.notices {
        writeln!(out, "· {notice}")?;
    }
    Ok(())
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
