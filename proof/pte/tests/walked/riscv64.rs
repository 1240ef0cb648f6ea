//! riscv64 with Sv39, which sets accessed and dirty itself (Svadu, or an emulator older than that).

use hugekit_pte::Riscv;
use libtest_mimic::Failed;

use crate::cpu::{Cpu, Refused};
use crate::emulator::RISCV64;
use crate::memory::Memory;

/// Sv39 in `satp`.
const SV39: u64 = 8 << 60;

#[derive(Debug)]
pub(crate) enum Emulated {}

impl Cpu for Emulated {
    type Format = Riscv;

    const NAME: &'static str = RISCV64.name;
    const MEMORY: u64 = 2 << 30;
    const FOUR_LEVELS: bool = false;

    /// The bits of Svrsw60t59b, which emulators of today lack: to them, both bits are reserved.
    const REFUSED_BITS: &'static str = "su";

    fn table(address: u64) -> u64 {
        address >> 12 << 10 | 1
    }

    /// Valid, readable, writable, executable, accessed and dirty. The program runs where nothing is
    /// translated and does not need it.
    fn block(address: u64) -> u64 {
        address >> 12 << 10 | 0b1100_1111
    }

    fn root(address: u64) -> u64 {
        SV39 | address >> 12
    }

    /// Page fault of a load or of a store; the CPU does not tell whether there is a page.
    fn code(refused: Refused) -> u64 {
        if refused.write { 15 } else { 13 }
    }

    fn lack() -> Option<String> {
        RISCV64.lack()
    }

    fn run(memory: &mut Memory, _tree: u64) -> Result<(), Failed> {
        RISCV64.run(Self::MEMORY, memory)
    }
}
