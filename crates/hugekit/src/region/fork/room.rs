//! Room for what joins a family, made before the gate is taken: who has the gate alone does not allocate. A handler may
//! have interrupted the allocator, and wait for the gate.

use super::frames::Holding;
use super::member::Member;

/// Vectors that are longer than the family's, if those are too short.
#[derive(Debug, Default)]
pub(super) struct Room {
    members: Vec<Member>,
    holdings: Vec<Holding>,
}

/// How long they have to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    members: usize,
    holdings: usize,
}

impl Room {
    /// Allocates it.
    pub(super) fn grow(&mut self, wanted: Wanted) {
        self.members.reserve(2 * wanted.members);
        self.holdings.reserve(2 * wanted.holdings);
    }

    /// Sees to it that there is room for a member and so many holdings more. The room has the shorter vectors then.
    pub(super) fn give(
        &mut self,
        members: &mut Vec<Member>,
        holdings: &mut Vec<Holding>,
        more: usize,
    ) -> Result<(), Wanted> {
        let wanted = Wanted { members: members.len() + 1, holdings: holdings.len() + more };
        let fits = exchange(members, &mut self.members, wanted.members)
            && exchange(holdings, &mut self.holdings, wanted.holdings);
        if fits { Ok(()) } else { Err(wanted) }
    }
}

/// Moves values to a longer vector, if theirs is too short; whether one is long enough.
fn exchange<T>(values: &mut Vec<T>, longer: &mut Vec<T>, wanted: usize) -> bool {
    if values.capacity() < wanted && longer.capacity() >= wanted {
        longer.append(values);
        std::mem::swap(values, longer);
    }
    values.capacity() >= wanted
}
