//! The kind of a fault, from the syndrome that the kernel passes to signal handlers.

use std::mem::size_of;

/// The magic number of the record that holds the syndrome, from the kernel's `asm/sigcontext.h`.
/// The syndrome follows the record's head of eight bytes.
const ESR_MAGIC: u32 = 0x4553_5201;

/// The number of bytes of records in a context. The records begin behind the registers, at a
/// multiple of 16.
const RECORDS: usize = 4096;
const FIRST: usize = 288;

/// Exception classes (Arm ARM, ESR_EL1): a program's access to data, and a program's access to an
/// instruction.
const DATA_ABORT: u64 = 0x24;
const INSTRUCTION_ABORT: u64 = 0x20;

/// Bits of a data abort: a write, and an instruction of cache maintenance, which the kernel counts
/// as a read.
const WRITE: u64 = 1 << 6;
const CACHE_MAINTENANCE: u64 = 1 << 8;

/// Returns true if a fault was a write. `None` if the context of its signal does not contain the
/// syndrome, as in emulators.
///
/// # Safety
/// `context` is the context that the kernel passed to a handler.
pub unsafe fn is_write(context: *const std::ffi::c_void) -> Option<bool> {
    // SAFETY: `context` is the `ucontext_t` that the kernel gave to a handler: the contract of this function.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    let records = (&raw const context.uc_mcontext).cast::<u8>().wrapping_add(FIRST);
    // SAFETY: the records are the end of `uc_mcontext`, whose size says so (the assertion below); bytes have no
    // invalid values.
    let records = unsafe { std::slice::from_raw_parts(records, RECORDS) };
    is_write_by(syndrome(records)?)
}

const _: () = assert!(size_of::<libc::mcontext_t>() == FIRST + RECORDS);

/// Returns the syndrome of the first record that holds a syndrome. The last record's head is zero.
fn syndrome(mut records: &[u8]) -> Option<u64> {
    loop {
        let (magic, rest) = records.split_first_chunk()?;
        let (size, rest) = rest.split_first_chunk()?;
        if u32::from_ne_bytes(*magic) == ESR_MAGIC {
            return rest.first_chunk().map(|syndrome| u64::from_ne_bytes(*syndrome));
        }
        let size = u32::from_ne_bytes(*size) as usize;
        records = records.get(size..).filter(|_| size > 0)?;
    }
}

fn is_write_by(syndrome: u64) -> Option<bool> {
    match syndrome >> 26 & 0x3f {
        DATA_ABORT => Some(syndrome & WRITE != 0 && syndrome & CACHE_MAINTENANCE == 0),
        INSTRUCTION_ABORT => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(magic: u32, size: u32, first: u64) -> Vec<u8> {
        let mut record = [magic.to_ne_bytes(), size.to_ne_bytes()].concat();
        record.extend(first.to_ne_bytes());
        record.resize(size as usize, 0);
        record
    }

    #[test]
    fn syndrome_is_found_behind_other_records() {
        let (vectors, esr) = (record(0x4650_8001, 528, 7), record(ESR_MAGIC, 16, 0x9200_0047));
        let end = vec![0; 16];
        assert_eq!(syndrome(&[vectors.clone(), esr, end.clone()].concat()), Some(0x9200_0047));
        assert_eq!(syndrome(&[vectors.clone(), end].concat()), None);
        assert_eq!(syndrome(&vectors), None);
        assert_eq!(syndrome(&vectors[..100]), None);
        assert_eq!(syndrome(&record(ESR_MAGIC, 12, 0)[..12]), None);
        assert_eq!(syndrome(&[]), None);
    }

    #[test]
    fn syndrome_of_a_write_is_told_from_others() {
        for (class, bits, is_write) in [
            (DATA_ABORT, WRITE, Some(true)),
            (DATA_ABORT, 0, Some(false)),
            (DATA_ABORT, WRITE | CACHE_MAINTENANCE, Some(false)),
            (INSTRUCTION_ABORT, 0, Some(false)),
            (0x3c, WRITE, None),
        ] {
            assert_eq!(is_write_by(class << 26 | bits), is_write);
        }
    }
}
