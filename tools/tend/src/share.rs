//! How much of a CPU the tender may use for a process: more while the process does not wait longer for CPUs.
//!
//! From the least share, the share is doubled window by window. It falls back to the least one when the threads of
//! the process waited longer for a CPU than in windows with the least share. So on a machine with an idle CPU
//! a pass has a whole CPU, and on a busy one it alternates between the least share and a little more.

use crate::options::TendOptions;

/// The share that a process may have, however long it waits for CPUs. Small, because `usual` is
/// measured with it, and a large one would count as usual.
const LEAST: f64 = 0.05;

/// The process may wait for CPUs for this much more of the time, summed over its threads, ...
const MORE: f64 = 0.01;

/// ... and this many times as long as usual: the load of other programs changes from window to window.
const LONGER: f64 = 1.25;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Share {
    least: f64,
    most: f64,
    now: f64,
    /// The part of the time that the process waits in windows with the least share. Later windows weigh more.
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

    /// After a window in which the process waited for CPUs for this part of the time.
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
