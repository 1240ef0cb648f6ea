//! What is said of a machine of the fleet: what it is made of, how its kernel is set, and what runs in it.

use super::kernels::Kernel;
use super::programs::Program;

/// A guest. A row of the table is one of these, of which most fields are those of `PLAIN`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub(super) name: &'static str,
    /// What it shows that others do not.
    pub(super) about: &'static str,
    pub(super) kernel: &'static Kernel,
    /// A CPU model of QEMU's. Emulated, it lacks what TCG cannot do.
    pub(super) cpu: &'static str,
    pub(super) cpus: usize,
    /// Memory; each node has an equal part of it and of the CPUs.
    pub(super) mib: usize,
    pub(super) nodes: usize,
    pub(super) reserved: Reserved,
    pub(super) thp: &'static str,
    pub(super) shmem_thp: &'static str,
    pub(super) swap_mib: usize,
    pub(super) rights: Rights,
    /// Files below `/proc` or `/sys`, and what is written there before anything runs.
    pub(super) settings: &'static [(&'static str, &'static str)],
    /// What the kernel does meanwhile.
    pub(super) beside: &'static [Beside],
    /// What the kernel has counted at the end, because it has done it: a file, and a word that a line of it begins
    /// with, or none if the number is all of the file.
    pub(super) counters: &'static [(&'static str, &'static str)],
    pub(super) runs: &'static [Run],
    /// What is not run, and why: counted as skipped.
    pub(super) left_out: &'static [(&'static str, &'static str)],
}

/// Huge pages that the kernel reserves at boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reserved {
    pub(super) pages_2m: usize,
    pub(super) pages_1g: usize,
}

/// Whose programs run, and what they may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rights {
    Root,
    /// A user whom `vm.unprivileged_userfaultfd = 0` leaves faults of user mode.
    User,
    /// Root behind a system-call filter that refuses `userfaultfd(2)`, as those of containers do, and with
    /// no `/dev/userfaultfd`.
    NoUserfaultfd,
}

/// Something that goes on beside all that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Beside {
    /// Compaction of all memory, again and again.
    Compaction,
    /// Pages moved away as a memory controller that counts errors would have them moved.
    SoftOffline,
    /// Equal pages of any program's private memory merged (KSM).
    Merging,
}

impl Machine {
    /// What a program is run by, if not by the first process itself. Private memory that may be merged is refused to
    /// snapshots.
    pub(super) fn runner(&self, program: Program) -> Option<&'static str> {
        let merges = self.beside.contains(&Beside::Merging);
        match self.rights {
            Rights::NoUserfaultfd => Some("/xtask without-userfaultfd"),
            _ if merges && !program.snapshots_private_memory() => Some("/xtask merged"),
            _ => None,
        }
    }
}

/// One command in a guest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) program: Program,
    pub(super) arguments: &'static [&'static str],
    /// After which it counts as hung: many times what it takes under TCG on a busy machine.
    pub(super) seconds: u64,
}

impl Run {
    pub(super) const fn new(program: Program) -> Self {
        Self { program, arguments: &[], seconds: 1200 }
    }

    pub(super) const fn with(program: Program, arguments: &'static [&'static str]) -> Self {
        Self { program, arguments, seconds: 1200 }
    }

    /// What a user asks for: the program's name, and its arguments.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let words: Vec<&'static str> =
            text.split_whitespace().map(|word| &*word.to_owned().leak()).collect();
        let (&name, arguments) = words.split_first().ok_or("no program")?;
        let program = match name {
            "units" => Program::Units,
            "soak" => Program::Soak,
            "doctor" => Program::Doctor,
            "lab" => Program::Lab,
            test => Program::Test(test),
        };
        Ok(Self::with(program, arguments.to_vec().leak()))
    }

    /// As results and logs call it: without the tests that it skips, of which the row says why.
    pub(super) fn name(&self) -> String {
        let said = self.arguments.iter().copied().filter(|word| !word.starts_with("--skip="));
        [self.program.name()].into_iter().chain(said).collect::<Vec<_>>().join(" ")
    }
}
