//! aarch64 with pages of 4 KiB and addresses of 52 bits (LPA2), which sets accessed and dirty itself
//! (`FEAT_HAFDBS`): dirty by taking read-only away.

use hugekit_pte::Arm64;
use libtest_mimic::Failed;

use crate::cpu::{Cpu, Refused};
use crate::emulator::AARCH64;
use crate::memory::Memory;

/// A data abort of the exception level that handles it, by an instruction of 32 bits: fields EC and IL
/// of the syndrome.
const DATA_ABORT: u64 = 0x25 << 26 | 1 << 25;

#[derive(Debug)]
pub(crate) enum Emulated {}

impl Cpu for Emulated {
    type Format = Arm64;

    const NAME: &'static str = AARCH64.name;
    const MEMORY: u64 = 1 << 30;
    const FOUR_LEVELS: bool = false;

    fn table(address: u64) -> u64 {
        address | 0b11
    }

    /// Valid, accessed, and for EL1 alone, which may execute it.
    fn block(address: u64) -> u64 {
        address | 1 << 10 | 1
    }

    /// Translation or permission fault at level 3; bit 6 tells writes.
    fn code(refused: Refused) -> u64 {
        let fault = if refused.present { 0b001111 } else { 0b000111 };
        DATA_ABORT | u64::from(refused.write) << 6 | fault
    }

    fn lack() -> Option<String> {
        AARCH64.lack()
    }

    fn run(memory: &mut Memory, _tree: u64) -> Result<(), Failed> {
        AARCH64.run(Self::MEMORY, memory)
    }
}
