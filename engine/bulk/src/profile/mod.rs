//! Profiles: the routine for each length, as data.
//!
//! No single routine is best at every length. Ordinary stores win while the bytes fit a near cache.
//! Streaming stores win if the bytes would only pass through the cache. The limit between them
//! differs from one CPU model to the next (on Skylake-X streaming never wins). A [`Profile`]
//! contains these limits for one machine. [`Profile::builtin`] derives one from the CPU model and
//! the cache sizes. Its figures come from `docs/decisions/0002-crossovers.md`. A program uses the
//! built-in profile until it [installs](Profile::install) its own.
//!
//! The rule behind every default is *never slower than libc*: on a CPU without measurements, libc
//! is used until the bytes exceed the last-level cache.

mod builtin;
mod in_force;
mod plain;

use crate::arch::{ClearFn, CopyFn, Kind, Preset, Routine, clear_routines, copy_routines};
use hugekit_machine::CacheSizes;
use hugekit_machine::cpu::CpuModel;
use hugekit_sys::HUGE_PAGE_BYTES;

pub use in_force::AlreadyInstalled;
pub(crate) use plain::{CLEAR_PLAIN_BELOW, COLD_MOST, COPY_PLAIN_BELOW, PlainBelow, WARM_MOST};

/// A band of lengths: from `from` bytes on, `routine` is used.
#[derive(Clone, Debug)]
pub struct Band<F: 'static> {
    /// Shortest length in bytes for which the routine is used.
    pub from: usize,
    /// The routine, which is available on this machine.
    pub routine: &'static Routine<F>,
}

/// A step function from length to routine: bands in ascending order. The first band begins at 0.
#[derive(Clone, Debug)]
pub struct Bands<F: 'static> {
    table: &'static [Routine<F>],
    bands: Vec<Band<F>>,
}

impl<F> Bands<F> {
    /// Returns the table's first row, which is libc's, at every length.
    fn libc(table: &'static [Routine<F>]) -> Self {
        Self { table, bands: vec![Band { from: 0, routine: &table[0] }] }
    }

    /// Adds a band from `from` on, with a routine for the first of `purposes` for which this CPU
    /// has a routine. Unchanged if this CPU has none.
    fn then(mut self, from: usize, purposes: &[Preset]) -> Self {
        if let Some(routine) = purposes.iter().find_map(|&purpose| self.preset(purpose)) {
            self.bands.retain(|band| band.from < from);
            self.bands.push(Band { from, routine });
        }
        self
    }

    /// Returns the last row of the table for this purpose that this CPU has.
    fn preset(&self, purpose: Preset) -> Option<&'static Routine<F>> {
        let mut rows = self.table.iter().rev().filter(|row| row.preset() == Some(purpose));
        rows.find(|row| row.is_available())
    }

    /// Returns the bands, ascending.
    #[must_use]
    pub fn as_slice(&self) -> &[Band<F>] {
        &self.bands
    }

    /// Returns the routine for `len` bytes.
    #[inline]
    #[must_use]
    pub fn routine_for(&self, len: usize) -> &'static Routine<F> {
        self.last(|band| band.from <= len)
    }

    /// Returns the routine for `len` bytes that are to stay in the cache.
    #[inline]
    #[must_use]
    pub fn cached_for(&self, len: usize) -> &'static Routine<F> {
        self.last(|band| band.from <= len && band.routine.kind() == Kind::Cached)
    }

    #[inline]
    fn last(&self, fits: impl Fn(&Band<F>) -> bool) -> &'static Routine<F> {
        let band = self.bands.iter().rev().find(|band| fits(band));
        band.map_or(&self.table[0], |band| band.routine)
    }
}

/// The place of an operation's bytes before and after it: in the cache or in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum CacheState {
    /// Nothing is known: they may be in the cache now, and they may be used next.
    Warm,
    /// They are not in the cache and need not get there.
    Cold,
}

/// Routines by length, for memory in the cache and for memory out of the cache.
#[derive(Clone, Debug)]
pub struct Choice<F: 'static> {
    /// The routines for bytes of which nothing is known: they may be in the cache now, and they may
    /// be used next.
    pub warm: Bands<F>,
    /// The routines for bytes that are not in the cache and need not get there.
    pub cold: Bands<F>,
}

impl Profile {
    /// Returns the built-in profile for a CPU of this model with these caches. Each cache size must
    /// be the share of this machine: for the last level of a virtual machine, pass the share that
    /// it can expect.
    #[must_use]
    #[doc(hidden)]
    pub fn builtin(cpu: CpuModel, caches: CacheSizes) -> Self {
        builtin::profile_of(cpu, caches)
    }

    /// Makes a profile without allocation: libc's routines for all lengths, on one thread.
    fn of_libc() -> Self {
        Self {
            clear: Choice::of_libc(clear_routines()),
            copy: Choice::of_libc(copy_routines()),
            near_bytes: 0,
            near_bytes_all: 0,
            parallel_from: usize::MAX,
            min_chunk: HUGE_PAGE_BYTES,
            thread_cap: 1,
        }
    }
}

impl<F> Choice<F> {
    /// Makes a choice without bands: every length uses libc's routine.
    fn of_libc(table: &'static [Routine<F>]) -> Self {
        let bands = || Bands { table, bands: Vec::new() };
        Self { warm: bands(), cold: bands() }
    }

    /// Returns the bands for memory in this state.
    #[inline]
    pub(crate) fn bands(&self, state: CacheState) -> &Bands<F> {
        match state {
            CacheState::Warm => &self.warm,
            CacheState::Cold => &self.cold,
        }
    }
}

impl<F> Bands<F> {
    /// Returns the length below which all bands use libc's routine, at most `most`.
    fn libc_below(&self, most: usize) -> usize {
        let libc = &self.table[0];
        let other = self.bands.iter().find(|band| band.routine != libc);
        other.map_or(most, |band| band.from.min(most))
    }
}

/// A profile of one machine: the fastest routine for each length, and the numbers that limit
/// threads. All lengths are in bytes.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Profile {
    /// Routines that clear.
    pub clear: Choice<ClearFn>,
    /// Routines that copy.
    pub copy: Choice<CopyFn>,
    /// Bytes of the near window if only the target is used next.
    pub near_bytes: usize,
    /// Bytes of the near window if all bytes are used next.
    pub near_bytes_all: usize,
    /// Shortest length in bytes that [`Threads::Auto`](crate::Threads::Auto) divides among threads.
    pub parallel_from: usize,
    /// Shortest chunk in bytes. Dividing shorter lengths costs more than it saves.
    pub min_chunk: usize,
    /// The most threads that [`Threads::Auto`](crate::Threads::Auto) uses, the calling thread
    /// included.
    pub thread_cap: usize,
}
