//! One checkpoint, and the inspection of a VM before it is saved.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::checkpoint::checkpoints::Checkpoints;
use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::granules::{Granule, granules};
use crate::checkpoint::options::CheckpointOptions;
use crate::checkpoint::report::CheckpointReport;
use crate::checkpoint::tracked_vm::Afterwards;
use crate::checkpoint::vm::Vm;

/// Saves a running VM. The output is complete if the call returns without an error, and absent
/// otherwise.
///
/// # Errors
/// [`CheckpointError`] if the VM cannot be saved. The VM continues to run if it ran before.
pub fn checkpoint(options: &CheckpointOptions) -> Result<CheckpointReport, CheckpointError> {
    let started = Instant::now();
    Checkpoints::find(options, Afterwards::Released)?.save(&options.output, started)
}

pub(crate) fn collapse(vm: &Vm, is_wanted: bool) -> Result<(u64, Duration), CheckpointError> {
    let since = Instant::now();
    let bytes = if is_wanted { vm.collapse()? } else { 0 };
    Ok((bytes, if bytes > 0 { since.elapsed() } else { Duration::ZERO }))
}

/// Returns the ranges of the memory file whose memory is present.
pub(crate) fn used(vm: &Vm) -> Result<Vec<Range<u64>>, CheckpointError> {
    let mut used: Vec<Range<u64>> = Vec::new();
    for granule in granules(&vm.regions) {
        let Granule { addresses, .. } = &granule;
        let runs = vm.pages.populated(addresses);
        let unreadable = |source| CheckpointError::Memory { address: addresses.start, source };
        if runs.map_err(unreadable)?.is_empty() {
            continue;
        }
        let offsets = granule.offsets();
        match used.last_mut() {
            Some(last) if last.end == offsets.start => last.end = offsets.end,
            _ => used.push(offsets),
        }
    }
    Ok(used)
}
