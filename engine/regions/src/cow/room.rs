//! Room for what joins a fork group, made before the gate is taken: a thread that has the gate alone does not allocate.
//! A handler may have interrupted the allocator, and wait for the gate.

use super::frames::Holding;
use super::mappings::{self, Longer};
use super::tables::Tables;

/// Vectors that are longer than the group's, if those are too short.
#[derive(Debug, Default)]
pub(super) struct Room {
    mappings: Longer,
    holdings: Vec<Holding>,
}

/// The lengths that the vectors need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    mappings: usize,
    holdings: usize,
}

impl Room {
    /// Allocates it.
    pub(super) fn grow(&mut self, wanted: Wanted) {
        self.mappings.reserve(2 * wanted.mappings);
        self.holdings.reserve(2 * wanted.holdings);
    }

    /// Sees to it that there is room for a mapping and so many holdings more. The room has the shorter vectors then.
    pub(super) fn give(&mut self, tables: &mut Tables, more: usize) -> Result<(), Wanted> {
        let holdings = tables.frames.holdings();
        let wanted = Wanted {
            mappings: tables.mappings.numbers_given() + 1,
            holdings: holdings.len() + more,
        };
        let fits = mappings::exchange(holdings, &mut self.holdings, wanted.holdings)
            && tables.mappings.make_room(&mut self.mappings);
        if fits { Ok(()) } else { Err(wanted) }
    }
}
