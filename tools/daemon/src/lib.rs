#![doc = include_str!("../README.md")]
#![warn(missing_docs)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod listener;
mod signals;

pub use listener::{ListenError, Listener, SocketLock, raise_descriptor_limit};
pub use signals::{EndingSignals, survive_file_size_limit};
