//! A VMM as a process: its memory, its userfaultfd, and who serves its faults.

mod arriving;
pub(crate) mod hidden;
pub(crate) mod kept_layout;
pub(crate) mod mappings;
pub(crate) mod process;
pub(crate) mod userfaultfd;

pub(crate) use crate::firecracker::layout::Region;
pub(crate) use arriving::Arriving;
pub(crate) use process::Process;
pub(crate) use userfaultfd::{MESSAGE_WORDS, Message, Userfaultfd};
