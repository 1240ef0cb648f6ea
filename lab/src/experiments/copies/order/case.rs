//! The cases of the order of copying: a method, the requested byte, and the state of the caches.

use hugekit_bulk::sweep::SUBPAGE_BYTES;
use hugekit_machine::size::Size;

use super::antagonist::Pressure;
use super::copier::Copier;
use super::{FOLIO, OrderWorkload};
use crate::experiments::clear::target_of;

/// The caches that a writer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cache {
    AsItIs,
    Scarce,
    Contended,
}

impl Cache {
    /// The states of the cache that this machine offers.
    fn all(pressure: Pressure) -> impl Iterator<Item = Self> {
        let scarce = pressure.scarce.map(|_| Self::Scarce);
        let contended = pressure.contended.map(|_| Self::Contended);
        [Self::AsItIs].into_iter().chain(scarce).chain(contended)
    }

    const fn suffix(self) -> &'static str {
        match self {
            Self::AsItIs => "",
            Self::Scarce => "-scarce",
            Self::Contended => "-contended",
        }
    }
}

/// The work of a sample. The requested byte is the first of the page, or anywhere in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct OrderCase {
    pub(super) method: &'static str,
    pub(super) is_anywhere: bool,
    pub(super) cache: Cache,
}

impl OrderCase {
    /// Every case there is, the methods of one workload beside each other.
    pub(super) fn all(copier: Copier, pressure: Pressure) -> Vec<Self> {
        let targets = [false, true].into_iter();
        let workloads = targets
            .flat_map(|is_anywhere| Cache::all(pressure).map(move |cache| (is_anywhere, cache)));
        let of = |(is_anywhere, cache)| {
            copier.methods().map(move |method| Self { method, is_anywhere, cache })
        };
        workloads.flat_map(of).collect()
    }

    pub(super) fn label(self, workload: OrderWorkload) -> String {
        let target = if self.is_anywhere { "anywhere" } else { "first" };
        let cache = self.cache.suffix();
        match workload.used {
            FOLIO => format!("{}-{target}{cache}", workload.writers),
            used => format!("{}-touch-{}-{target}{cache}", Size(FOLIO), Size(used)),
        }
    }

    /// The start of the target's subpage.
    pub(super) fn target(self, folio: usize) -> usize {
        if self.is_anywhere { target_of(folio, FOLIO) / SUBPAGE_BYTES * SUBPAGE_BYTES } else { 0 }
    }
}
