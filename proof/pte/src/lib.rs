//! Page-table entries: one table of formats, runs of entries, and tables copied run by run.
//!
//! This crate is for people who write page tables: kernels, hypervisors, emulators, and programs with
//! tables of their own. It needs no `std`, has no dependencies, allocates nothing and makes no
//! system call. Tables are plain slices whose owner holds a lock; counts of folios are atomic, because
//! several tables map one folio. `README.md` explains the rules and the formats one by one.
//!
//! # Entries
//!
//! An [`Entry`] has a [`Format`]: a row of one table of layouts, and a type, so that code over it is
//! compiled for that row and its masks are constants. [`X86_64`], [`Arm64`], [`Riscv`] and others are
//! spelled as their manuals say; [`Soft`] is our own, which no hardware walks.
//!
//! ```
//! use hugekit_pte::{Arm64, Entry, X86_64};
//!
//! let entry = Entry::<X86_64>::new(0x12345).writable().dirty();
//! assert_eq!(entry.bits(), 0x8000_0000_1234_5047); // no-execute, frame, dirty, user, write, present
//! assert!(entry.write_protected().is_dirty());
//!
//! // The hardware says dirty by clearing read-only; protecting the page writes that down first.
//! let by_hardware = Entry::<Arm64>::from_bits(Entry::<Arm64>::new(1).writable().bits() & !(1 << 7));
//! assert!(by_hardware.is_dirty() && by_hardware.write_protected().is_dirty());
//! ```
//!
//! Code over every format is a [`Visitor`], which [`for_each_format`] shows each row:
//!
//! ```
//! use hugekit_pte::{Entry, Format, Visitor, for_each_format};
//!
//! struct Check;
//! impl Visitor for Check {
//!     fn visit<F: Format>(&mut self) {
//!         assert!(!Entry::<F>::new(1).writable().write_protected().is_writable(), "{:?}", F::LAYOUT);
//!     }
//! }
//! for_each_format(&mut Check);
//! ```
//!
//! # Runs
//!
//! A run is consecutive entries that map consecutive frames and are alike in all that a [`Policy`]
//! respects. [`run_length`] finds one and says what *any* of its entries has; [`set_run`] writes one,
//! [`write_protect_run`] protects one.
//!
//! ```
//! use hugekit_pte::{Entry, Policy, X86_64, run_length, set_run, write_protect_run};
//!
//! let mut table = [Entry::<X86_64>::empty(); 512];
//! set_run(&mut table[..16], Entry::new(0x1000));
//! table[3] = table[3].writable();
//!
//! let run = run_length(&table, Policy::default());
//! assert!(run.len == 16 && run.any_writable && !run.any_dirty);
//! let apart = Policy { respect_write: true, ..Policy::default() };
//! assert_eq!(run_length(&table, apart).len, 3);
//!
//! write_protect_run(&mut table[..run.len]);
//! assert!(!table[3].is_writable());
//! ```
//!
//! # Copying a table, as a fork does
//!
//! [`copy_table`] deals once per run with references, mappings, the counter of resident pages and write
//! protection (fork with PTE-mapped THP, 2024). [`Folios`] finds the folio of a frame; [`UniformFolios`]
//! are those of one size. A pinned folio is copied page by page, by [`Folios::copy_page`]. Here a run
//! ends only where its frames end: the same change is applied to each entry.
//!
//! ```
//! use hugekit_pte::{Entry, Folio, Fork, Mapping, UniformFolios, X86_64, copy_table, set_run};
//!
//! let folios = [const { Folio::new(512) }; 2]; // 2 MiB each
//! let mut parent = [Entry::<X86_64>::empty(); 1024];
//! set_run(&mut parent, Entry::new(0x8000).writable().dirty());
//! folios.iter().for_each(|folio| {
//!     folio.get(512);
//!     folio.map(512);
//! });
//!
//! let mut child = [Entry::empty(); 1024];
//! let mut resident = 0;
//! let fork = Fork { mapping: Mapping::Private, child_keeps_uffd_wp: false };
//! let folios_of = UniformFolios::new(0x8000, 9, &folios);
//! copy_table(&mut parent, &mut child, &folios_of, fork, &mut resident)?;
//!
//! assert_eq!((resident, folios[1].references()), (1024, 1024));
//! assert!(child[7].frame() == 0x8007 && child[7].is_dirty());
//! assert!(!parent[7].is_writable() && !child[7].is_writable());
//! # Ok::<(), hugekit_pte::CopyError<hugekit_pte::Pinned>>(())
//! ```
//!
//! # Unmapping a table, as the end of a process does
//!
//! [`unmap_table`] empties entries and deals once per run with mappings and the counter of resident pages.
//! It says of each run whether any page was dirty or accessed, and leaves the references to the caller,
//! who gives them back once no CPU remembers the entries.
//!
//! ```
//! use hugekit_pte::{Entry, Folio, UniformFolios, X86_64, set_run, unmap_table};
//!
//! let folios = [const { Folio::new(512) }; 2];
//! let mut table = [Entry::<X86_64>::empty(); 1024];
//! set_run(&mut table, Entry::new(0x8000).writable());
//! table[7] = table[7].dirty().accessed(); // by the hardware
//! folios.iter().for_each(|folio| {
//!     folio.get(512);
//!     folio.map(512);
//! });
//!
//! let (mut resident, mut runs) = (1024, [None; 2]);
//! let folios_of = UniformFolios::new(0x8000, 9, &folios);
//! let mut free = runs.iter_mut();
//! unmap_table(&mut table, &folios_of, &mut resident, |gone| *free.next().unwrap() = Some(gone));
//! assert!(resident == 0 && table.iter().all(|entry| entry.is_empty()));
//!
//! // Here every CPU flushes its translations of the table.
//! let [first, second] = runs.map(Option::unwrap);
//! assert!(first.run.any_dirty && first.run.any_accessed && !second.run.any_dirty);
//! assert!(first.put() && second.put()); // the last references: both folios are free
//! ```

#![no_std]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(test)]
extern crate std;
mod copy;
mod entry;
mod folio;
mod formats;
mod layout;
mod run;
#[doc(hidden)]
pub mod unbatched;
mod unmap;

pub use copy::{CopyError, Fork, Mapping, copy_run, copy_table};
pub use entry::Entry;
pub use folio::{Folio, Folios, Piece, Pinned, UniformFolios};
pub use formats::{
    Arm, Arm64, Arm64Pages64K, FORMATS, Nios2, Powerpc, PowerpcPages64K, Riscv, S390x, Soft,
    Sparc64, Visitor, X86_64, for_each_format,
};
pub use layout::{Bits, Flag, Format, Frame, Layout};
pub use run::{Policy, Run, run_length, set_run, write_protect_run};
pub use unmap::{Unmapped, unmap_table};

/// Runs the README's program as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
