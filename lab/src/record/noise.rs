//! Noise: other events on the machine while an experiment ran, and their effect on its figures.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// From here on, time given to others is worth a warning: in percent.
const MUCH_STEAL: f64 = 1.0;
const MUCH_OTHERS: f64 = 10.0;

/// A record's word for hardware counters that there are.
pub const AVAILABLE: &str = "available";

/// The counts for one case, warm-up included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Id of the case.
    pub id: String,
    /// Events by name, as a mean over the turns of the case. Threads that were started before are not in
    /// those that the CPU counts.
    pub per_round: BTreeMap<String, f64>,
}

/// The disturbances of an experiment, as far as they could be seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Noise {
    /// The time of the experiment, warming included.
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

impl Noise {
    /// The other users of the CPUs, if that was enough to spoil every figure.
    #[must_use]
    pub fn disturbance(&self) -> Option<String> {
        let steal = self.steal_percent.filter(|&percent| percent > MUCH_STEAL);
        let steal = steal.map(|percent| {
            format!("the hypervisor gave {percent:.1} % of the CPUs' time to others")
        });
        let others = self.others_percent.filter(|&percent| percent > MUCH_OTHERS);
        let others = others.map(|percent| format!("other processes used {percent:.0} % of a CPU"));
        let both: Vec<String> = steal.into_iter().chain(others).collect();
        (!both.is_empty()).then(|| both.join(", "))
    }
}
