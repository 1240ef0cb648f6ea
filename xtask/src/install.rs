//! `cargo xtask install`: builds the libraries for C and the command, and has install.sh put them where they belong.

use std::path::PathBuf;
use std::process::Command;

use anyhow::Result;

use crate::run::{build_dir, cargo, root, succeed};

/// Builds and installs the libraries for C, with files for pkg-config, CMake and GDB, and the command
#[derive(Debug, clap::Args)]
pub(crate) struct Install {
    /// Below which bin, lib, include and share are
    #[arg(long, default_value = "/usr/local")]
    prefix: PathBuf,
    /// The folder of the libraries below the prefix, such as lib/x86_64-linux-gnu
    #[arg(long, default_value = "lib")]
    libdir: PathBuf,
    /// Put everything below this folder instead of /, as packages are made
    #[arg(long)]
    destdir: Option<PathBuf>,
    /// Install only the libraries and what belongs to them, without the command
    #[arg(long)]
    no_command: bool,
    /// The profile that cargo builds with. Without optimisation, `dev`, it is quick, and of no use but in tests
    #[arg(long, default_value = "shipped")]
    profile: String,
}

impl Install {
    pub(crate) fn run(&self) -> Result<()> {
        let mut build = cargo(&["build", "--profile", &self.profile, "--package", "hugekit-c"]);
        if !self.no_command {
            build.args(["--package", "hugekit-cli"]);
        }
        succeed(&mut build)?;
        let folder = if self.profile == "dev" { "debug" } else { &self.profile };
        let built = build_dir()?.join(folder);
        let command = if self.no_command { PathBuf::new() } else { built.join("hugekit") };
        let place = match &self.destdir {
            Some(destdir) => destdir.join(self.prefix.strip_prefix("/").unwrap_or(&self.prefix)),
            None => self.prefix.clone(),
        };
        let mut install = Command::new("sh");
        install.arg(root().join("xtask/install.sh"));
        install.env("place", &place).env("libdir", &self.libdir).env("command", command);
        succeed(install.env("libraries", built).env("version", env!("CARGO_PKG_VERSION")))?;
        println!("hugekit {} is below {}", env!("CARGO_PKG_VERSION"), place.display());
        Ok(())
    }
}
