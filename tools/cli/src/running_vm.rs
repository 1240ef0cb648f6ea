//! The VM that a command saves or forks.

use std::path::PathBuf;

use clap::Args;

/// A running Firecracker, and how it is paused.
#[derive(Debug, Args)]
pub(crate) struct RunningVm {
    /// The process of Firecracker
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pid: i32,
    /// The socket of Firecracker's API
    #[arg(long, value_name = "SOCKET")]
    pub(crate) api: PathBuf,
    /// Do not put memory on huge pages before the pause; the pause is longer on base pages
    #[arg(long)]
    pub(crate) no_collapse: bool,
    /// The API's socket belongs to another process than PID, such as a proxy
    #[arg(long)]
    pub(crate) proxy: bool,
}
