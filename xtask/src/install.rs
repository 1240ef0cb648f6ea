//! `cargo xtask install`: the libraries for C with what compilers, debuggers and build systems want to know of them, and
//! the command with its manual.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const MAJOR: &str = env!("CARGO_PKG_VERSION_MAJOR");
const MINOR: &str = env!("CARGO_PKG_VERSION_MINOR");

/// Where programs and libraries go.
#[derive(Debug, clap::Args)]
pub(crate) struct Install {
    /// Below which bin, lib, include and share are
    #[arg(long, default_value = "/usr/local")]
    prefix: PathBuf,
    /// Where libraries go below the prefix, such as lib/x86_64-linux-gnu
    #[arg(long, default_value = "lib")]
    libdir: PathBuf,
    /// Put everything below this folder instead of /, as packages are made
    #[arg(long)]
    destdir: Option<PathBuf>,
    /// The libraries and what belongs to them alone, without the command
    #[arg(long)]
    no_command: bool,
    /// The profile that cargo builds with. Without optimisation, `dev`, it is quick, and of no use but in tests
    #[arg(long, default_value = "shipped")]
    profile: String,
}

impl Install {
    /// Below this folder, for an archive or a package.
    pub(crate) fn below(prefix: PathBuf, libdir: &str) -> Self {
        Self {
            prefix,
            libdir: libdir.into(),
            destdir: None,
            no_command: false,
            profile: "shipped".to_owned(),
        }
    }

    pub(crate) fn run(&self) -> Result<()> {
        let mut packages = vec!["--package", "hugekit-c"];
        if !self.no_command {
            packages.extend(["--package", "hugekit-cli"]);
        }
        crate::cargo(&[&["build", "--profile", &self.profile], &packages[..]].concat())?;
        let built = self.built()?;
        self.libraries(&built)?;
        self.descriptions()?;
        if !self.no_command {
            self.command(&built)?;
        }
        println!("hugekit {VERSION} is below {}", self.place().display());
        Ok(())
    }

    /// Where cargo puts what it builds with this profile, whose folder has another name for `dev` alone.
    fn built(&self) -> Result<PathBuf> {
        let folder = if self.profile == "dev" { "debug" } else { &self.profile };
        Ok(crate::build_dir(&crate::metadata()?)?.join(folder))
    }

    pub(crate) fn libraries(&self, built: &Path) -> Result<()> {
        let lib = self.folder(&self.libdir)?;
        let archive = lib.join("libhugekit.a");
        copy(&built.join("libhugekit.a"), &archive, 0o644)?;
        strip_debug(&archive);
        let library = format!("libhugekit.so.{VERSION}");
        copy(&built.join("libhugekit.so"), &lib.join(&library), 0o755)?;
        for name in [format!("libhugekit.so.{MAJOR}"), "libhugekit.so".to_owned()] {
            link(&library, &lib.join(name))?;
        }
        copy(&crate::header::path(), &self.folder("include")?.join("hugekit.h"), 0o644)
    }

    /// What tells pkg-config, CMake and GDB of the libraries, each from its own place, so that the prefix may move.
    pub(crate) fn descriptions(&self) -> Result<()> {
        let lib = self.folder(&self.libdir)?;
        let cmake = lib.join("cmake/hugekit");
        self.describe("hugekit.pc", &lib.join("pkgconfig"), 1)?;
        self.describe("hugekit-config.cmake", &cmake, 2)?;
        self.describe("hugekit-config-version.cmake", &cmake, 2)?;
        self.describe("hugekit.gdb", &self.folder("share/hugekit")?, 0)
    }

    /// Fills in a template; the file's folder is `depth` below that of the libraries.
    fn describe(&self, name: &str, folder: &Path, depth: usize) -> Result<()> {
        let template = templates().join(name);
        let text = fs::read_to_string(&template)
            .with_context(|| format!("cannot read {}", template.display()))?;
        let up = depth + self.libdir.components().count();
        let text = text
            .replace("@TO_PREFIX@", &vec![".."; up].join("/"))
            .replace("@VERSION@", VERSION)
            .replace("@MAJOR@", MAJOR)
            .replace("@MINOR@", MINOR);
        let path = folder.join(name);
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, text))
            .with_context(|| format!("cannot write {}", path.display()))
    }

    pub(crate) fn command(&self, built: &Path) -> Result<()> {
        let program = self.folder("bin")?.join("hugekit");
        copy(&built.join("hugekit"), &program, 0o755)?;
        self.manual(&program)
    }

    /// What the command says of itself, for `man` and for shells.
    fn manual(&self, program: &Path) -> Result<()> {
        let man = self.folder("share/man/man1")?;
        crate::succeed(Command::new(program).args(["man", "--dir"]).arg(man))?;
        for (shell, folder, name) in [
            ("bash", "share/bash-completion/completions", "hugekit"),
            ("zsh", "share/zsh/site-functions", "_hugekit"),
            ("fish", "share/fish/vendor_completions.d", "hugekit.fish"),
        ] {
            let said = Command::new(program).args(["completions", shell]).output()?;
            fs::write(self.folder(folder)?.join(name), said.stdout)?;
        }
        Ok(())
    }

    fn place(&self) -> PathBuf {
        match &self.destdir {
            Some(destdir) => destdir.join(self.prefix.strip_prefix("/").unwrap_or(&self.prefix)),
            None => self.prefix.clone(),
        }
    }

    fn folder(&self, name: impl AsRef<Path>) -> Result<PathBuf> {
        let folder = self.place().join(name);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(folder)
    }
}

/// Files for those who use the libraries.
fn templates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("crates").join("hugekit-c/installed")
}

/// Of the standard library, which comes with line numbers. Cargo strips programs, not archives; without binutils the
/// archive is larger, and as good.
fn strip_debug(archive: &Path) {
    let _ = Command::new("strip").arg("--strip-debug").arg(archive).status();
}

/// As a new file: what runs or has mapped the old one keeps it.
pub(crate) fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let _ = fs::remove_file(to);
    fs::copy(from, to)
        .and_then(|_| fs::set_permissions(to, fs::Permissions::from_mode(mode)))
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

fn link(target: &str, name: &Path) -> Result<()> {
    let _ = fs::remove_file(name);
    symlink(target, name).with_context(|| format!("cannot link {}", name.display()))
}
