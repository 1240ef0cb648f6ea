//! The libraries for C in one archive, which works wherever it is unpacked.

use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::roots::{self, Root};
use super::{GLIBC, Place, Tried, VERSION};
use crate::environment::{run, said};
use crate::install::Install;

/// Of a C program with no more than this in it.
const PROGRAM: &str = r#"
#include <hugekit.h>
#include <stdio.h>
static char bytes[8 << 20];
int main(void)
{
    hugekit_pool *pool;
    if (hugekit_clear(bytes, sizeof bytes) != HUGEKIT_STATUS_OK
        || hugekit_pool_new((size_t)4 << 20, NULL, &pool) != HUGEKIT_STATUS_OK)
        return fprintf(stderr, "%s\n", hugekit_last_error()), 1;
    hugekit_pool_free(pool);
    return puts(HUGEKIT_VERSION) < 0;
}
"#;

pub(super) fn make(place: &Place) -> Result<Tried> {
    let built = place.tools.build_portably("hugekit-c")?;
    let name = format!("hugekit-c-{VERSION}-{ARCH}-linux-gnu");
    let staged = place.tools.scratch("libraries");
    let _ = fs::remove_dir_all(&staged);
    let tree = staged.join(&name);
    stage(&tree, &built)?;
    let archive = place.dir.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args(["--create", "--gzip", "--owner=0", "--group=0", "--sort=name", "--file"]);
    crate::succeed(tar.arg(&archive).arg("--directory").arg(&staged).arg(&name))?;
    try_out(place, &archive, &name)
}

fn stage(tree: &Path, built: &Path) -> Result<()> {
    let install = Install::below(tree.to_owned(), "lib");
    install.libraries(built)?;
    install.descriptions()?;
    let folder = super::tools::crate_folder("hugekit-c");
    for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
        crate::install::copy(&folder.join(licence), &tree.join(licence), 0o644)?;
    }
    let newest = newest_glibc(&tree.join("lib/libhugekit.so"))?;
    ensure!(newest <= version(GLIBC), "libhugekit.so needs glibc {newest:?}");
    Ok(())
}

/// The newest glibc whose symbols a library asks for.
fn newest_glibc(library: &Path) -> Result<Vec<u32>> {
    let mut readelf = Command::new("readelf");
    let said = readelf.args(["--wide", "--version-info"]).arg(library).output();
    let said = said.context("cannot start readelf")?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let named = text.split("GLIBC_").skip(1).filter_map(|rest| rest.split_whitespace().next());
    named.map(version).max().context("libhugekit.so asks for no glibc")
}

fn version(text: &str) -> Vec<u32> {
    text.split('.').filter_map(|number| number.parse().ok()).collect()
}

/// Linked with the static library, a program runs where nothing else is.
fn try_out(place: &Place, archive: &Path, name: &str) -> Result<Tried> {
    let sizes = |tree: &Path| -> Result<String> {
        let so = super::megabytes(&tree.join("lib/libhugekit.so"))?;
        let a = super::megabytes(&tree.join("lib/libhugekit.a"))?;
        Ok(format!(".so {so:.1} MB, .a {a:.1} MB"))
    };
    let tried = place.tools.scratch("libraries-tried");
    let _ = fs::remove_dir_all(&tried);
    fs::create_dir_all(&tried)?;
    crate::succeed(
        Command::new("tar")
            .arg("--extract")
            .arg("--file")
            .arg(archive)
            .arg("--directory")
            .arg(&tried),
    )?;
    let tree = tried.join(name);
    let sizes = sizes(&tree)?;
    if let Some(obstacle) = missing_compiler().or_else(roots::obstacle) {
        return Ok(Tried::Works(format!("{sizes}, not tried: {obstacle}")));
    }
    let program = compile(&tried, &tree.join("lib/pkgconfig"), &["-static"])?;
    let version = Root::empty(place, &[&program])?.run(&["/alone"])?;
    ensure!(version.trim() == VERSION, "the program says {version}");
    Ok(Tried::Works(format!("{sizes}; a static program of it runs in an empty root")))
}

/// Why no C program can be compiled here.
pub(super) fn missing_compiler() -> Option<&'static str> {
    let has = |name| said(Command::new(name).arg("--version")).is_some();
    let both = has("cc") && has("pkg-config");
    (!both).then_some("no C compiler with pkg-config (apt-get install gcc pkg-config)")
}

/// Compiles the program below a folder, with what pkg-config finds in another one.
pub(super) fn compile(folder: &Path, pkgconfig: &Path, linked: &[&str]) -> Result<PathBuf> {
    let (source, program) = (folder.join("alone.c"), folder.join("alone"));
    fs::write(&source, PROGRAM)?;
    let mut pkg_config = Command::new("pkg-config");
    pkg_config.args(["--cflags", "--libs", "hugekit"]);
    if linked.contains(&"-static") {
        pkg_config.arg("--static");
    }
    let answer = pkg_config.env("PKG_CONFIG_PATH", pkgconfig).output();
    let answer = answer.context("cannot start pkg-config")?;
    ensure!(answer.status.success(), "{}", String::from_utf8_lossy(&answer.stderr).trim());
    let flags = String::from_utf8(answer.stdout)?;
    let mut cc = Command::new("cc");
    cc.args(linked).arg("-o").arg(&program).arg(&source).args(flags.split_whitespace());
    run(&mut cc)?;
    Ok(program)
}
