//! Emulated CPUs: `qemu-system-…` with its memory in a file, so that what the program and the CPU have
//! written can be read afterwards. Nothing but the CPU, its memory and what switches it off is used of
//! the machine.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use hugekit_programs::Unpacked;
use libtest_mimic::Failed;

use crate::cpu::{ENTRY, HANDLER};
use crate::memory::{BYTES, Memory};

/// An architecture's CPU and program. The program is there as text and as words, so that a machine needs no assembler
/// to run it.
#[derive(Debug)]
pub(crate) struct Emulator {
    pub(crate) name: &'static str,
    /// Debian's package.
    package: &'static str,
    /// A CPU that marks pages accessed and dirty itself, started without firmware.
    arguments: &'static [&'static str],
    text: &'static str,
    words: &'static str,
}

pub(crate) static AARCH64: Emulator = Emulator {
    name: "aarch64",
    package: "qemu-system-arm",
    arguments: &["-cpu", "max"],
    text: include_str!("programs/aarch64.s"),
    words: include_str!("programs/aarch64.hex"),
};

pub(crate) static RISCV64: Emulator = Emulator {
    name: "riscv64",
    package: "qemu-system-misc",
    arguments: &["-cpu", "rv64", "-bios", "none"],
    text: include_str!("programs/riscv64.s"),
    words: include_str!("programs/riscv64.hex"),
};

pub(crate) static EMULATORS: [&Emulator; 2] = [&AARCH64, &RISCV64];

/// The longest time that an emulator may take on a machine that others use. On an idle machine it needs half a second.
const PATIENCE: Duration = Duration::from_secs(120);

impl Emulator {
    /// Returns the reason if it is not available here, and a remedy.
    pub(crate) fn lack(&self) -> Option<String> {
        self.command().err()
    }

    fn command(&self) -> Result<Command, String> {
        let name = format!("qemu-system-{}", self.name);
        found(&name).ok_or_else(|| format!("no {name} (apt-get install {})", self.package))
    }

    /// Runs the program, with memory that begins at `first`.
    pub(crate) fn run(&self, first: u64, memory: &mut Memory) -> Result<(), Failed> {
        memory.write(first + HANDLER, &self.bytes());
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("memory");
        memory.store(&File::create(&path)?)?;
        let backend =
            format!("memory-backend-file,id=memory,size={}M,mem-path=memory,share=on", BYTES >> 20);
        let start = format!("loader,cpu-num=0,addr={:#x}", first + ENTRY);
        let mut command = self.command()?;
        command
            .current_dir(folder.path())
            .args(["-nodefaults", "-display", "none", "-no-reboot", "-accel", "tcg"])
            .args(["-machine", "virt,memory-backend=memory"])
            .args(self.arguments)
            .args(["-m", &format!("{}M", BYTES >> 20), "-object", &backend, "-device", &start]);
        finish(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?)?;
        Ok(memory.load(File::open(path)?)?)
    }

    fn bytes(&self) -> Vec<u8> {
        let word = |text| u32::from_str_radix(text, 16).expect("a word in digits of base 16");
        self.words.split_whitespace().flat_map(|text| word(text).to_le_bytes()).collect()
    }

    /// The assembler, and what takes the bytes out of its output; the error says what would help.
    pub(crate) fn assembler(&self) -> Result<[Command; 2], String> {
        let tool = |tool| found(&format!("{}-linux-gnu-{tool}", self.name));
        tool("as").zip(tool("objcopy")).map(Into::into).ok_or_else(|| {
            format!("no assembler of {0} (apt-get install binutils-{0}-linux-gnu)", self.name)
        })
    }

    /// Checks that the assembler makes these words of the text.
    pub(crate) fn check_words(&self) -> Result<(), Failed> {
        let [mut assembler, mut copier] = self.assembler()?;
        let folder = tempfile::tempdir()?;
        let [text, object, bytes] =
            ["program.s", "program.o", "program"].map(|name| folder.path().join(name));
        fs::write(&text, self.text)?;
        succeed(assembler.arg("-o").args([&object, &text]))?;
        succeed(copier.args(["-O", "binary", "-j", ".text"]).args([&object, &bytes]))?;
        assert_eq!(fs::read(bytes)?, self.bytes(), "the words are not those of the text");
        Ok(())
    }
}

/// The machine's program of that name, or the one that `cargo xtask test --install` has unpacked.
fn found(name: &str) -> Option<Command> {
    let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target");
    Unpacked::new(target.join("emulators/root")).find(name)
}

fn succeed(command: &mut Command) -> Result<(), Failed> {
    match command.status()? {
        status if status.success() => Ok(()),
        status => Err(format!("{command:?}: {status}").into()),
    }
}

/// Waits until the program has switched the machine off.
fn finish(mut emulator: Child) -> Result<(), Failed> {
    let since = Instant::now();
    while emulator.try_wait()?.is_none() {
        if since.elapsed() > PATIENCE {
            emulator.kill()?;
            emulator.wait()?;
            return Err(format!("the program has not ended in {PATIENCE:?}").into());
        }
        thread::sleep(Duration::from_millis(5));
    }
    let output = emulator.wait_with_output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(format!("{}: {said}", output.status).into()) }
}
