//! The CPUs that this process may use, and which of them a thread runs on.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::measure::LabError;

/// All that this thread may use now.
pub fn allowed() -> Result<CpuSet, LabError> {
    sched_getaffinity(None).map_err(|errno| LabError::Cpus(errno.into()))
}

/// Their numbers, ascending.
pub fn numbers(cpus: &CpuSet) -> impl Iterator<Item = usize> + '_ {
    (0..CpuSet::MAX_CPU).filter(|&cpu| cpus.is_set(cpu))
}

/// This one alone.
pub fn only(cpu: usize) -> CpuSet {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    cpus
}

/// Has the calling thread, and children that it makes, run there.
pub fn run_on(cpus: &CpuSet) -> Result<(), LabError> {
    sched_setaffinity(None, cpus).map_err(|errno| LabError::Cpus(errno.into()))
}
