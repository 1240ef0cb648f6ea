//! Routines: functions that clear or copy bytes on this CPU.
//!
//! One table for clears and one for copies list every routine of an architecture, available or not.
//! A row contains everything that decides about the use of its routine. Tests, the lab, `doctor`,
//! `--routine`, the built-in profile and learning all read the table, and no other file names a
//! routine to choose it. Only this file depends on the architecture of the build. Each architecture
//! exports the same names.
//!
//! A routine is either *cached* or *streaming*. A cached routine uses ordinary stores, and the
//! bytes end in the cache of the CPU that wrote them. A streaming routine uses non-temporal stores.
//! They do not read the line first and evict nothing, and the bytes end in memory. Streaming stores
//! are more weakly ordered than ordinary stores, and even a release store does not wait for them.
//! So a routine returns an [`Unfenced`] token. Another thread may see the memory only after
//! [`Unfenced::publish`].
//!
//! No function here makes a system call or allocates. A feature that only the kernel knows belongs into
//! `hugekit_machine::cpu`.

#![allow(unsafe_code)]

use std::marker::PhantomData;

mod all;

#[cfg(target_arch = "aarch64")]
#[path = "aarch64/mod.rs"]
mod imp;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
use all::portable as imp;
#[cfg(target_arch = "x86_64")]
#[path = "x86_64/mod.rs"]
mod imp;

pub use imp::{abandonable, is_write, runs_on_valgrind};

/// The kind of a routine's stores, which decides if the written bytes stay in the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Ordinary stores; the lines are allocated in the cache of the CPU that runs them.
    Cached,
    /// Non-temporal or otherwise cache-bypassing stores. They are weakly ordered until a fence.
    Streaming,
}

/// A routine that clears or copies memory: a row of a table. `F` is the type of its function:
/// [`ClearFn`] or [`CopyFn`].
#[derive(Debug)]
pub struct Routine<F> {
    name: &'static str,
    kind: Kind,
    needs: Feature,
    /// `None` if the built-in profile never chooses the routine. Learning and callers still can.
    preset: Option<Preset>,
    compared: Compared,
    run: F,
}

/// A feature of the CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Feature {
    /// The CPU feature, in the words of the CPU's maker.
    name: &'static str,
    is_available: fn() -> bool,
}

/// The purposes for which the built-in profile chooses a routine before anything is measured. If the
/// CPU has several rows of one purpose, the profile chooses the last of them in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Preset {
    /// The C library's routine. Only the first row has this preset.
    Libc,
    /// For bytes that a near cache holds: a routine of vectors.
    Cached,
    /// For bytes that only pass through the cache.
    Streaming,
    /// For bytes that only pass through the cache: a copy that advances in several pages together.
    Interleaved,
    /// For bytes that only pass through the cache: an instruction that clears a whole line.
    Lines,
}

/// The classes of operations in which learning compares a routine with the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(dead_code, reason = "the portable architecture has the C library's routines only")]
pub(crate) enum Compared {
    /// The class of bytes that a cache may hold: warm, and shorter than 32 MiB.
    Held,
    /// The class of bytes that only pass through the cache: cold, or 32 MiB and more. The fastest
    /// streaming routine of this class is compared in the other classes, too.
    Passing,
    /// All classes. This is for routines that use the cache, but do not read a line before they
    /// write it.
    All,
}

/// A function that clears memory. The arguments are the address and the number of bytes.
pub type ClearFn = unsafe fn(*mut u8, usize);

/// A function that copies memory. The arguments are the destination, the source and the number of
/// bytes.
pub type CopyFn = unsafe fn(*mut u8, *const u8, usize);

/// A routine that clears memory.
pub type ClearRoutine = Routine<ClearFn>;

/// A routine that copies memory.
pub type CopyRoutine = Routine<CopyFn>;

/// The feature of routines that every CPU of the architecture has.
pub(crate) const ANY_CPU: Feature = Feature { name: "nothing", is_available: || true };

impl<F: Copy> Routine<F> {
    /// Returns a row of the C library's routine.
    const fn libc(name: &'static str, run: F) -> Self {
        Self::cached(name, ANY_CPU, Some(Preset::Libc), Compared::All, run)
    }

    /// Returns a row of a routine that stores through the cache.
    const fn cached(
        name: &'static str,
        needs: Feature,
        preset: Option<Preset>,
        compared: Compared,
        run: F,
    ) -> Self {
        Self { name, kind: Kind::Cached, needs, preset, compared, run }
    }

    /// Returns a row of a routine that bypasses the cache.
    #[allow(dead_code, reason = "the portable architecture has the C library's routines only")]
    const fn streaming(name: &'static str, needs: Feature, preset: Option<Preset>, run: F) -> Self {
        let compared = Compared::Passing;
        Self { name, kind: Kind::Streaming, needs, preset, compared, run }
    }
}

impl<F> Routine<F> {
    /// Returns the routine's name, as `--routine` accepts it and records print it.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the kind of the routine's stores.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Returns the CPU feature that the routine needs, in the CPU maker's words ("AVX2").
    #[must_use]
    pub const fn needs(&self) -> &'static str {
        self.needs.name
    }

    /// Returns true if this CPU and this kernel support the routine. The first call detects this;
    /// later calls only load the result.
    #[must_use]
    pub fn is_available(&self) -> bool {
        (self.needs.is_available)()
    }

    /// Returns the purpose for which the built-in profile chooses the routine.
    pub(crate) const fn preset(&self) -> Option<Preset> {
        self.preset
    }

    /// Returns the classes in which learning compares the routine.
    pub(crate) const fn compared(&self) -> Compared {
        self.compared
    }

    fn token(&self) -> Unfenced {
        Unfenced { streamed: self.kind == Kind::Streaming, thread: PhantomData }
    }
}

impl ClearRoutine {
    /// Clears `len` bytes from `dst` on. Any alignment is valid. A length of 0 does nothing.
    ///
    /// # Safety
    /// - `dst` is valid for writes of `len` bytes, and no other thread or device accesses these
    ///   bytes during the call.
    /// - [`is_available`](Self::is_available) has returned true.
    #[inline]
    pub unsafe fn run(&self, dst: *mut u8, len: usize) -> Unfenced {
        // SAFETY: the bytes are valid and the CPU has the routine's features (the contract of this function), which is
        // all that a row of the table asks.
        unsafe { (self.run)(dst, len) };
        self.token()
    }
}

impl CopyRoutine {
    /// Copies `len` bytes from `src` to `dst`. Any alignment is valid. A length of 0 does nothing.
    ///
    /// # Safety
    /// - `src` is valid for reads of `len` bytes, and `dst` is valid for writes of `len` bytes. The
    ///   two ranges do not overlap. During the call no other thread or device writes to the source,
    ///   or accesses the destination.
    /// - [`is_available`](Self::is_available) has returned true.
    #[inline]
    pub unsafe fn run(&self, dst: *mut u8, src: *const u8, len: usize) -> Unfenced {
        // SAFETY: the bytes are valid and the CPU has the routine's features (the contract of this function), which is
        // all that a row of the table asks.
        unsafe { (self.run)(dst, src, len) };
        self.token()
    }
}

impl<F> PartialEq for Routine<F> {
    /// Compares the names, which are unique within a table.
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl<F> Eq for Routine<F> {}

/// Returns a clock of unspecified units that counts evenly on every CPU of a usual machine. The
/// clock is only for the comparison of two durations. The function makes no system call. Earlier
/// loads have completed when it reads the clock.
#[inline]
pub(crate) fn ticks() -> u64 {
    imp::ticks()
}

/// Returns every clear routine of this architecture, available or not. `memset` comes first and is
/// available everywhere.
#[must_use]
pub const fn clear_routines() -> &'static [ClearRoutine] {
    imp::CLEAR_ROUTINES
}

/// Returns the clear routine of that name, if this architecture has one.
#[must_use]
pub fn clear_routine(name: &str) -> Option<&'static ClearRoutine> {
    clear_routines().iter().find(|routine| routine.name == name)
}

/// Returns every copy routine of this architecture, available or not. `memcpy` comes first and is
/// available everywhere.
#[must_use]
pub const fn copy_routines() -> &'static [CopyRoutine] {
    imp::COPY_ROUTINES
}

/// Returns the copy routine of that name, if this architecture has one.
#[must_use]
pub fn copy_routine(name: &str) -> Option<&'static CopyRoutine> {
    copy_routines().iter().find(|routine| routine.name == name)
}

/// Returns the copy routine that leaves the destination in the cache and prefetches the source past
/// the cache by `prefetchnta` or `ldnp`. On an architecture without such a hint, returns `memcpy`.
/// The routine is available on this CPU.
#[must_use]
pub fn copy_once_routine() -> &'static CopyRoutine {
    &imp::COPY_ONCE
}

/// A token for bytes that were written and that other CPUs may not see in order yet.
///
/// [`and`](Self::and) joins the tokens of one operation, and the end of the operation publishes the
/// joined token. So an operation needs one fence, not one per page. A dropped token is published
/// too, so a forgotten token costs time but is still correct.
#[must_use = "streamed bytes may be shown to other threads only after publish()"]
#[derive(Debug)]
pub struct Unfenced {
    streamed: bool,
    /// A fence orders the stores of the thread that executes it, so a token must stay in its
    /// thread.
    thread: PhantomData<*const ()>,
}

impl Unfenced {
    /// Returns the token of an operation that has written nothing yet.
    pub const fn nothing() -> Self {
        Self { streamed: false, thread: PhantomData }
    }

    /// Joins the tokens of two parts of one operation.
    pub fn and(mut self, mut other: Self) -> Self {
        let streamed = self.streamed | other.streamed;
        self.streamed = false;
        other.streamed = false;
        Self { streamed, thread: PhantomData }
    }

    /// Returns true if any bytes were written by streaming stores.
    #[must_use]
    pub const fn is_pending(&self) -> bool {
        self.streamed
    }

    /// Makes streamed stores as visible as ordinary stores. A release store, a lock or a channel
    /// that publishes ordinary stores to other threads then publishes these stores too. Costs
    /// nothing if no store was streamed.
    pub fn publish(self) {}
}

impl Drop for Unfenced {
    fn drop(&mut self) {
        if self.streamed {
            imp::store_fence();
        }
    }
}
