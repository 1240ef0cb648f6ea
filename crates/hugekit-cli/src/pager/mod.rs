//! `hugekit pager`: arguments, and the daemon in the foreground.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use hugekit_lab::size::Size;
use hugekit_pager::{LONGEST_AROUND, Pager, PagerError, Settings, Source};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::log;
use crate::usage::Remedied;

/// Supply the memory of restored Firecracker VMs: 2 MiB for each page fault, and huge pages.
///
/// Start the pager, and then restore VMs with the `mem_backend` `{"backend_type": "Uffd",
/// "backend_path": SOCKET}`. One pager serves all VMs that are restored from one memory file, on
/// base pages and on 2 MiB pages of hugetlbfs. When all memory of a VM is there, the pager puts it
/// on huge pages, and the VM needs the pager no more. The first restore records which memory the VM
/// touches; later restores read that memory ahead.
///
/// Runs in the foreground until SIGTERM, SIGINT or SIGHUP. VMs that are not complete then wait
/// until a pager with the same arguments starts. VMs of other users are refused, except those of
/// root.
#[derive(Debug, Args)]
#[command(after_help = "Example: hugekit pager --socket pager.sock --file memory.bin")]
pub(crate) struct PagerCommand {
    /// The socket that VMMs connect to
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    /// The memory file of the snapshot
    #[arg(long, value_name = "FILE")]
    file: PathBuf,
    /// Bytes to supply for each page fault, from 4KiB to 2MiB
    #[arg(long, value_name = "SIZE", default_value_t = Size(LONGEST_AROUND as usize))]
    around: Size,
    /// Supply memory only when it is touched; such VMs need the pager until they end
    #[arg(long)]
    no_prefetch: bool,
    /// The file with the memory that VMs touch first [default: FILE.working-set]
    #[arg(long, value_name = "PATH")]
    working_set: Option<PathBuf>,
    /// Seconds to record the touches of a VM, if there is no such file
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    record: u32,
    /// Continue to serve VMs whose memory is complete
    #[arg(long)]
    stay: bool,
    /// Also serve VMs of this user
    #[arg(long, value_name = "UID")]
    user: Vec<u32>,
    /// The folder for the state of VMs, by which the next pager serves them [default: SOCKET.state]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

impl PagerCommand {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        // Readable when a signal came.
        let (came, sent) = UnixStream::pair()?;
        for signal in [SIGTERM, SIGINT, SIGHUP] {
            signal_hook::low_level::pipe::register(signal, sent.try_clone()?)?;
        }
        let source = Source::open(&self.file).map_err(PagerError::from)?;
        let pager = Pager::start(self.settings(), source).map_err(explained)?;
        log::line(&format!(
            "listening at {}: memory from {}",
            self.socket.display(),
            self.file.display()
        ));
        pager.run(came.as_fd(), &|event| log::line(&event.to_string())).map_err(explained)
    }

    fn settings(&self) -> Settings {
        Settings {
            state: self.state.clone(),
            around: self.around.0 as u64,
            prefetch: !self.no_prefetch,
            working_set: self.working_set.clone(),
            record: Duration::from_secs(self.record.into()),
            stay: self.stay,
            users: self.user.clone(),
            ..Settings::new(self.socket.clone())
        }
    }
}

fn explained(error: PagerError) -> anyhow::Error {
    let remedy = error.remedy().map(str::to_owned);
    Remedied::error(error, remedy)
}
