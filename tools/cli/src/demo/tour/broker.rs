//! A broker of the tour's own: the real command, with a socket that no other program knows.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hugekit_lease::protocol::Status;
use tempfile::TempDir;

use super::process::{TourProcess, ends_with_the_tour, hugekit};
use super::stop::TourStop;

/// The longest wait for memory: a machine that takes longer does something else.
const PATIENCE: Duration = Duration::from_secs(30);

const PAUSE: Duration = Duration::from_millis(5);

/// Killed when dropped; the folder is removed.
pub(super) struct TourBroker {
    process: TourProcess,
    folder: TempDir,
}

impl TourBroker {
    /// With one unit of this size, or for images.
    pub(super) fn start(unit: Option<usize>, stop: &TourStop) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir().context("no folder for the broker's socket")?;
        let mut command = hugekit()?;
        command.args(["broker", "--backing", "thp", "--socket"]).arg(folder.path().join("socket"));
        if let Some(unit) = unit {
            command.args(["--unit", &unit.to_string()]);
        }
        let process = TourProcess::start(ends_with_the_tour(&command)?)?;
        let mut broker = Self { process, folder };
        broker.wait(stop, |_| true)?;
        Ok(broker)
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// Waits until its unit is populated.
    pub(super) fn unit(&mut self, stop: &TourStop) -> anyhow::Result<()> {
        self.wait(stop, |status| status.ready >= status.target)
    }

    fn wait(&mut self, stop: &TourStop, is_enough: impl Fn(&Status) -> bool) -> anyhow::Result<()> {
        let since = Instant::now();
        while !hugekit_lease::status(&self.socket()).is_ok_and(|status| is_enough(&status)) {
            if let Some(error) = self.process.has_ended() {
                return Err(error.context("the broker has ended"));
            }
            if since.elapsed() > PATIENCE {
                let said = self.process.last_line();
                bail!("the broker has no memory ready after {} s: {said}", PATIENCE.as_secs());
            }
            stop.rest(PAUSE)?;
        }
        Ok(())
    }
}
