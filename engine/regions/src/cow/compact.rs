//! Brings together the frames of a fragmented region, so a fork of it needs few mappings.

use super::ForkError;
use super::error::{Failed, Refused};
use super::frames::{Broken, GivenUpFolios, Holding, Near, Reservation, ReservedFrames};
use super::handle::CowHandle;
use super::mapping::CowMapping;
use super::slot::{Event, Presence, Slot};
use super::tables::Tables;
use super::unshared::UnsharedSlots;
use super::whole_region::WholeRegion;
use hugekit_sys::thread::without_signals;

/// A region to bring together, before it is forked. The fork does not share the slots of `unshared`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Compaction<'a> {
    pub(super) region: &'a CowHandle,
    pub(super) unshared: &'a UnsharedSlots,
    pub(super) bytes: usize,
}

impl Compaction<'_> {
    /// Brings the region together: in its own place if that is whole, otherwise in a new place. Slots that are not
    /// ready are made ready first, because a fork has them elsewhere. Returns `error` if neither is possible.
    pub(super) fn run(&self, error: ForkError) -> Result<(), ForkError> {
        let Self { region, unshared, bytes } = *self;
        let group = &*region.group;
        region.bulk().supply(0..bytes, group.pool.threads()).map_err(ForkError::NotReady)?;
        let completed = without_signals(|blocked| {
            let mut tables = group.gate.alone(blocked);
            let mapping = tables.mappings.of_region(region.start);
            let (id, is_whole) = (mapping.id(), (0..mapping.slots()).all(has_place(mapping)));
            is_whole.then(|| WholeRegion::new(group, &mut tables, id).make_exclusive())
        });
        match completed {
            Some(Ok(())) => return Ok(()),
            Some(Err(_)) => return Err(error),
            // A device or program that holds a pinned page would not see the move.
            None if !unshared.pinned().is_empty() => return Err(error),
            None => {}
        }
        let pieces = group.pool.reserve(bytes, group.granule_bytes)?;
        let private = Reservation::memory_for(&pieces);
        let Some(private) = private.ok().filter(|_| pieces.len() == 1) else {
            group.folios.return_pieces(pieces);
            return Err(error);
        };
        let mut reservation = group.reservation_of(pieces, private);
        let mut unused = Vec::with_capacity(reservation.len());
        let mut given_up = GivenUpFolios::new();
        let moved = group.alone_with_room(reservation.len(), |tables| {
            let moved = self.migrate(tables, &mut reservation, &mut unused);
            tables.frames.take_given_up(&mut given_up);
            moved
        });
        group.return_given_up(given_up)?;
        group.folios.return_unused(&unused);
        moved.map(|_before| ()).map_err(|(_reserve, failed)| failed.into())
    }

    /// Moves the mapping to a new place, which is one piece. No thread writes to the region meanwhile. Returns the
    /// earlier place, or the new place if the move failed.
    fn migrate(
        &self,
        tables: &mut Tables,
        reservation: &mut Reservation,
        unused: &mut Vec<Holding>,
    ) -> Result<ReservedFrames, (ReservedFrames, Failed)> {
        let group = &*self.region.group;
        let (id, reserve) =
            (tables.mappings.of_region(self.region.start).id(), tables.frames.add(reservation));
        if let Err(failed) = move_to(WholeRegion::new(group, tables, id), &reserve) {
            tables.frames.take_last(&reserve, unused);
            return Err((reserve, failed));
        }
        let slots = tables.mappings.get(id).slots();
        tables.give_up(id, 0..slots, false);
        let before = std::mem::replace(&mut tables.mappings.get_mut(id).reserve, reserve);
        tables.show_reserve(id, |_, _| Slot::Exclusive(Presence::InPlace));
        group.count_vmas(tables.mappings.get(id), 0);
        tables.check();
        Ok(before)
    }
}

/// Returns true if a slot shows its reserved frame, or can still take it.
fn has_place(mapping: &CowMapping) -> impl Fn(usize) -> bool {
    |slot| {
        let entry = mapping.entry(slot);
        entry.frame == mapping.reserved_frame(slot) || !entry.slot.is_owner()
    }
}

/// Copies the bytes of a region to a new place, and maps that place.
fn move_to(region: WholeRegion<'_>, reserve: &ReservedFrames) -> Result<(), Failed> {
    let WholeRegion { alone, frames, mapping, .. } = region;
    region.protect_all_but(&[])?;
    for slot in 0..mapping.slots() {
        if mapping.entry(slot).slot.is_lost() {
            return Err(Refused::Broken.into());
        }
        if mapping.entry(slot).slot.is_owner() {
            region.at(&alone.slot(slot)).serve_event(Event::Separate, None)?;
        }
        let copied = frames.copy(mapping.entry(slot).frame, reserve.frame(slot), Near::Neither);
        copied.map_err(|Broken| Refused::Broken)?;
    }
    Ok(region.map_run(0..mapping.slots(), reserve.frame(0))?)
}
