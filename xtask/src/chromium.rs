//! The browser that the lab's pages are opened in.
//!
//! A machine that has one is left as it is. Otherwise Debian's is unpacked below `target/`, with a script
//! that starts it among its own libraries and fonts; `crates/hugekit-cli/tests/page.rs` looks for that.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};

use crate::debian::{Debian, Piece};

static CHROMIUM: Piece = Piece {
    name: "Chromium",
    remedy: "apt-get install chromium",
    packages: &["chromium", "fonts-dejavu-core"],
    arm64_packages: &[],
};

/// Sees to it that there is a browser to be found. Without success, the tests say what they lack.
pub(crate) fn fetch() {
    if let Err(error) = install() {
        eprintln!("no Chromium, and pages are not opened: {error:#}");
    }
}

pub(crate) fn install() -> Result<()> {
    let folder = crate::target_dir("chromium");
    let debian = Debian::new("Chromium", folder.join("debian"));
    let script = folder.join("chromium");
    if script.exists() || debian.answer(Path::new("chromium"), &["--version"]).is_some() {
        return Ok(());
    }
    debian.fetch(&[&CHROMIUM])?;
    let fonts = folder.join("fonts.conf");
    fs::write(&fonts, fonts_conf(debian.root()))?;
    fs::write(&script, starter(debian.root(), &fonts))?;
    fs::set_permissions(&script, Permissions::from_mode(0o755))
        .with_context(|| format!("cannot make {} a program", script.display()))
}

/// The unpacked fonts, and the machine's: a package that is installed is not unpacked again.
fn fonts_conf(root: &Path) -> String {
    let folder = |name: &str, path: &Path| format!("<{name}>{}</{name}>", path.display());
    let family = |asked: &str, given: &str| {
        format!("<alias><family>{asked}</family><prefer><family>{given}</family></prefer></alias>")
    };
    [
        "<?xml version=\"1.0\"?>\n<fontconfig>".to_owned(),
        folder("dir", &root.join("usr/share/fonts")),
        folder("dir", Path::new("/usr/share/fonts")),
        folder("cachedir", &root.join("var/cache/fontconfig")),
        family("sans-serif", "DejaVu Sans"),
        family("monospace", "DejaVu Sans Mono"),
        "</fontconfig>\n".to_owned(),
    ]
    .concat()
}

fn starter(root: &Path, fonts: &Path) -> String {
    let machine = format!("{}-linux-gnu", std::env::consts::ARCH);
    let libraries = root.join("usr/lib").join(machine);
    // One library keeps a part of itself in a folder of its own, which it finds only where it was built for.
    let libraries = [libraries.clone(), libraries.join("pulseaudio")];
    let libraries = libraries.map(|folder| folder.display().to_string()).join(":");
    format!(
        "#!/bin/sh\nexport LD_LIBRARY_PATH='{}' FONTCONFIG_FILE='{}'\nexec '{}' \"$@\"\n",
        libraries,
        fonts.display(),
        root.join("usr/lib/chromium/chromium").display()
    )
}
