//! Serves the page faults of restored microVMs from a memory file: a userfaultfd handler for many
//! stock Firecracker VMs, with small pages and with 2 MiB pages of hugetlbfs.
//!
//! One thread for each VM answers faults with the 2 MiB around them. Another one reads ahead. When
//! all memory is there it is put on huge pages and left to the kernel, and the VM needs no pager
//! any more. A pager that is killed is followed by the next one.
//!
//! ```no_run
//! use std::os::fd::AsFd;
//!
//! use hugekit_pager::{Pager, Settings, Source};
//!
//! let source = Source::open("memory.bin".as_ref())?;
//! let pager = Pager::start(Settings::new("pager.sock".into()), source)?;
//! let (stop, _sender) = std::os::unix::net::UnixStream::pair()?;
//! pager.run(stop.as_fd(), &|event| println!("{event}"))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![warn(missing_docs)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod adopt;
mod arriving;
mod bitmap;
mod error;
mod event;
mod handler;
mod handshake;
mod json_file;
mod layout;
mod listener;
mod lost_layout;
mod orphans;
mod pager;
mod pager_record;
mod process;
mod region_order;
mod served;
mod settings;
mod smaps;
mod source;
mod state;
mod userfaultfd;
mod vm;
mod working_set;

pub use error::{PagerError, Refusal, VmError};
pub use event::{Completed, Event};
pub use layout::UnfitLayout;
pub use pager::Pager;
pub use settings::{LONGEST_AROUND, Settings};
pub use source::{Source, SourceError};
pub use userfaultfd::UnfitDescriptor;

/// A VMM as a process and its userfaultfd, and VMs that are restored from one that runs, for
/// `hugekit-checkpoint`.
pub mod vmm {
    pub use crate::arriving::Arriving;
    pub use crate::handler::Handler;
    pub use crate::layout::Region;
    pub use crate::process::Process;
    pub use crate::region_order::RegionOrder;
    pub use crate::smaps::Mapping;
    pub use crate::userfaultfd::{MESSAGE_WORDS, Message, Userfaultfd};
}

/// Runs the README's program as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
