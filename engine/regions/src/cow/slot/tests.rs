//! Every state with every event, and random sequences on a model of six regions with page tables and bytes.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const EVENTS: [Event; 14] = [
    Event::Read,
    Event::Write,
    Event::Own,
    Event::Separate,
    Event::Release,
    Event::TakeBack,
    Event::Settle,
    Event::Detach { copied: false },
    Event::Detach { copied: true },
    Event::OwnerWrites,
    Event::OwnerLeft,
    Event::Forked,
    Event::TakenOut,
    Event::Watched,
];

/// Every slot with what may be said of others: an exclusive slot is not shared, and a borrower has an owner.
fn each_case() -> impl Iterator<Item = (Slot, bool, Event)> {
    let shared = Slot::ALL.into_iter().flat_map(|slot| [(slot, false), (slot, true)]);
    let legal = shared.filter(|&(slot, shared)| match slot {
        Slot::Exclusive(_) | Slot::Unready(_) => !shared,
        _ if slot.borrows() => shared,
        _ => true,
    });
    legal.flat_map(|(slot, shared)| EVENTS.map(|event| (slot, shared, event)))
}

#[test]
fn slot_all_is_in_the_order_of_codes() {
    for (code, slot) in Slot::ALL.into_iter().enumerate() {
        assert_eq!(slot.code(), code as u64);
    }
}

/// No plan lets writes through to frames that others show, or maps another region's frame permanently.
#[test]
fn plan_of_any_slot_and_event_never_opens_a_shared_frame() {
    for (slot, shared, event) in each_case() {
        let (mut now, mut shared) = (slot, shared);
        for &action in slot.plan(shared, event) {
            let opens = match action {
                Action::Unprotect | Action::MapInPlace => true,
                Action::Enter { protected } => !protected,
                _ => false,
            };
            assert!(!opens || !shared && now.is_owner(), "{slot:?} {event:?}: {now:?}");
            let is_displaced = now.is_displaced() || now.is_lost();
            let enters = matches!(action, Action::Enter { .. } | Action::Unprotect);
            assert!(!enters || !is_displaced, "{slot:?} {event:?}: shows another frame");
            let shows = enters || opens || action == Action::Leave;
            assert!(!shows || !now.is_unready(), "{slot:?} {event:?}: shows what is not ready");
            shared &= !matches!(action, Action::DisplaceOthers | Action::TakeReserved(_));
            now = now.after(action);
        }
    }
}

/// Each event ends where its caller goes on.
#[test]
fn plan_of_any_slot_and_event_ends_where_it_must() {
    for (slot, shared, event) in each_case() {
        let plan = slot.plan(shared, event);
        let end = plan.iter().fold(slot, |slot, &action| slot.after(action));
        let separates = |action| matches!(action, &Action::DisplaceOthers);
        let alone = !shared || plan.iter().any(separates) || slot.borrows();
        let ends_well = match event {
            _ if slot.is_lost() && event == Event::OwnerLeft => end.is_owner(),
            Event::Read | Event::Write | Event::Own | Event::Separate if slot.is_lost() => {
                plan == [Action::Refuse]
            }
            Event::Release | Event::TakeBack | Event::Settle if slot.is_lost() => {
                plan == [Action::Refuse]
            }
            Event::Read => !end.is_displaced() && !end.is_unready(),
            Event::Settle => end.is_in_place() || !end.is_exclusive() && !end.is_unready(),
            Event::Release | Event::TakeBack if slot.is_unready() => end == slot,
            Event::TakeBack if slot.is_exclusive() => end.is_unready(),
            Event::Write | Event::Own | Event::Release => end.is_exclusive() && alone,
            Event::TakeBack => end.is_exclusive() && alone,
            Event::Separate => end.is_owner() && !end.is_unready(),
            Event::OwnerLeft => end.is_owner(),
            Event::Detach { .. } => end.is_owner(),
            Event::OwnerWrites => slot.is_owner() || !end.may_be_entered(),
            Event::Forked | Event::TakenOut => !end.is_exclusive(),
            Event::Watched => !end.is_in_place(),
        };
        assert!(ends_well, "{slot:?} {shared} {event:?}: {plan:?} -> {end:?}");
    }
}

#[test]
fn guess_is_a_read_only_where_nothing_can_be_in_the_page_tables() {
    assert_eq!(Slot::Borrower { entered: false }.guess(), Event::Read);
    assert_eq!(Slot::Owner(Presence::Absent).guess(), Event::Read);
    assert_eq!(Slot::Owner(Presence::InPlace).guess(), Event::Write);
    assert_eq!(Slot::Borrower { entered: true }.guess(), Event::Write);
}

/// A step of a thread in one region of a group that has one slot.
#[derive(Clone, Copy, Debug)]
enum SlotStep {
    Read(usize),
    Write(usize, u8),
    Release(usize),
    TakeBack(usize),
    Settle(usize),
    /// The kernel takes the pages out of a region's page tables: it swaps them, or is advised to.
    Forget(usize),
    Separate(usize),
    Detach(usize, bool),
    Fork(usize),
    /// By taking the parent's pages out, where it is watched.
    ForkByRemoval(usize),
    Leave(usize),
    /// Memory fails in the next copy.
    Fail,
}

/// A region as the kernel and its user see it.
#[derive(Debug)]
struct ModelRegion {
    slot: Slot,
    frame: usize,
    reserved: usize,
    /// The frame that its addresses map, if the kernel enters it by itself.
    mapped: Option<usize>,
    /// The entry in its page tables: a frame, and whether writes pass.
    entered: Option<(usize, bool)>,
    /// The value that its user expects; `None` once it does not matter.
    value: Option<u8>,
}

/// A group of regions of one slot, and a kernel that obeys.
#[derive(Debug, Default)]
struct Model {
    regions: BTreeMap<usize, ModelRegion>,
    frames: Vec<u8>,
    next: usize,
    fails: bool,
}

impl Model {
    /// A region that is ready, or whose frame holds an earlier owner's byte.
    fn new(ready: bool) -> Self {
        let held = if ready { 0 } else { 0xa5 };
        let mut model = Self { frames: vec![held], next: 1, ..Self::default() };
        let slot =
            if ready { Slot::Exclusive(Presence::InPlace) } else { Slot::fresh(Some(Lack::Clear)) };
        let (mapped, value) = (ready.then_some(0), Some(0));
        let region = ModelRegion { slot, frame: 0, reserved: 0, mapped, entered: None, value };
        model.regions.insert(0, region);
        model
    }

    fn others(&self, of: usize) -> Vec<usize> {
        let frame = self.regions[&of].frame;
        let sharers = self.regions.iter().filter(|(_, region)| region.frame == frame);
        sharers.map(|(&id, _)| id).filter(|&id| id != of).collect()
    }

    fn at(&mut self, id: usize) -> &mut ModelRegion {
        self.regions.get_mut(&id).unwrap()
    }

    /// Returns true if it was done: a lost slot is refused.
    fn serve(&mut self, id: usize, event: Event) -> bool {
        let plan = self.regions[&id].slot.plan(!self.others(id).is_empty(), event);
        plan.iter().all(|&action| self.apply(id, action))
    }

    fn apply(&mut self, id: usize, action: Action) -> bool {
        let frame = self.regions[&id].frame;
        match action {
            Action::Supply => self.frames[frame] = 0,
            Action::TakeBack => {
                (self.at(id).mapped, self.at(id).entered) = (None, None);
                self.at(id).value = Some(0);
            }
            Action::Leave => self.at(id).mapped = Some(frame),
            Action::Enter { protected } => self.at(id).entered = Some((frame, !protected)),
            Action::Remove => self.at(id).entered = None,
            Action::MapInPlace => {
                (self.at(id).mapped, self.at(id).entered) = (Some(frame), Some((frame, true)));
            }
            Action::Unprotect | Action::Protect => {
                let open = action == Action::Unprotect;
                let region = self.at(id);
                if let Some((_, writable)) = &mut region.entered {
                    *writable = open;
                } else if region.mapped.is_some() {
                    region.entered = Some((frame, open));
                }
            }
            Action::TakeOut => self.at(id).entered = None,
            Action::Watch => self.at(id).mapped = None,
            Action::DisplaceOthers => return self.displace_others(id),
            Action::TakeReserved(fill) => return self.take_reserved(id, fill),
            Action::Refuse => return false,
            Action::Inherit | Action::ShowCopy { .. } => {}
        }
        self.at(id).slot = self.regions[&id].slot.after(action);
        true
    }

    fn displace_others(&mut self, id: usize) -> bool {
        let others = self.others(id);
        for &other in &others {
            assert!(self.serve(other, Event::OwnerWrites));
        }
        let heir = self.regions[&others[0]].reserved;
        let fails = std::mem::take(&mut self.fails);
        self.frames[heir] = self.frames[self.regions[&id].frame];
        for (number, &other) in others.iter().enumerate() {
            self.at(other).frame = heir;
            self.apply(other, Action::ShowCopy { owner: number == 0 });
            if fails {
                self.lose(other);
            }
        }
        true
    }

    fn take_reserved(&mut self, id: usize, fill: Fill) -> bool {
        let ModelRegion { frame, reserved, .. } = self.regions[&id];
        let fails = fill == Fill::Copy && std::mem::take(&mut self.fails);
        self.frames[reserved] = match fill {
            Fill::Copy => self.frames[frame],
            Fill::Zeroes => 0,
            Fill::AsIs => 0xa5,
        };
        self.at(id).frame = reserved;
        self.at(id).slot = self.regions[&id].slot.after(Action::TakeReserved(fill));
        if fails {
            self.lose(id);
        }
        !fails
    }

    fn lose(&mut self, id: usize) {
        let region = self.at(id);
        region.slot = region.slot.lost();
        (region.mapped, region.entered, region.value) = (None, None, None);
    }

    /// An access as the CPU makes it: by the page tables, or a fault that is served.
    fn access(&mut self, id: usize, write: Option<u8>) {
        if self.regions[&id].slot.is_lost() {
            assert!(!self.serve(id, if write.is_some() { Event::Write } else { Event::Read }));
            return;
        }
        for _ in 0..3 {
            let ModelRegion { mapped, entered, .. } = self.regions[&id];
            match (entered, mapped, write) {
                (Some((frame, true)), _, Some(value)) => {
                    self.frames[frame] = value;
                    self.at(id).value = Some(value);
                    return;
                }
                (Some((frame, _)), _, None) => {
                    let expected = self.regions[&id].value;
                    assert!(expected.is_none_or(|value| value == self.frames[frame]));
                    return;
                }
                (None, Some(frame), _) => self.at(id).entered = Some((frame, true)),
                (_, _, write) => {
                    let event = if write.is_some() { Event::Write } else { Event::Read };
                    if !self.serve(id, event) {
                        assert!(self.regions[&id].slot.is_lost());
                        return;
                    }
                }
            }
        }
        panic!("an access that never ends: {:?}", self.regions[&id]);
    }

    fn fork(&mut self, parent: usize, by_removal: bool) {
        if by_removal {
            self.serve(parent, Event::Watched);
            self.serve(parent, Event::TakenOut);
        } else {
            self.serve(parent, Event::Forked);
        }
        let ModelRegion { slot, frame, value, .. } = self.regions[&parent];
        self.frames.push(0x5a);
        let reserved = self.frames.len() - 1;
        let own = (Slot::fresh(Some(Lack::Clear)), reserved);
        let (slot, frame) = slot.child().map_or(own, |slot| (slot, frame));
        let child = ModelRegion { slot, frame, reserved, mapped: None, entered: None, value };
        self.regions.insert(self.next, child);
        self.next += 1;
    }

    fn leave(&mut self, id: usize) {
        let others = self.others(id);
        let owned = self.regions[&id].slot.is_owner();
        if let Some(&heir) = others.first().filter(|_| owned) {
            assert!(self.serve(heir, Event::OwnerLeft));
        }
        self.regions.remove(&id);
    }

    fn check(&self) {
        for (&id, region) in &self.regions {
            let others = self.others(id);
            let owners = others.iter().filter(|id| self.regions[id].slot.is_owner()).count();
            assert_eq!(owners + usize::from(region.slot.is_owner()), 1, "{self:?}");
            let writes = region.entered.is_some_and(|(_, writable)| writable);
            assert!(!writes || others.is_empty(), "{id} writes what is shared: {self:?}");
            let shows = region.entered.is_none_or(|(frame, _)| frame == region.frame);
            let may_differ = region.slot.is_displaced() || region.value.is_none();
            assert!(shows || may_differ, "{id} shows another frame: {self:?}");
            let is_seen = region.entered.is_some() || region.mapped.is_some();
            assert!(!region.slot.is_unready() || !is_seen, "{id} shows what is not ready");
        }
    }

    fn step(&mut self, step: SlotStep) {
        let ids: Vec<usize> = self.regions.keys().copied().collect();
        let of = |number: usize| ids[number % ids.len()];
        match step {
            SlotStep::Read(at) => self.access(of(at), None),
            SlotStep::Write(at, value) => self.access(of(at), Some(value)),
            SlotStep::Release(at) => self.release(of(at), Event::Release),
            SlotStep::TakeBack(at) => self.release(of(at), Event::TakeBack),
            SlotStep::Settle(at) => {
                self.serve(of(at), Event::Settle);
            }
            SlotStep::Forget(at) => {
                let region = self.at(of(at));
                // What holds writes back stays in the page tables of shared memory.
                region.entered = region.entered.filter(|&(_, writable)| !writable);
            }
            SlotStep::Separate(at) => {
                self.serve(of(at), Event::Separate);
            }
            SlotStep::Detach(at, copied) => {
                let id = of(at);
                let had = self.regions[&id].slot.borrows();
                self.serve(id, Event::Detach { copied });
                if had && !copied {
                    self.at(id).value = None;
                }
            }
            SlotStep::Fork(at) if ids.len() < 6 => self.fork(of(at), false),
            SlotStep::ForkByRemoval(at) if ids.len() < 6 => self.fork(of(at), true),
            SlotStep::Leave(at) if ids.len() > 1 => self.leave(of(at)),
            SlotStep::Fail => self.fails = true,
            SlotStep::Fork(_) | SlotStep::ForkByRemoval(_) | SlotStep::Leave(_) => {}
        }
        self.check();
    }

    fn release(&mut self, id: usize, event: Event) {
        let fills = Action::TakeReserved(Fill::Zeroes);
        let shared = !self.others(id).is_empty();
        let is_cleared = self.regions[&id].slot.plan(shared, event).contains(&fills);
        if self.serve(id, event) {
            if !is_cleared && !self.regions[&id].slot.is_unready() {
                let frame = self.regions[&id].frame;
                self.frames[frame] = 0;
            }
            self.at(id).value = Some(0);
        }
    }
}

fn steps() -> impl Strategy<Value = Vec<SlotStep>> {
    let id = || 0..6_usize;
    let step = prop_oneof![
        4 => id().prop_map(SlotStep::Read),
        4 => (id(), any::<u8>()).prop_map(|(id, value)| SlotStep::Write(id, value)),
        1 => id().prop_map(SlotStep::Release),
        2 => id().prop_map(SlotStep::TakeBack),
        1 => id().prop_map(SlotStep::Settle),
        1 => id().prop_map(SlotStep::Forget),
        1 => id().prop_map(SlotStep::Separate),
        1 => (id(), any::<bool>()).prop_map(|(id, copied)| SlotStep::Detach(id, copied)),
        3 => id().prop_map(SlotStep::Fork),
        2 => id().prop_map(SlotStep::ForkByRemoval),
        1 => id().prop_map(SlotStep::Leave),
        1 => Just(SlotStep::Fail),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    /// Each region reads the bytes that it wrote last, or the bytes that its parent had at the
    /// fork, in any order of operations.
    #[test]
    fn plans_carried_out_in_any_order_keep_each_regions_bytes(
        ready in any::<bool>(),
        steps in steps(),
    ) {
        let mut model = Model::new(ready);
        for step in steps {
            model.step(step);
        }
    }
}
