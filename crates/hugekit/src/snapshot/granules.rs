//! Where the bytes of each granule are: still with their owner, copied aside, or with nobody any more.
//!
//! A granule's state is one atomic word, in memory that no snapshot protects. It leaves `Owner` once and never
//! comes back, and protection is lifted only after it has left: so whoever reads the owner's bytes and finds
//! `Owner` *afterwards* has read what they were at the snapshot. Readers take no lock for that.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::io;

use crate::sync::Event;
use crate::sys::own::{Own, OwnWords};

/// Where the bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// In the owner's memory, which is protected.
    Owner,
    /// As with the owner, while somebody copies them aside.
    Busy,
    /// In this slot of the arena.
    Slot(u32),
    /// They were read, and nobody wants them any more.
    Gone,
    /// Nowhere: the snapshot failed before they were copied.
    Lost,
}

impl Place {
    const SLOTS: u32 = 4;

    fn of(word: u32) -> Self {
        match word {
            0 => Self::Owner,
            1 => Self::Busy,
            2 => Self::Gone,
            3 => Self::Lost,
            slot => Self::Slot(slot - Self::SLOTS),
        }
    }

    fn word(self) -> u32 {
        match self {
            Self::Owner => 0,
            Self::Busy => 1,
            Self::Gone => 2,
            Self::Lost => 3,
            Self::Slot(slot) => slot + Self::SLOTS,
        }
    }
}

/// The granules of one snapshot. Async-signal-safe, all but `new`.
#[derive(Debug)]
pub(super) struct Granules {
    places: OwnWords<AtomicU32>,
    ended: Own<Event>,
}

/// The right to copy a granule aside. Dropped, it is the owner's as before.
#[derive(Debug)]
pub(super) struct Busy<'a> {
    granules: &'a Granules,
    index: usize,
    ends_as: Place,
}

impl Granules {
    /// So many, all of them with their owner.
    pub(super) fn new(count: usize) -> io::Result<Self> {
        Ok(Self { places: OwnWords::new(count)?, ended: Own::new(Event::new())? })
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    /// Where it is at this moment.
    pub(super) fn look(&self, index: usize) -> Place {
        Place::of(self.places[index].load(Ordering::SeqCst))
    }

    /// Where it is when nobody is copying it.
    pub(super) fn settled(&self, index: usize) -> Place {
        self.ended.wait_for(|| Some(self.look(index)).filter(|place| *place != Place::Busy))
    }

    /// Makes it busy if it is still with its owner, after whoever else is at it.
    pub(super) fn claim(&self, index: usize) -> Option<Busy<'_>> {
        while self.settled(index) == Place::Owner {
            if self.change(index, Place::Owner, Place::Busy) {
                return Some(Busy { granules: self, index, ends_as: Place::Owner });
            }
        }
        None
    }

    /// Nobody wants it any more; returns where it was, when nobody was copying it.
    pub(super) fn let_go(&self, index: usize) -> Place {
        loop {
            let place = self.settled(index);
            if self.change(index, place, Place::Gone) {
                return place;
            }
        }
    }

    fn change(&self, index: usize, from: Place, to: Place) -> bool {
        let word = &self.places[index];
        word.compare_exchange(from.word(), to.word(), Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }
}

impl Busy<'_> {
    /// It is there from now on.
    pub(super) fn finish(mut self, place: Place) {
        self.ends_as = place;
    }
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        let Granules { places, ended } = self.granules;
        places[self.index].store(self.ends_as.word(), Ordering::SeqCst);
        ended.tell();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;

    #[test]
    fn a_granule_leaves_its_owner_once() {
        let granules = Granules::new(64).unwrap();
        let copied: Vec<AtomicUsize> = (0..64).map(|_| AtomicUsize::new(0)).collect();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for (index, copied) in copied.iter().enumerate() {
                        if let Some(busy) = granules.claim(index) {
                            thread::yield_now();
                            copied.fetch_add(1, Ordering::Relaxed);
                            busy.finish(Place::Slot(index as u32));
                        }
                        assert_eq!(granules.look(index), Place::Slot(index as u32));
                        assert_eq!(copied.load(Ordering::Relaxed), 1);
                    }
                });
            }
        });
    }

    #[test]
    fn who_gives_up_leaves_it_where_it_was() {
        let granules = Granules::new(2).unwrap();
        drop(granules.claim(0).unwrap());
        assert_eq!(granules.settled(0), Place::Owner);
        granules.claim(0).unwrap().finish(Place::Lost);
        assert!(granules.claim(0).is_none());
        assert_eq!(granules.let_go(1), Place::Owner);
        assert_eq!((granules.look(1), granules.len()), (Place::Gone, 2));
        assert!(granules.claim(1).is_none());
    }
}
