//! QEMU, unmodified, from its start to its guest's first instruction: memory that it has the kernel populate, by one
//! thread or two, and a lease.
//!
//! The guest is 64 KiB of firmware that says a byte to the debug port at once. All sides run emulated (TCG), which every
//! machine can, and differ in where the memory comes from alone; the lease's is started by `hugekit lease`, which is
//! counted.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::measure::LabError;
use crate::measure::part::Part;
use crate::measure::workloads::broker_process::BrokerProcess;
use crate::measure::workloads::forking::end_with_this_process;
use crate::record::Unit;
use hugekit_machine::size::{GIB, Size};
use hugekit_programs::{Emulator, firmware};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Signal;

use super::client::POPULATED_EARLIER;
use crate::experiments::Bench;

/// The guest's memory, where there is room for it twice.
pub(super) const MOST: usize = 4 * GIB;

/// QEMU's least: a CPU, memory and the debug port.
const MACHINE: &str = "microvm,acpi=off,rtc=off,pit=off,pic=off,isa-serial=off";

const NOTHING_THERE: &str = "qemu-alone has no page of its memory, and pays at the first touch: what is left of it is \
     QEMU's own start, which no memory makes shorter";

/// No start takes longer, emulated and on a machine that does other things too.
const PATIENCE: Duration = Duration::from_secs(60);

/// The source of the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GuestMemorySource {
    /// QEMU populates it, by this many threads.
    Prealloc(usize),
    /// No page of it is there: what is left is QEMU's own start.
    Nowhere,
    /// The broker has.
    Lease,
}

const SOURCES: [GuestMemorySource; 4] = [
    GuestMemorySource::Prealloc(1),
    GuestMemorySource::Prealloc(2),
    GuestMemorySource::Nowhere,
    GuestMemorySource::Lease,
];

impl GuestMemorySource {
    /// In ids: a lease by itself is a client's.
    fn method(self) -> &'static str {
        match self {
            Self::Prealloc(1) => "qemu-prealloc",
            Self::Prealloc(_) => "qemu-prealloc-2-threads",
            Self::Nowhere => "qemu-alone",
            Self::Lease => "qemu-lease",
        }
    }

    /// The object that is the guest's memory.
    fn object(self, bytes: usize) -> String {
        let common = format!("id=memory,size={bytes},share=on");
        let own = format!("memory-backend-memfd,{common},hugetlb=on,hugetlbsize=2M");
        match self {
            Self::Prealloc(threads) => format!("{own},prealloc=on,prealloc-threads={threads}"),
            Self::Nowhere => own,
            Self::Lease => format!("memory-backend-file,{common},mem-path={{}}"),
        }
    }
}

pub(super) fn measure(bench: &Bench<'_>, hugekit: &Path, bytes: usize) -> Result<Part, LabError> {
    // As cargo lays it out: target/PROFILE/hugekit.
    let target = hugekit.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
    let emulator = match Emulator::of_fleet("x86_64", target) {
        Ok(emulator) => emulator,
        Err(reason) => {
            return Ok(Part::notice(format!("QEMU left out: {reason}")));
        }
    };
    let size = Size(bytes).to_string();
    let rounds = bench.long_rounds(if bench.options().quick { 0.4 } else { 1.5 }, 12);
    rounds.observer.begin(&format!("lease QEMU {size}"));
    let mut machines = Machines::new(&emulator, hugekit, bytes)?;
    let names = SOURCES.map(|source| format!("{}/{size}", source.method()));
    let mut part = rounds
        .measure("lease", Unit::Microseconds, &names, |index| machines.start(SOURCES[index]))?;
    let (lease, others) = names.split_last().expect("the lease is always a case");
    for (source, name) in SOURCES.into_iter().zip(others) {
        let id = format!("{}-vs-lease/{size}", source.method());
        let differs =
            if source == GuestMemorySource::Nowhere { NOTHING_THERE } else { POPULATED_EARLIER };
        part.ratio(&id, (name, lease), Some(differs));
    }
    Ok(part)
}

/// Machines of so much memory, and the broker that some of them get it from.
#[derive(Debug)]
struct Machines<'a> {
    emulator: &'a Emulator,
    hugekit: &'a Path,
    broker: BrokerProcess,
    folder: tempfile::TempDir,
    said: u8,
    bytes: usize,
}

impl<'a> Machines<'a> {
    fn new(emulator: &'a Emulator, hugekit: &'a Path, bytes: usize) -> Result<Self, LabError> {
        let folder = tempfile::tempdir().map_err(LabError::Emulator)?;
        let (image, said) = firmware();
        fs::write(folder.path().join("firmware"), image).map_err(LabError::Emulator)?;
        let broker = BrokerProcess::start(hugekit, bytes)?;
        Ok(Self { emulator, hugekit, broker, folder, said, bytes })
    }

    /// Microseconds from the start of a machine to its first instruction. Nothing is populated at the beginning.
    fn start(&mut self, source: GuestMemorySource) -> Result<f64, LabError> {
        self.broker.until_ready()?;
        let mut command = self.command(source);
        let start = Instant::now();
        let mut machine = QemuProcess(command.spawn().map_err(LabError::Emulator)?);
        machine.hear(self.said)?;
        Ok(start.elapsed().as_secs_f64() * 1e6)
    }

    fn command(&self, source: GuestMemorySource) -> Command {
        let mut command = match source {
            GuestMemorySource::Prealloc(_) | GuestMemorySource::Nowhere => self.emulator.command(),
            GuestMemorySource::Lease => {
                let mut command = Command::new(self.hugekit);
                command.args(["lease", "--no-wait", "--size", &self.bytes.to_string()]);
                command.arg("--socket").arg(self.broker.socket()).arg("--");
                self.emulator.pass_to(&mut command);
                command
            }
        };
        command.args(["-accel", "tcg", "-nodefaults", "-display", "none", "-debugcon", "stdio"]);
        command.arg("-bios").arg(self.folder.path().join("firmware"));
        command.args(["-machine", &format!("{MACHINE},memory-backend=memory")]);
        command.args(["-m", &format!("{}M", self.bytes >> 20)]);
        command.args(["-object", &source.object(self.bytes)]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        end_with_this_process(&mut command, Signal::KILL);
        command
    }
}

/// A process of QEMU. The drop ends it.
#[derive(Debug)]
struct QemuProcess(Child);

impl QemuProcess {
    /// Waits for the guest's byte.
    fn hear(&mut self, byte: u8) -> Result<(), LabError> {
        let stdout = self.0.stdout.as_mut().expect("it was asked for");
        let mut heard = [0];
        let most = Timespec::try_from(PATIENCE).expect("a minute is a time");
        let ready = poll(&mut [PollFd::new(stdout, PollFlags::IN)], Some(&most));
        let count = match ready {
            Ok(0) => Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => stdout.read(&mut heard),
            Err(errno) => Err(errno.into()),
        };
        match count {
            Ok(1) if heard == [byte] => Ok(()),
            Ok(_) => Err(LabError::Emulator(io::Error::other(self.complaint()))),
            Err(error) => Err(LabError::Emulator(error)),
        }
    }

    /// The messages of QEMU at its end.
    fn complaint(&mut self) -> String {
        let _ = self.0.kill();
        let mut said = String::new();
        if let Some(mut stderr) = self.0.stderr.take() {
            let _ = stderr.read_to_string(&mut said);
        }
        said.trim().to_owned()
    }
}

impl Drop for QemuProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_source_is_shared_memory_of_the_size() {
        for source in SOURCES {
            let object = source.object(GIB);
            assert!(object.contains("size=1073741824,share=on"), "{object}");
            assert_eq!(
                object.contains("prealloc=on"),
                matches!(source, GuestMemorySource::Prealloc(_))
            );
        }
    }
}
