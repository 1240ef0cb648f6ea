//! QEMU, and the smallest guest. Measurements and tests need only its start and its memory.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

use crate::Unpacked;

/// An emulator of a machine that was found, unpacked or installed.
#[derive(Clone, Debug)]
pub struct Emulator {
    program: OsString,
    unpacked: Unpacked,
}

impl Emulator {
    /// The emulator `qemu-system-ARCHITECTURE`: the one that `cargo xtask fleet` has unpacked below this `target`
    /// directory, else the machine's own.
    ///
    /// # Errors
    /// There is none; says what would help.
    pub fn of_fleet(architecture: &str, target: &Path) -> Result<Self, String> {
        let name = format!("qemu-system-{architecture}");
        let unpacked = Unpacked::new(target.join("fleet").join(&name).join("root"));
        let either = [unpacked.path(&name).into_os_string(), OsString::from(&name)];
        let found = either.into_iter().find(|program| unpacked.answers(Path::new(program)));
        match found {
            Some(program) => Ok(Self { program, unpacked }),
            None => Err(format!("no {name} (apt-get install {})", package(architecture))),
        }
    }

    /// An emulator of these packages, or the machine's, which was found before.
    #[must_use]
    pub fn new(program: impl Into<OsString>, unpacked: Unpacked) -> Self {
        Self { program: program.into(), unpacked }
    }

    /// Returns the command that starts it. An unpacked emulator gets the paths of its libraries, firmware and modules.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = self.unpacked.command(&self.program);
        self.find_parts(&mut command);
        command
    }

    /// Has another program become it, such as `hugekit lease`: its name and first arguments are appended to the other
    /// one's, and it inherits the paths of its libraries and modules.
    pub fn pass_to(&self, other: &mut Command) {
        let own = self.command();
        for (name, value) in own.get_envs() {
            if let Some(value) = value {
                other.env(name, value);
            }
        }
        other.arg(own.get_program()).args(own.get_args());
    }

    /// Firmware and modules are unpacked, too, or installed here, in which case apt has not downloaded them.
    fn find_parts(&self, command: &mut Command) {
        if !self.unpacked.has(Path::new(&self.program)) {
            return;
        }
        let installed = Path::new("/");
        for root in [self.unpacked.root(), installed] {
            for folder in ["usr/share/qemu", "usr/share/seabios"] {
                command.arg("-L").arg(root.join(folder));
            }
        }
        let modules = format!("usr/lib/{}-linux-gnu/qemu", std::env::consts::ARCH);
        let either = [self.unpacked.root(), installed].map(|root| root.join(&modules));
        if let Some(folder) = either.iter().find(|folder| folder.is_dir()) {
            command.env("QEMU_MODULE_DIR", folder);
        }
    }
}

fn package(architecture: &str) -> &'static str {
    match architecture {
        "x86_64" => "qemu-system-x86",
        "aarch64" => "qemu-system-arm",
        _ => "qemu-system-misc",
    }
}

/// The byte that the guest of [`firmware`] says.
const SAID: u8 = 0x21;

/// A guest of x86-64 that QEMU starts by `-bios`: it writes a byte to its memory, reads it, says it to the debug port
/// (`-debugcon`), and halts. Returns the image and the byte.
#[must_use]
pub fn firmware() -> (Vec<u8>, u8) {
    let start = [
        0xc6, 0x06, 0x00, 0x05, SAID, // mov byte [0x500], SAID
        0xa0, 0x00, 0x05, // mov al, [0x500]
        0xe6, 0xe9, // out 0xe9, al
        0xf4, // hlt
        0xeb, 0xfd, // jmp to the halt
    ];
    let mut rom = vec![0x90; 1 << 16];
    rom[..start.len()].copy_from_slice(&start);
    // The processor begins sixteen bytes before the end: a jump to the start.
    rom[0xfff0..0xfff5].copy_from_slice(&[0xea, 0x00, 0x00, 0x00, 0xf0]);
    (rom, SAID)
}
