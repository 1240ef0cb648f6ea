//! `cargo xtask dist`: what users install, and each of it tried where nothing else is.

mod binary;
mod crates;
mod debs;
mod libraries;
mod musl;
mod roots;
mod tools;
mod wheel;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::ValueEnum;

use self::tools::Tools;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The oldest glibc that what is linked with one runs on.
const GLIBC: &str = "2.28";

/// Builds what users install into one folder, with checksums, and tries each of it in a root that has nothing else: the
/// command as one file, the Python package, Debian packages, the libraries for C, and the crates as their registry would
/// get them (which it does not)
#[derive(Debug, clap::Args)]
pub(crate) struct Dist {
    /// Where the files go
    #[arg(long, default_value_os_t = crate::target_dir("dist"))]
    dir: PathBuf,
    /// One kind alone
    #[arg(long, value_name = "KIND")]
    only: Option<Kind>,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Kind {
    /// The command, linked with everything that it needs
    Binary,
    /// The command linked with musl
    Musl,
    /// The Python package, compiled, with the command in it
    Wheel,
    /// The same for Alpine and other systems with musl
    MuslWheel,
    /// The Python package's sources
    Sdist,
    /// The libraries for C, to be unpacked anywhere
    Libraries,
    /// Debian packages of the command and of the libraries
    Deb,
    /// What `cargo publish` would upload
    Crates,
}

/// Something that was made, or was not, and how it did where nothing else is.
#[derive(Debug)]
enum Tried {
    Works(String),
    Skipped(String),
}

/// Where kinds are made, in the order of their dependencies.
struct Place {
    /// The folder of the files.
    dir: PathBuf,
    tools: Tools,
}

impl Dist {
    pub(crate) fn run(&self) -> Result<ExitCode> {
        fs::create_dir_all(&self.dir)
            .with_context(|| format!("cannot make {}", self.dir.display()))?;
        let place = Place { dir: fs::canonicalize(&self.dir)?, tools: Tools::new()? };
        let mut all_made = true;
        for kind in Kind::value_variants() {
            if self.only.is_some_and(|only| only != *kind) {
                continue;
            }
            let name = kind.to_possible_value().context("kinds have names")?;
            match kind.make(&place) {
                Ok(Tried::Works(how)) => println!("{:10} {how}", name.get_name()),
                Ok(Tried::Skipped(why)) => println!("{:10} skipped: {why}", name.get_name()),
                Err(error) => {
                    println!("{:10} FAILED: {error:#}", name.get_name());
                    all_made = false;
                }
            }
        }
        checksums(&place.dir)?;
        Ok(if all_made { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

impl Kind {
    fn make(self, place: &Place) -> Result<Tried> {
        match self {
            Self::Binary => binary::make(place),
            Self::Musl => binary::make_with_musl(place),
            Self::Wheel => wheel::make(place),
            Self::MuslWheel => wheel::make_for_musl(place),
            Self::Sdist => wheel::make_sources(place),
            Self::Libraries => libraries::make(place),
            Self::Deb => debs::make(place),
            Self::Crates => crates::rehearse(),
        }
    }
}

/// Of every file in the folder, as `sha256sum --check` reads them.
fn checksums(dir: &Path) -> Result<()> {
    let mut names: Vec<_> =
        fs::read_dir(dir)?.map(|entry| Ok(entry?.file_name())).collect::<Result<_>>()?;
    names.retain(|name| name != "SHA256SUMS");
    names.sort();
    let said = Command::new("sha256sum").current_dir(dir).arg("--").args(&names).output();
    let said = said.context("cannot start sha256sum")?;
    ensure!(said.status.success(), "sha256sum: {}", String::from_utf8_lossy(&said.stderr).trim());
    fs::write(dir.join("SHA256SUMS"), said.stdout)?;
    println!("{} files and SHA256SUMS are in {}", names.len(), dir.display());
    Ok(())
}

/// In millions of bytes, as sizes of files are told.
fn megabytes(file: &Path) -> Result<f64> {
    Ok(fs::metadata(file).with_context(|| format!("no {}", file.display()))?.len() as f64 / 1e6)
}
