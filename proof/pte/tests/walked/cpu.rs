//! How one kind of CPU is driven. Each runs the same program, in its own instructions.
//!
//! The program goes through a list of requests, five words each: what to do (1 read, 2 write, 3 take
//! another tree, 0 end), at which address, and a value to write, or the place for what was read. If the
//! access faults, the handler stores the CPU's code of the fault and the address as the CPU tells it in
//! the last two words and goes on behind the access.
//!
//! The handler begins at [`HANDLER`], the program at [`ENTRY`]: what lies before the handler is where
//! aarch64 would look for others.

use hugekit_pte::Format;
use libtest_mimic::Failed;

use crate::memory::{Memory, PROGRAM};

/// The start of the handler of faults, from the start of memory on.
pub(crate) const HANDLER: u64 = PROGRAM.start + 0x200;

/// The first instruction.
pub(crate) const ENTRY: u64 = HANDLER + 64;

/// The first request.
pub(crate) const REQUESTS: u64 = ENTRY + 0x1000;

/// Bytes of a request.
pub(crate) const REQUEST: u64 = 5 * 8;

/// Bytes of the program's part after which there are no requests.
pub(crate) const REQUESTS_END: u64 = PROGRAM.start + (1 << 20);

/// A fault's code and address where the machine does not tell them.
pub(crate) const UNTOLD: u64 = u64::MAX;

/// An access that the CPU refuses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    pub(crate) write: bool,
    /// True if there is a page.
    pub(crate) present: bool,
}

/// A CPU with 64-bit entries and pages of 4 KiB.
pub(crate) trait Cpu: 'static {
    type Format: Format;

    const NAME: &'static str;

    /// The address of the first byte of memory.
    const MEMORY: u64;

    /// True if there is a level of tables above the one whose entries are of 1 GiB.
    const FOUR_LEVELS: bool;

    /// Software's bits that the CPU refuses, by the letters of `space.rs`.
    const REFUSED_BITS: &'static str = "";

    /// The entry that leads to a table.
    fn table(address: u64) -> u64;

    /// The entry that maps 2 MiB, for the program.
    fn block(address: u64) -> u64;

    /// A tree as the CPU's register names it.
    fn root(address: u64) -> u64 {
        address
    }

    /// The code by which the CPU reports a refusal.
    fn code(refused: Refused) -> u64;

    /// Returns the reason if this CPU is not available here, and a remedy.
    fn lack() -> Option<String>;

    /// Runs the program until it ends. The first request takes `tree`; a CPU that cannot begin without one
    /// has it from the start.
    fn run(memory: &mut Memory, tree: u64) -> Result<(), Failed>;
}
