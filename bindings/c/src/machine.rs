//! Facts about the machine, and the profile that the library uses.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int};
use std::mem::offset_of;

use ::hugekit_machine::limits::Allowed;
use ::hugekit_machine::userfaultfd::{Userfaultfd, Uses};
use ::hugekit_machine::{Memory, Root, Topology, cache, hugepages};
use engine::{ClearOptions, CopyOptions, HeapShortage, Profile};
use hugekit_bulk::arch::{Routine, clear_routines, copy_routines};
use hugekit_bulk::learning;
use hugekit_sys::sync::First;

use crate::status::{Answer, Refusal, answer, c_string, hugekit_status};
use crate::versioned::{OutParameter, Versioned};

/// Facts about the machine that programs may need. Unknown facts are 0. `hugekit_doctor` returns
/// more facts.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct hugekit_machine {
    /// `sizeof(hugekit_machine)`, set by the caller.
    pub size: usize,
    /// Bytes of a base page.
    pub page_size: usize,
    /// CPUs that the calling thread may run on.
    pub allowed_cpus: usize,
    /// The number of NUMA nodes.
    pub nodes: usize,
    /// Bytes of memory.
    pub memory_total: u64,
    /// Bytes of memory that are available without swapping.
    pub memory_available: u64,
    /// Bytes of a core's second-level cache.
    pub l2_bytes: usize,
    /// Bytes of the last-level cache.
    pub llc_bytes: usize,
    /// Reserved huge pages of 2 MiB.
    pub huge_2m_total: u64,
    /// Reserved huge pages of 2 MiB that are free and not promised to a mapping.
    pub huge_2m_free: u64,
    /// Reserved huge pages of 1 GiB.
    pub huge_1g_total: u64,
    /// Reserved huge pages of 1 GiB that are free and not promised to a mapping.
    pub huge_1g_free: u64,
    /// A `hugekit_userfaultfd`. Forks, snapshots and clearing at the first access need it.
    pub userfaultfd: u32,
    /// Zero.
    pub reserved: u32,
}

/// The uses of userfaultfd(2) that are permitted to this process.
#[repr(u32)]
pub enum hugekit_userfaultfd {
    /// No use, or unknown.
    None = 0,
    /// Faults of the program's own code, handled in place. System calls that write to such memory
    /// fail with EFAULT.
    UserFaults = 1,
    /// All faults, including those of system calls and of KVM.
    AllFaults = 2,
}

// SAFETY: integers, the first of which is the size.
unsafe impl Versioned for hugekit_machine {
    const NAME: &str = "hugekit_machine";
    const FIRST: usize = offset_of!(Self, reserved) + size_of::<u32>();
}

/// Fills `machine` with the facts at this moment. The call reads `/proc` and `/sys`, and lasts at
/// most a millisecond.
///
/// # Safety
/// `machine` is a `hugekit_machine` whose size is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_machine_query(machine: *mut hugekit_machine) -> hugekit_status {
    // SAFETY: `machine` is NULL, which `needed` refuses, or can be written for the size that it states.
    answer((|| unsafe {
        let place = OutParameter::needed(machine)?;
        HeapShortage::check()?;
        place.fill(&query(&Root::default()));
        Ok(())
    })())
}

fn query(root: &Root) -> hugekit_machine {
    let memory = Memory::read(root).ok();
    let caches = cache::read(root).ok();
    let pools = hugepages::read(root).unwrap_or_default();
    let pages = |bytes| {
        let pool = pools.iter().find(|pool| pool.page_size == bytes);
        pool.map_or((0, 0), |pool| (pool.total, pool.unpromised()))
    };
    let ((huge_2m_total, huge_2m_free), (huge_1g_total, huge_1g_free)) =
        (pages(engine::HUGE_PAGE_BYTES as u64), pages(1 << 30));
    let uses = Userfaultfd::read(root).map(|userfaultfd| userfaultfd.uses);
    hugekit_machine {
        size: 0,
        page_size: engine::pool::Backing::Base.page_size(),
        allowed_cpus: Allowed::read(root).map_or(0, |allowed| allowed.cpus.len()),
        nodes: Topology::read(root).map_or(0, |topology| topology.nodes.len()),
        memory_total: memory.as_ref().map_or(0, |memory| memory.total),
        memory_available: memory.as_ref().map_or(0, |memory| memory.available),
        l2_bytes: caches.as_ref().map_or(0, |caches| caches.l2),
        llc_bytes: caches.as_ref().map_or(0, |caches| caches.llc),
        huge_2m_total,
        huge_2m_free,
        huge_1g_total,
        huge_1g_free,
        userfaultfd: match uses {
            Ok(Uses::Whole | Uses::WholeByDevice) => hugekit_userfaultfd::AllFaults as u32,
            Ok(Uses::UserModeOnly) => hugekit_userfaultfd::UserFaults as u32,
            _ => hugekit_userfaultfd::None as u32,
        },
        reserved: 0,
    }
}

/// Stores in `*text` the output of `hugekit doctor --json`: findings with verdicts and remedies, as
/// JSON in UTF-8. Free the text with `hugekit_string_free`.
///
/// # Safety
/// `text` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_doctor(text: *mut *mut c_char) -> hugekit_status {
    // SAFETY: `text` is NULL, which is refused, or can be written.
    answer((|| unsafe {
        let place = text.as_mut().ok_or_else(|| Refusal::invalid("text is NULL"))?;
        *place = report()?.into_raw();
        Ok(())
    })())
}

fn report() -> Answer<CString> {
    HeapShortage::check()?;
    let report = hugekit_doctor::examine(&Root::default())
        .ok_or_else(|| Refusal::unsupported("neither /proc nor /sys can be read"))?;
    let json =
        serde_json::to_vec(&report).map_err(|error| Refusal::unsupported(error.to_string()))?;
    Ok(c_string(json))
}

/// Frees a text of the library. Does nothing for NULL.
///
/// # Safety
/// `text` is NULL, or a text of the library that was not freed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_string_free(text: *mut c_char) {
    if !text.is_null() {
        // SAFETY: not NULL, so `text` came from `CString::into_raw` and was not freed before.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// The built-in thresholds that choose routines and threads.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hugekit_profile {
    /// `sizeof(hugekit_profile)`, set by the caller.
    pub size: usize,
    /// Bytes around a target that stay in the cache.
    pub near_bytes: usize,
    /// Bytes that stay in the cache if all of the memory is used next.
    pub near_bytes_all: usize,
    /// Shortest length in bytes that is divided among threads, if the options do not set the number
    /// of threads.
    pub parallel_from: usize,
    /// Shortest piece in bytes. Dividing shorter lengths costs more than it saves.
    pub min_chunk: usize,
    /// The highest number of threads, if the options do not set the number of threads.
    pub thread_cap: usize,
}

// SAFETY: integers, the first of which is the size.
unsafe impl Versioned for hugekit_profile {
    const NAME: &str = "hugekit_profile";
    const FIRST: usize = offset_of!(Self, thread_cap) + size_of::<usize>();
}

/// Fills `profile` with the thresholds in use.
///
/// # Safety
/// `profile` is a `hugekit_profile` whose size is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_profile_query(profile: *mut hugekit_profile) -> hugekit_status {
    let Profile { near_bytes, near_bytes_all, parallel_from, min_chunk, thread_cap, .. } =
        *Profile::current();
    let answered = hugekit_profile {
        size: 0,
        near_bytes,
        near_bytes_all,
        parallel_from,
        min_chunk,
        thread_cap,
    };
    // SAFETY: `profile` is NULL, which `needed` refuses, or can be written for the size that it states.
    answer(unsafe { OutParameter::needed(profile) }.map(|place| place.fill(&answered)))
}

/// Returns the name of the routine that would clear `len` bytes now, without options, for example
/// `"memset"` or `"avx2_streaming"`. The text is static.
#[unsafe(no_mangle)]
pub extern "C" fn hugekit_clear_routine(len: usize) -> *const c_char {
    name_of(ClearOptions::new().chosen_for(len).routine)
}

/// Returns the name of the routine that would copy `len` bytes now, without options. The text is
/// static.
#[unsafe(no_mangle)]
pub extern "C" fn hugekit_copy_routine(len: usize) -> *const c_char {
    name_of(CopyOptions::new().chosen_for(len).routine)
}

/// Switches learning on or off: clears and copies of this process find the fastest routine by
/// timing their own work. By default on. With 0, timings are kept but not used. Any thread may call
/// this at any time.
#[unsafe(no_mangle)]
pub extern "C" fn hugekit_set_learning(enabled: c_int) {
    learning::set_enabled(enabled != 0);
}

/// Discards all timings: the next operations begin as in a new process.
#[unsafe(no_mangle)]
pub extern "C" fn hugekit_forget_learned() {
    learning::forget();
}

fn name_of(routine: &str) -> *const c_char {
    static NAMES: First<HashMap<&'static str, CString>> = First::new();
    let names = NAMES.get_or_make(|| {
        let clear = clear_routines().iter().map(Routine::name);
        let copy = copy_routines().iter().map(Routine::name);
        clear.chain(copy).map(|name| (name, c_string(name))).collect()
    });
    names.get(routine).map_or(c"", CString::as_c_str).as_ptr()
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    #[test]
    fn every_routine_has_its_name() {
        for routine in clear_routines() {
            // SAFETY: a static text.
            let name = unsafe { CStr::from_ptr(name_of(routine.name())) };
            assert_eq!(name.to_str(), Ok(routine.name()));
        }
    }

    #[test]
    fn a_machine_of_which_nothing_is_known_is_all_zeroes_but_its_pages() {
        let nowhere = query(&Root::at("/nonexistent"));
        assert_eq!((nowhere.memory_total, nowhere.nodes, nowhere.huge_2m_total), (0, 0, 0));
        assert!(nowhere.page_size.is_power_of_two());
    }
}
