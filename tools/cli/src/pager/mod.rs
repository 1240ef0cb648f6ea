//! `hugekit pager`: arguments, and the daemon in the foreground.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use hugekit_delta::{Reader, StateId};
use hugekit_image::{Image, ImageBuilder};
use hugekit_sys::file_stamp::FileStamp;
use hugekit_vm::oci::{PackedCpu, PackedVm};
use hugekit_vm::pager::{Pager, PagerError, PagerOptions, Source};

use crate::image;
use crate::log;
use crate::socket;
use hugekit_daemon::EndingSignals;
use hugekit_terminal::outcome::Remedied;

/// Supply the memory of restored Firecracker VMs on huge pages.
///
/// The pager supplies 2 MiB for each page fault. Start the pager, and then restore VMs with the `mem_backend` `{"backend_type": "Uffd",
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
    /// The memory file of the snapshot, or a full delta
    #[arg(long, value_name = "FILE", required_unless_present_any = ["image", "oci"])]
    file: Option<PathBuf>,
    /// Deltas of the memory file, the oldest first: the pager keeps the result in memory
    #[arg(value_name = "DELTA", requires = "file")]
    deltas: Vec<PathBuf>,
    /// The state of a raw memory file that the first delta begins with [default: that of the
    /// `vmstate` beside it, if FILE is the `memory` of a checkpoint]
    #[arg(long, value_name = "STATE", requires = "deltas")]
    state: Option<StateId>,
    /// An image of a broker instead of a memory file (`hugekit image load`)
    #[arg(long, value_name = "NAME", conflicts_with = "file")]
    image: Option<String>,
    /// A packed VM instead of a memory file: its memory is read from the layout without unpacking
    /// it (`hugekit image pack`)
    #[arg(long, value_name = "LAYOUT[:TAG]", conflicts_with_all = ["file", "image"])]
    oci: Option<PathBuf>,
    /// The broker's socket [default: /run/hugekit/broker.sock, or below `XDG_RUNTIME_DIR`]
    #[arg(long, value_name = "PATH", requires = "image")]
    broker: Option<PathBuf>,
    #[command(flatten)]
    options: PagerOptions,
}

impl PagerCommand {
    pub(crate) fn run(&self) -> anyhow::Result<()> {
        let came = EndingSignals::new()?;
        let source = self.source()?;
        let memory = source.path().display().to_string();
        if source.is_open_for_writing() {
            log::line(&format!(
                "note: a process has {memory} open for writing: VMs that it changes bytes under are ended"
            ));
        }
        let pager = Pager::start(&self.socket, self.options.clone(), source).map_err(explained)?;
        log::line(&format!("listening at {}: memory from {memory}", self.socket.display()));
        pager.run(came.as_fd(), &|event| log::line(&event.to_string())).map_err(explained)
    }

    fn source(&self) -> anyhow::Result<Source> {
        if let Some(layout) = &self.oci {
            return Self::source_of_layout(layout);
        }
        let Some(file) = &self.file else { return self.source_of_image() };
        if self.deltas.is_empty() {
            return Ok(Source::open(file).map_err(PagerError::from)?);
        }
        let paths = [file].into_iter().chain(&self.deltas);
        let open = |path: &PathBuf| {
            let file = hugekit_image::open(path).with_context(|| path.display().to_string())?;
            Ok((path.clone(), file))
        };
        let files: Vec<(PathBuf, File)> = paths.map(open).collect::<anyhow::Result<_>>()?;
        let state = self.state_of_base(file, &files[0].1)?;
        let sources = files.iter().map(|(_, file)| file.try_clone());
        let sources = sources.collect::<Result<Vec<_>, _>>()?;
        let builder = sources.into_iter().fold(Image::builder("pager"), ImageBuilder::source);
        let builder = state.into_iter().fold(builder, ImageBuilder::state);
        let image = builder.load().map_err(image::explained)?;
        let name = file.canonicalize()?;
        let source = Source::of_memory(image.into_file().into(), name, files);
        Ok(source.map_err(PagerError::from)?)
    }

    fn source_of_layout(layout: &Path) -> anyhow::Result<Source> {
        let vm = PackedVm::open(layout).map_err(image::of_oci)?;
        let (packed, own) = (&vm.config().cpu, PackedCpu::of_this_machine());
        if *packed != own {
            log::line(&format!(
                "note: the VM was packed on another CPU ({packed}) than this one ({own}): it may fail here"
            ));
        }
        log::line(&format!("state of the VM: {}", vm.state_path().display()));
        Ok(Source::of_packed(vm).map_err(PagerError::from)?)
    }

    /// Returns the state that the first delta must begin with: without it, a delta of another VM of
    /// the same size would fit. `None` of a full delta, which has it itself.
    fn state_of_base(&self, path: &Path, file: &File) -> anyhow::Result<Option<StateId>> {
        if Reader::new(file.try_clone()?).is_ok() {
            return Ok(None);
        }
        let state = self.state.or_else(|| hugekit_vm::checkpoint::state_of(path));
        match state {
            Some(state) => Ok(Some(state)),
            None => Err(Remedied::error(
                io::Error::other(format!(
                    "nothing names the state of {}, so a delta of other memory would not be recognised",
                    path.display()
                )),
                Some(
                    "name the `memory` of a checkpoint, with the `vmstate` beside it, or the state by --state"
                        .to_owned(),
                ),
            )),
        }
    }

    fn source_of_image(&self) -> anyhow::Result<Source> {
        let name = self.image.clone().unwrap_or_default();
        let broker = self.broker.clone().unwrap_or_else(socket::to_ask);
        let file: File =
            Image::of_broker(&broker, &name).map_err(image::explained)?.into_file().into();
        let identity = FileStamp::of(&file)?;
        let source = Source::of_memory(file, format!("image {name}").into(), Vec::new());
        // A broker that does not answer, and an image that was dropped, change nothing.
        let is_current = move || {
            let now = Image::of_broker(&broker, &name).map(|image| File::from(image.into_file()));
            let now = now.ok().and_then(|file| FileStamp::of(&file).ok());
            now.is_none_or(|now| now.is_of_same_file(&identity))
        };
        Ok(source.map_err(PagerError::from)?.current_if(is_current))
    }
}

pub(crate) fn explained(error: PagerError) -> anyhow::Error {
    let remedy = error.remedy().map(str::to_owned);
    Remedied::error(error, remedy)
}
