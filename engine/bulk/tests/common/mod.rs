//! What the engine can be told, at random: the same for clearing and for copying.

use hugekit::{Method, Operation, Reuse};
use hugekit_bulk::arch::Routine;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};

pub(crate) const REUSES: [Reuse; 4] = [Reuse::Unknown, Reuse::Target, Reuse::All, Reuse::None];

/// Any combination of hints; positions are made to fit the memory and the table later.
#[derive(Clone, Debug)]
pub(crate) struct Hints {
    reuse: Reuse,
    target: Option<Index>,
    near_bytes: Option<usize>,
    routine: Option<Index>,
}

pub(crate) fn hints() -> impl Strategy<Value = Hints> {
    (
        select(&REUSES[..]),
        option::of(any::<Index>()),
        option::of(0_usize..1 << 20),
        option::of(any::<Index>()),
    )
        .prop_map(|(reuse, target, near_bytes, routine)| Hints {
            reuse,
            target,
            near_bytes,
            routine,
        })
}

/// Lengths small and large: around pages, and beyond where streaming starts.
pub(crate) fn len() -> impl Strategy<Value = usize> {
    prop_oneof![0_usize..20_000, 1_usize << 20..(5 << 20)]
}

impl Hints {
    /// An operation on `len` bytes that has been told all this.
    pub(crate) fn operation<F: Method>(
        &self,
        len: usize,
        table: &'static [Routine<F>],
    ) -> Operation<'static, F> {
        let available: Vec<_> = table.iter().filter(|routine| routine.is_available()).collect();
        let mut operation = Operation::new().reuse(self.reuse);
        if let Some(target) = self.target.filter(|_| len > 0) {
            operation = operation.target(target.index(len));
        }
        if let Some(bytes) = self.near_bytes {
            operation = operation.near_bytes(bytes);
        }
        if let Some(routine) = self.routine {
            operation = operation.routine(available[routine.index(available.len())]);
        }
        operation
    }
}
