//! `dc zva`: zeroes a block by its address. `DCZID_EL0` contains the size of the block: 64 bytes on
//! most cores, 256 on A64FX, up to 2 KiB by architecture. A hypervisor or kernel may prohibit the
//! instruction.

use core::arch::asm;

use crate::arch::all::blocks::clear_by_blocks;

/// Bit 4 of `DCZID_EL0`: DC ZVA is prohibited.
const PROHIBITED: u64 = 1 << 4;
/// Bits 3:0 of `DCZID_EL0`: log2 of the block's size in words of four bytes.
const BLOCK_LOG2_WORDS: u64 = 0xf;
const WORD: usize = 4;

pub(super) fn is_permitted() -> bool {
    is_permitted_by(dczid())
}

/// # Safety
/// DC ZVA is permitted; `dst` is valid for writes of `len` bytes.
pub(super) unsafe fn clear_dc_zva(dst: *mut u8, len: usize) {
    let block = block_bytes(dczid());
    // SAFETY: `block` is a power of two and what the instruction clears; every block is aligned
    // and within the caller's bytes.
    unsafe {
        clear_by_blocks(dst, len, block, |first, bytes| {
            for offset in (0..bytes).step_by(block) {
                asm!("dc zva, {}", in(reg) first.add(offset), options(nostack, preserves_flags));
            }
        });
    }
}

fn is_permitted_by(dczid: u64) -> bool {
    dczid & PROHIBITED == 0
}

fn block_bytes(dczid: u64) -> usize {
    WORD << (dczid & BLOCK_LOG2_WORDS)
}

fn dczid() -> u64 {
    let value: u64;
    // SAFETY: DCZID_EL0 is readable at EL0 by architecture and reading it has no side effect.
    unsafe {
        asm!("mrs {}, dczid_el0", out(reg) value, options(nomem, nostack, pure, preserves_flags));
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dczid_as_architected_is_decoded() {
        for (dczid, bytes) in [(0, 4), (0b0_0100, 64), (0b0_0110, 256), (0b0_1001, 2048)] {
            assert_eq!((is_permitted_by(dczid), block_bytes(dczid)), (true, bytes));
        }
        assert!(!is_permitted_by(0b1_0100));
    }
}
