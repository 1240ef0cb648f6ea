#![doc = include_str!("README.md")]

mod adopt;
mod bitmap;
mod daemon;
mod error;
mod event;
pub(crate) mod handler;
mod lost_layout;
mod options;
mod orphans;
mod pager_record;
mod served;
mod source;
mod state;
mod vm;
mod waiting;
pub(crate) mod working_set;

pub use crate::firecracker::handshake::HandshakeError;
pub use crate::vmm::UnfitLayout;
pub use crate::vmm::userfaultfd::UnfitDescriptor;
pub use daemon::Pager;
pub use error::{PagerError, Refusal, VmError};
pub use event::{Completed, Event};
pub use options::PagerOptions;
pub use source::{Source, SourceError};
pub use waiting::Ending;
