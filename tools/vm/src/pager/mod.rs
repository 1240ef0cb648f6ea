#![doc = include_str!("README.md")]

mod adopt;
mod bitmap;
mod error;
mod event;
pub(crate) mod handler;
mod handshake;
mod json_file;
mod listener;
mod lost_layout;
mod orphans;
mod pager;
mod pager_record;
mod served;
mod settings;
mod source;
mod state;
mod vm;
mod working_set;

pub use crate::vmm::layout::UnfitLayout;
pub use crate::vmm::userfaultfd::UnfitDescriptor;
pub use error::{PagerError, Refusal, VmError};
pub use event::{Completed, Event};
pub use pager::Pager;
pub use settings::{LONGEST_AROUND, Settings};
pub use source::{Source, SourceError};
