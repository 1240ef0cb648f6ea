//! Noise: other events on the machine while an experiment ran, and their effect on its figures.

use serde::{Deserialize, Serialize};

use super::Counters;

/// The disturbances of an experiment, as far as they could be seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Noise {
    /// How long it took, warming included.
    pub seconds: f64,
    /// Share of all CPUs' time that the hypervisor gave to others, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steal_percent: Option<f64>,
    /// CPU time that other processes used, in percent of one CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others_percent: Option<f64>,
    /// Share of the time in which some process waited for a CPU, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_percent: Option<f64>,
    /// The system's load average at the end, over the minute before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_average: Option<f64>,
    /// The lowest and highest frequency of a CPU before and after, in MHz.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub megahertz: Option<(f64, f64)>,
    /// Doubts about the figures, and remedies.
    pub warnings: Vec<String>,
    /// The counts for each case that was measured in rounds.
    pub counters: Vec<Counters>,
}
