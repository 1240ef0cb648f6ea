//! `hugekit tune`: measure this machine's profile, store it, show the one in force.

mod store;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use hugekit::profile;
use hugekit_lab::{Calibration, LabError, calibrate};

use crate::progress::{INTERRUPTED, Terminal};
use crate::text::{say, write_out};

/// Measure which routines, windows and thread counts are best here, and store them as this user's profile.
///
/// Takes less than a minute, needs no privilege and changes nothing else. The variable `HUGEKIT_PROFILE`
/// names another file; empty, it has every program go by what is built in.
#[derive(Debug, Args)]
pub(crate) struct Tune {
    /// End within 15 s, at the price of coarser steps
    #[arg(long)]
    quick: bool,
    /// Print the profile in force and where each value came from; measure nothing
    #[arg(long, conflicts_with_all = ["quick", "force"])]
    show: bool,
    /// Store the profile although the machine was too noisy to measure
    #[arg(long)]
    force: bool,
}

impl Tune {
    /// Measures and stores, or shows.
    pub(crate) fn run(&self) -> anyhow::Result<ExitCode> {
        if self.show {
            let problem = crate::profile::go_by_stored();
            table::show(problem.as_ref(), profile::path().as_deref())?;
            return Ok(ExitCode::SUCCESS);
        }
        let path = profile_path()?;
        store::check(&path)?;
        let Some(calibration) = self.calibrate()? else { return Ok(ExitCode::from(INTERRUPTED)) };
        table::measured(&calibration)?;
        self.refuse_noise(&calibration)?;
        store::save(&path, &calibration.profile)?;
        let stored = path.display();
        write_out(&format!(
            "\nstored in {stored}, in force from the next start of a program on\n"
        ))?;
        Ok(ExitCode::SUCCESS)
    }

    fn calibrate(&self) -> anyhow::Result<Option<Calibration>> {
        let terminal = Terminal::new()?;
        let command = if self.quick { "hugekit tune --quick" } else { "hugekit tune" };
        let outcome = calibrate(self.quick, command, &terminal);
        terminal.finish();
        match outcome {
            Ok(calibration) => Ok(Some(calibration)),
            Err(LabError::Interrupted(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn refuse_noise(&self, calibration: &Calibration) -> anyhow::Result<()> {
        let (noise, spread) = (calibration.noise, percent(calibration.noise.spread()));
        if noise.is_too_much() && !self.force {
            bail!(
                "equal measurements differ by ±{spread}: too noisy to tune by, and nothing was stored; \
                 stop other load and repeat, or insist with --force"
            );
        }
        if noise.is_doubtful() {
            say(&format!(
                "warning: equal measurements differ by ±{spread}; repeat on a quieter machine"
            ));
        }
        Ok(())
    }
}

fn profile_path() -> anyhow::Result<PathBuf> {
    profile::path().context(
        "there is no place to store a profile: HUGEKIT_PROFILE is empty, or there is no home directory; \
         name a file by HUGEKIT_PROFILE",
    )
}

fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

fn shown(path: Option<&Path>) -> String {
    path.map_or_else(|| "no file".to_owned(), |path| path.display().to_string())
}
