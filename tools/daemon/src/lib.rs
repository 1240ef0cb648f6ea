#![doc = include_str!("../README.md")]
#![warn(missing_docs)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod listener;
mod notices;
mod signals;

pub use listener::{ListenError, Listener, SocketLock, raise_descriptor_limit};
pub use notices::Notices;
pub use signals::{EndingSignals, survive_file_size_limit};
