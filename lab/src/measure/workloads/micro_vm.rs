//! A guest in stock Firecracker: restored, asked, and watched by `/proc`.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use hugekit_guests::{Firecracker, Pages, Request, Snapshot};
use hugekit_machine::size::MIB;
use procfs::process::Process;
use rustix::process::{Pid, Signal, kill_process};

use crate::measure::workloads::forking::end_with_this_process;
use crate::measure::{LabError, Observer};

/// The longest wait for an answer, on a machine that does other work too.
const PATIENCE: Duration = Duration::from_secs(120);

/// The time between two questions to the observer during a wait.
const LOOK: Duration = Duration::from_millis(100);

/// Page faults of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    pub minor: u64,
    pub major: u64,
}

impl Faults {
    pub fn since(self, before: Self) -> Self {
        Self { minor: self.minor - before.minor, major: self.major - before.major }
    }
}

/// A Firecracker process. It ends with this value, and with this process.
pub struct MicroVm<'a> {
    vmm: Firecracker,
    observer: &'a dyn Observer,
}

impl<'a> MicroVm<'a> {
    /// Starts a VMM without a guest, with its socket in this folder.
    pub fn start(folder: &Path, name: &str, observer: &'a dyn Observer) -> Result<Self, LabError> {
        Self::start_prepared(folder, name, observer, |_| ())
    }

    /// Does [`start`](Self::start) with a command that `prepare` may change.
    pub fn start_prepared(
        folder: &Path,
        name: &str,
        observer: &'a dyn Observer,
        prepare: impl FnOnce(&mut Command),
    ) -> Result<Self, LabError> {
        observer.check()?;
        let prepare = |command: &mut _| {
            end_with_this_process(command, Signal::KILL);
            prepare(command);
        };
        let vmm = Firecracker::start_prepared(folder, name, prepare).map_err(failed)?;
        Ok(Self { vmm, observer })
    }

    /// Only the program, whose API may not answer yet. It ends with this process.
    pub fn spawn(folder: &Path, name: &str) -> Result<Firecracker, LabError> {
        let prepare = |command: &mut _| end_with_this_process(command, Signal::KILL);
        Firecracker::spawn(folder, name, prepare).map_err(failed)
    }

    /// Boots the guest with this many bytes.
    pub fn boot(&self, bytes: usize, pages: Pages) -> Result<(), LabError> {
        self.vmm.boot((bytes / MIB) as u64, pages).map_err(failed)
    }

    pub fn save(&self, to: &Snapshot) -> Result<(), LabError> {
        self.watched(|vmm| vmm.save(to).map_err(failed))
    }

    pub fn load_by_file(&self, from: &Snapshot, file: &Path) -> Result<(), LabError> {
        self.watched(|vmm| vmm.load_by_file(from, file, true).map_err(failed))
    }

    /// The VMM advises huge pages for its mapping of the file.
    pub fn load_by_advised_file(&self, from: &Snapshot, file: &Path) -> Result<(), LabError> {
        self.watched(|vmm| vmm.load_by_advised_file(from, file).map_err(failed))
    }

    /// The guest goes on at once if it is to `resume`.
    pub fn load_by_handler(
        &self,
        from: &Snapshot,
        socket: &Path,
        resume: bool,
    ) -> Result<(), LabError> {
        self.watched(|vmm| vmm.load_by_handler(from, socket, resume).map_err(failed))
    }

    /// Does something that may take seconds. If the observer wants to stop, the VMM ends, and so
    /// does the work.
    pub fn watched<T: Send>(
        &self,
        work: impl FnOnce(&Firecracker) -> Result<T, LabError> + Send,
    ) -> Result<T, LabError> {
        let (tell, told) = channel();
        thread::scope(|scope| {
            let vmm = &self.vmm;
            scope.spawn(move || tell.send(work(vmm)));
            loop {
                match told.recv_timeout(LOOK) {
                    Ok(done) => return done,
                    Err(RecvTimeoutError::Timeout) => {
                        self.observer.check().inspect_err(|_| self.kill())?;
                    }
                    Err(error) => return Err(failed(io::Error::other(error))),
                }
            }
        })
    }

    /// Ends the process, which is waited for when this is dropped.
    pub fn kill(&self) {
        let _ = Pid::from_raw(self.vmm.pid()).map(|pid| kill_process(pid, Signal::KILL));
    }

    /// Stops the guest, which otherwise uses all of a CPU while it waits for a request.
    pub fn pause(&self) -> Result<(), LabError> {
        self.vmm.pause().map_err(failed)
    }

    pub fn resume(&self) -> Result<(), LabError> {
        self.vmm.resume().map_err(failed)
    }

    /// Asks the guest, and waits for its answer.
    pub fn ask(&mut self, request: Request) -> Result<u64, LabError> {
        self.vmm.serial.send(request).map_err(failed)?;
        let until = Instant::now() + PATIENCE;
        loop {
            self.observer.check()?;
            match self.vmm.serial.answer_within(LOOK) {
                Err(error) if error.kind() == io::ErrorKind::TimedOut && Instant::now() < until => {
                }
                answer => return answer.map_err(failed),
            }
        }
    }

    /// The faults of the whole process since it began.
    pub fn faults(&self) -> Result<Faults, LabError> {
        let stat = Process::new(self.vmm.pid()).and_then(|process| process.stat());
        let stat = stat.map_err(|error| failed(io::Error::other(error)))?;
        Ok(Faults { minor: stat.minflt, major: stat.majflt })
    }

    /// Bytes in the field of `/proc/PID/smaps_rollup` of this name; 0 if the kernel has none.
    pub fn memory(&self, field: &str) -> Result<u64, LabError> {
        let path = format!("/proc/{}/smaps_rollup", self.vmm.pid());
        Ok(field_of(&fs::read_to_string(path).map_err(failed)?, field))
    }
}

fn field_of(rollup: &str, field: &str) -> u64 {
    let value = rollup.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    let kib = value.and_then(|value| value.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.map_or(0, |kib| kib << 10)
}

pub fn failed(source: io::Error) -> LabError {
    LabError::Program { name: "Firecracker", source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_is_found_by_its_whole_name() {
        let rollup = "55d0-7ff0 ---p 00000000 00:00 0  [rollup]\nRss:  4 kB\nPss_Anon:  8 kB\n\
                      Pss:     1234 kB\n";
        assert_eq!(field_of(rollup, "Pss"), 1234 << 10);
        assert_eq!(field_of(rollup, "Pss_Anon"), 8 << 10);
        assert_eq!(field_of(rollup, "ShmemPmdMapped"), 0);
    }
}
