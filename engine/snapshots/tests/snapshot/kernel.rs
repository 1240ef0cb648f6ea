//! System calls that write to protected memory, and copies into it.

use std::io::{self, Read, Write};

use hugekit::HUGE_PAGE_BYTES as HUGE;
use hugekit::fault::FaultMode;

use crate::fixture::{Check, PAGE, copied, of_all, words};
use crate::memory::Memory;

fn system_call_into_a_snapshots_memory_writes_where_it_may(fault_mode: FaultMode) {
    let memory = Memory::filled(4 * HUGE, true, 5);
    let snapshot = of_all(fault_mode, &memory);
    let in_place = snapshot.serving().unwrap().fault_mode == FaultMode::InPlace;
    assert_eq!(in_place, fault_mode == FaultMode::InPlace);
    let (mut read, mut write) = io::pipe().unwrap();
    write.write_all(&[6; PAGE]).unwrap();
    // SAFETY: only this thread uses the memory.
    let bytes = unsafe { std::slice::from_raw_parts_mut(memory.start(), memory.len()) };
    match read.read(&mut bytes[HUGE..HUGE + PAGE]) {
        Ok(count) => assert!(!in_place && count == PAGE),
        Err(error) => {
            assert!(in_place);
            assert_eq!(error.raw_os_error(), Some(libc::EFAULT));
            snapshot.prepare_write(HUGE..HUGE + PAGE).unwrap();
            assert_eq!(read.read(&mut bytes[HUGE..HUGE + PAGE]).unwrap(), PAGE);
        }
    }
    assert_eq!(bytes[HUGE], 6);
    // The memory that it is read from needs no handler.
    assert_eq!(write.write(&bytes[3 * HUGE..][..PAGE]).unwrap(), PAGE);
    assert!(words(&copied(snapshot)).all(|word| word == 5));
}

/// The destination may be what other snapshots, or this one, protect.
fn copy_into_protected_memory_delivers_every_byte(fault_mode: FaultMode) {
    let (memory, other) = (Memory::filled(4 * HUGE, true, 5), Memory::filled(4 * HUGE, true, 6));
    let (snapshot, of_other) = (of_all(fault_mode, &memory), of_all(fault_mode, &other));
    // SAFETY: only this thread uses the two.
    let (bytes, others) = unsafe {
        (
            std::slice::from_raw_parts_mut(memory.start(), memory.len()),
            std::slice::from_raw_parts_mut(other.start(), other.len()),
        )
    };
    snapshot.read_at(0, others).unwrap();
    of_other.read_at(HUGE, &mut bytes[..HUGE]).unwrap();
    assert!(words(others).all(|word| word == 5) && words(&bytes[..HUGE]).all(|word| word == 6));
    snapshot.read_at(HUGE / 2, &mut bytes[HUGE..3 * HUGE]).unwrap();
    assert!(words(&bytes[HUGE..]).all(|word| word == 5));
    assert!(words(&copied(of_other)).all(|word| word == 6));
    snapshot.copy_to(bytes).unwrap();
    assert!(words(bytes).all(|word| word == 5));
}

pub(crate) const CHECKS: &[Check] = hugekit_testing::checks![
    system_call_into_a_snapshots_memory_writes_where_it_may,
    copy_into_protected_memory_delivers_every_byte,
];
