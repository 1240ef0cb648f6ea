//! Page-table entries: one table of formats, runs of entries, and tables copied run by run.
//!
//! Idea 3 (fork with PTE-mapped THP, 2024): where consecutive entries map consecutive pages of one
//! folio, references, mappings, the resident counter and write protection are dealt with once per
//! run. `README.md` beside this file explains formats, runs and rules.
//!
//! Nothing here makes a system call or allocates. Tables are plain slices: whoever owns them holds a
//! lock. Folios' counts are atomic, because several tables map one folio.

mod copy;
mod entry;
mod folio;
mod formats;
mod layout;
mod run;
#[doc(hidden)]
pub mod unbatched;

pub use copy::{CopyError, Fork, Mapping, copy_run, copy_table};
pub use entry::Entry;
pub use folio::{Folio, Folios, Piece, Pinned, UniformFolios};
pub use formats::{
    Arm, Arm64, Arm64Pages64K, FORMATS, Nios2, Powerpc, PowerpcPages64K, Riscv, S390x, Soft,
    Sparc64, Visitor, X86_64, for_each_format,
};
pub use layout::{Bits, Flag, Format, Frame, Layout};
pub use run::{Policy, Run, run_length, set_run, write_protect_run};
