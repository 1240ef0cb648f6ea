//! VMs whose message was lost with an earlier pager: they are served, or their wait ends.

use std::io::ErrorKind;
use std::sync::{Arc, PoisonError};
use std::thread::Scope;
use std::time::{Duration, Instant};

use crate::pager::daemon::{Pager, Tell};
use crate::pager::error::Refusal;
use crate::pager::event::Event;
use crate::pager::lost_layout;
use crate::pager::orphans::Orphan;
use crate::pager::pager_record::PagerRecord;
use crate::pager::served::Served;
use crate::pager::source::Source;
use crate::pager::state::{self, State};
use crate::pager::vm::ServedVm;
use crate::pager::waiting::{Admitted, Ending, Waiting};
use crate::vmm::Layout;
use crate::vmm::process::Process;

/// The time before any such VM is served. VMMs that could not send all of their message see an
/// error and close their descriptors within this time.
const GRACE: Duration = Duration::from_millis(100);

/// The longest time until a VMM has registered all of its memory.
const REGISTERING: Duration = Duration::from_secs(2);

const PAUSE: Duration = Duration::from_millis(20);

impl Pager {
    /// Starts a thread for VMs that earlier pagers have lost, if there are any. The records of
    /// these pagers are not needed any more when all of these VMs are recorded or have ended their
    /// wait.
    pub(crate) fn start_adopting<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        tell: Tell<'scope>,
    ) {
        let mut orphans = self.orphans.lock().unwrap_or_else(PoisonError::into_inner);
        let orphans = std::mem::take(&mut *orphans);
        if orphans.is_empty() {
            return self.forget_earlier();
        }
        let adopt = move || {
            if self.adopt_all(orphans, scope, tell) {
                self.forget_earlier();
            }
        };
        if let Err((_, why)) = self.spawn(scope, (), |()| adopt()) {
            tell(Event::Refused { pid: None, why, ending: Ending::NoWait });
        }
    }

    fn forget_earlier(&self) {
        self.earlier.iter().for_each(|pager| pager.remove(&self.folder));
    }

    /// Returns true if no VM is left, and false if the pager was stopped before.
    fn adopt_all<'scope>(
        &'scope self,
        mut orphans: Vec<Orphan>,
        scope: &'scope Scope<'scope, '_>,
        tell: Tell<'scope>,
    ) -> bool {
        if self.stop.await_ring(GRACE) {
            return false;
        }
        let since = Instant::now();
        while !orphans.is_empty() {
            let waited = since.elapsed();
            let waiting = orphans.into_iter().filter(Orphan::still_waits);
            orphans = waiting
                .filter_map(|orphan| self.adopt_or_wait(orphan, waited, scope, tell))
                .collect();
            if !orphans.is_empty() && self.stop.await_ring(PAUSE) {
                return false;
            }
        }
        true
    }

    /// Returns the VM if all of its memory may still be registered, or if another VM may still show
    /// its regions.
    fn adopt_or_wait<'scope>(
        &'scope self,
        mut orphan: Orphan,
        waited: Duration,
        scope: &'scope Scope<'scope, '_>,
        tell: Tell<'scope>,
    ) -> Option<Orphan> {
        let (pid, is_late) = (orphan.process.pid(), waited >= REGISTERING);
        // A VM that is complete may be saved: it is left unclaimed.
        if Served::of_process(pid).is_ok_and(|served| served.is_empty()) {
            return (!is_late).then_some(orphan);
        }
        // A checkpoint registers the memory of a VM that is complete, and claims the VM before.
        if orphan.process.claim().is_err_and(|error| error.kind() == ErrorKind::WouldBlock) {
            return (!is_late).then_some(orphan);
        }
        let mappings = Served::of_process(pid).unwrap_or_default();
        let source = self.source_of(&orphan.pager.source);
        let found = source.and_then(|source| {
            let lost = Refusal::Lost { bytes: mappings.iter().map(Served::len).sum() };
            let layout = self.layout_of(&orphan.pager, &mappings, &source).ok_or(lost)?;
            Ok((source, layout))
        });
        let adopted = match found {
            Err(Refusal::Lost { .. }) if waited < self.options.patience => {
                if is_late && !std::mem::replace(&mut orphan.is_told, true) {
                    tell(Event::Waits { pid });
                }
                return Some(orphan);
            }
            Err(why) => Err((orphan.process, why)),
            Ok((source, layout)) => self.adopt(orphan.process, source, layout),
        };
        match adopted {
            Ok(vm) => {
                tell(Event::TakenOver { pid });
                if let Err((vm, why)) = self.spawn(scope, vm, |vm| self.serve(vm, tell)) {
                    tell(vm.refuse(why));
                }
            }
            Err((process, why)) if !mappings.is_empty() => {
                tell(Waiting::left(process, None).refuse(why));
            }
            // It waits for nothing.
            Err(_) => {}
        }
        None
    }

    fn adopt(
        &self,
        process: Process,
        source: Arc<Source>,
        layout: Layout,
    ) -> Result<ServedVm, (Process, Refusal)> {
        let find = || -> Result<_, Refusal> {
            let faults = ServedVm::find_userfaultfd(&process, &layout)?;
            let state = State::create(&self.folder, &process, &layout, source.identity());
            Ok((faults, Admitted::new(layout, source, state.map_err(Refusal::State)?)?))
        };
        match find() {
            Ok((faults, admitted)) => {
                Ok(ServedVm::new(process, faults, admitted, self.options.around))
            }
            Err(why) => Err((process, why)),
        }
    }

    /// Finds the layout by VMs with the same memory: VMs that the earlier pager met, VMs that this
    /// pager met, and VMs with a record.
    fn layout_of(
        &self,
        pager: &PagerRecord,
        mappings: &[Served],
        source: &Source,
    ) -> Option<Layout> {
        let recorded = state::find(&self.folder).unwrap_or_default().into_iter();
        let of_source = recorded.filter(|(_, record)| record.source.has_same_bytes(&pager.source));
        let mut known = pager.layouts().to_vec();
        known.extend(of_source.map(|(_, record)| record.layout));
        let own = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        known.extend(
            own.layouts().iter().filter(|_| own.source.has_same_bytes(&pager.source)).cloned(),
        );
        lost_layout::find(mappings, &known, source.len())
    }
}
