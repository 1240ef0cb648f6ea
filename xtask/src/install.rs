//! `cargo xtask install`: the libraries for C, their header, the file for pkg-config, and the command.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Where programs and libraries go.
#[derive(Debug, clap::Args)]
pub(crate) struct Install {
    /// Below which bin, lib and include are
    #[arg(long, default_value = "/usr/local")]
    prefix: PathBuf,
    /// Put everything below this folder instead of /, as packages are made
    #[arg(long)]
    destdir: Option<PathBuf>,
}

impl Install {
    pub(crate) fn run(&self) -> Result<()> {
        crate::cargo(&[
            "build",
            "--release",
            "--package",
            "hugekit-c",
            "--package",
            "hugekit-cli",
        ])?;
        let built = crate::target_dir("release");
        let (bin, lib, include) =
            (self.folder("bin")?, self.folder("lib")?, self.folder("include")?);
        copy(&built.join("hugekit"), &bin.join("hugekit"), 0o755)?;
        copy(&built.join("libhugekit.a"), &lib.join("libhugekit.a"), 0o644)?;
        let library = format!("libhugekit.so.{VERSION}");
        copy(&built.join("libhugekit.so"), &lib.join(&library), 0o755)?;
        for name in ["libhugekit.so.0", "libhugekit.so"] {
            link(&library, &lib.join(name))?;
        }
        copy(&crate::header::path(), &include.join("hugekit.h"), 0o644)?;
        let pkgconfig = self.folder("lib/pkgconfig")?.join("hugekit.pc");
        fs::write(&pkgconfig, self.pkgconfig()?)
            .with_context(|| format!("cannot write {}", pkgconfig.display()))?;
        println!("hugekit {VERSION} is below {}", self.prefix.display());
        Ok(())
    }

    fn folder(&self, name: &str) -> Result<PathBuf> {
        let prefix = match &self.destdir {
            Some(destdir) => destdir.join(self.prefix.strip_prefix("/").unwrap_or(&self.prefix)),
            None => self.prefix.clone(),
        };
        let folder = prefix.join(name);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(folder)
    }

    fn pkgconfig(&self) -> Result<String> {
        let prefix = std::path::absolute(&self.prefix)?;
        Ok(format!(
            "prefix={}\n\
             libdir=${{prefix}}/lib\n\
             includedir=${{prefix}}/include\n\
             \n\
             Name: hugekit\n\
             Description: A huge-page memory engine for user space on Linux\n\
             Version: {VERSION}\n\
             Cflags: -I${{includedir}}\n\
             Libs: -L${{libdir}} -lhugekit\n\
             Libs.private: -lpthread -ldl -lm -lgcc_s\n",
            prefix.display()
        ))
    }
}

/// As a new file: what runs or has mapped the old one keeps it.
fn copy(from: &Path, to: &Path, mode: u32) -> Result<()> {
    let _ = fs::remove_file(to);
    fs::copy(from, to)
        .and_then(|_| fs::set_permissions(to, fs::Permissions::from_mode(mode)))
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

fn link(target: &str, name: &Path) -> Result<()> {
    let _ = fs::remove_file(name);
    symlink(target, name).with_context(|| format!("cannot link {}", name.display()))
}
