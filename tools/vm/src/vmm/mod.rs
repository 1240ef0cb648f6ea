//! Parts of every VMM: the process, the layout of its VM's memory, its userfaultfd, the handler of
//! its faults, and the requests that control it.

mod arriving;
mod control;
pub(crate) mod hidden;
pub(crate) mod kept_layout;
pub(crate) mod layout;
pub(crate) mod mappings;
mod owner;
pub(crate) mod process;
pub(crate) mod userfaultfd;

pub(crate) use arriving::Arriving;
pub use control::{ConfiguredMemory, ControlError};
pub(crate) use control::{Control, Load, LoadMemory, NO_MAPPING, Request};
pub use layout::UnfitLayout;
pub(crate) use layout::{Layout, Piece, Region, base_page};
pub(crate) use owner::Owner;
pub(crate) use process::Process;
pub(crate) use userfaultfd::{MESSAGE_WORDS, Message, Userfaultfd};
