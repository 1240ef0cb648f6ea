//! Counts of events while a case ran.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// A record's word for hardware counters that there are.
pub(crate) const AVAILABLE: &str = "available";

/// The counts for one case, warm-up included.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Counters {
    /// Id of the case.
    pub id: String,
    /// Events by name, as a mean over the turns of the case. Threads that were started before are not in
    /// those that the CPU counts.
    pub per_round: BTreeMap<String, f64>,
}
