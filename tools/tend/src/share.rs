//! The share of a CPU that the tender may use for a process. The share grows while the process does
//! not wait longer for CPUs.
//!
//! The share is doubled from window to window, beginning with the least share. If the threads of
//! the process waited longer for a CPU than in windows with the least share, it falls back to the
//! least share. So on a machine with an idle CPU a pass uses a whole CPU, and on a busy machine the
//! share alternates between the least share and a little more.

use crate::options::TendOptions;

/// The share that the tender always has, even if the process waits for CPUs. It is small, because
/// `usual` is measured with this share, and the effect of a large share would count as usual.
const LEAST: f64 = 0.05;

/// The increase of the time in which the process waits for CPUs, summed over its threads, that is
/// permitted in any case.
const MORE: f64 = 0.01;

/// The permitted factor of the increase over the usual time. The load of other programs changes
/// from window to window.
const LONGER: f64 = 1.25;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share {
    least: f64,
    most: f64,
    now: f64,
    /// The part of the time in which the process waits in windows with the least share. Later
    /// windows weigh more.
    usual: Option<f64>,
}

impl Share {
    pub(crate) fn new(options: &TendOptions) -> Self {
        let most = options.cpu_share.clamp(0.001, 1.0);
        let least = LEAST.min(most);
        Self { least, most, now: least, usual: None }
    }

    pub(crate) fn now(self) -> f64 {
        self.now
    }

    /// Returns the share after a window in which the process waited for CPUs for this part of the
    /// time.
    pub(crate) fn after(self, waited: f64) -> Self {
        let more = (2.0 * self.now).min(self.most);
        match self.usual {
            Some(usual) if self.now > self.least => {
                let is_bearable = waited <= usual * LONGER + MORE;
                Self { now: if is_bearable { more } else { self.least }, ..self }
            }
            usual => {
                let usual = Some((usual.unwrap_or(waited) + waited) / 2.0);
                Self { now: more, usual, ..self }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(cpu_share: f64) -> Share {
        Share::new(&TendOptions { cpu_share, ..TendOptions::default() })
    }

    fn after(share: Share, waits: &[f64]) -> f64 {
        waits.iter().fold(share, |share, &waited| share.after(waited)).now()
    }

    #[test]
    fn share_grows_to_the_limit_while_the_process_waits_as_usual() {
        assert_eq!(share(1.0).now(), LEAST);
        assert_eq!(after(share(1.0), &[0.3, 0.3]), 4.0 * LEAST);
        assert_eq!(after(share(1.0), &[0.3, 0.38, 0.0, 0.3, 0.3]), 1.0);
        assert_eq!(after(share(0.5), &[0.0; 9]), 0.5);
        assert_eq!(after(share(0.01), &[0.0; 9]), 0.01);
    }

    #[test]
    fn share_falls_to_the_least_when_the_process_waits_longer_and_is_tried_again() {
        assert_eq!(after(share(1.0), &[0.0, 0.0, 0.02]), LEAST);
        assert_eq!(after(share(1.0), &[0.3, 0.3, 0.39]), LEAST);
        assert_eq!(after(share(1.0), &[0.0, 0.0, 0.02, 0.04]), 2.0 * LEAST);
        assert_eq!(after(share(1.0), &[0.0, 0.0, 0.02, 0.04, 0.03]), 4.0 * LEAST, "usual is 0.02");
    }
}
