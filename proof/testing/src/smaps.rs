//! What the page tables have of this process's memory.
#![allow(unsafe_code)]

use std::fs;
use std::ops::Range;

use rustix::mm::{Advice, madvise};

/// Bytes of a field of `/proc/self/smaps`, such as `AnonHugePages`, in the mappings of these addresses. They are whole
/// pages of mappings that have no advice about the order of accesses.
///
/// # Panics
/// Not all of the addresses are mapped, or the kernel's file has another form.
#[must_use]
pub fn bytes_at(addresses: &Range<usize>, field: &str) -> u64 {
    let advise = |advice| {
        let start = std::ptr::with_exposed_provenance_mut(addresses.start);
        // SAFETY: advice about the order of accesses changes no byte.
        unsafe { madvise(start, addresses.len(), advice) }.unwrap();
    };
    // The kernel joins mappings that are alike, and counts them together. With advice of their own these are apart.
    advise(Advice::Random);
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    advise(Advice::Normal);
    let (mut is_within, mut kib) = (false, 0);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let first = words.next().unwrap();
        if let Some((start, end)) = first.split_once('-') {
            let address = |text| usize::from_str_radix(text, 16).unwrap();
            is_within = addresses.start <= address(start) && address(end) <= addresses.end;
        } else if is_within && first.strip_suffix(':') == Some(field) {
            kib += words.next().unwrap().parse::<u64>().unwrap();
        }
    }
    kib << 10
}
