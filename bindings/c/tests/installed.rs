//! The C interface as it is installed: found by pkg-config and by CMake, linked as a shared and as a static library and
//! into a program that needs no file at all, wherever the folder was moved to; and what GDB does with it.

#[path = "programs/said.rs"]
mod said;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use self::said::said;

/// A program that needs no more than memory, and a table of its own for exceptions and threads.
const SOURCE: &str = r#"
#include <hugekit.h>
#include <stdio.h>
#include <string.h>

static char bytes[8 << 20];

int main(void)
{
    hugekit_pool *pool;
    hugekit_region *region;
    memset(bytes, 1, sizeof bytes);
    if (hugekit_clear(bytes, sizeof bytes) != HUGEKIT_STATUS_OK || bytes[1234])
        return 1;
    if (hugekit_pool_new((size_t)4 << 20, NULL, &pool) != HUGEKIT_STATUS_OK
        || hugekit_region_new(pool, (size_t)4 << 20, NULL, &region) != HUGEKIT_STATUS_OK)
        return fprintf(stderr, "%s\n", hugekit_last_error()), 1;
    ((char *)hugekit_region_address(region))[5] = 1;
    hugekit_region_free(region);
    hugekit_pool_free(pool);
    puts(HUGEKIT_VERSION);
    return 0;
}
"#;

/// With the languages' defaults and no paths: `find_package` has to know everything.
const CMAKE: &str = r"
cmake_minimum_required(VERSION 3.16)
project(consumer C)
find_package(hugekit 0.1 REQUIRED)
add_executable(shared program.c)
target_link_libraries(shared hugekit::hugekit)
add_executable(static program.c)
target_link_libraries(static hugekit::hugekit-static)
add_executable(alone program.c)
target_link_libraries(alone hugekit::hugekit-static)
target_link_options(alone PRIVATE -static)
";

const GDB: [&str; 4] =
    ["info signals SIGBUS", "info signals SIGSEGV", "hugekit-faults hide", "info signals SIGSEGV"];

/// What was installed, in a folder that it was moved to.
struct Installed {
    prefix: PathBuf,
    scratch: PathBuf,
}

impl Installed {
    fn new() -> Result<Self, String> {
        let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
        let target =
            Path::new(env!("CARGO_TARGET_TMPDIR")).parent().ok_or("no target directory")?;
        let _ = fs::remove_dir_all(&scratch);
        fs::create_dir_all(&scratch).map_err(|error| error.to_string())?;
        let staged = scratch.join("staged");
        let mut xtask = Command::new(env!("CARGO"));
        xtask.args(["run", "--quiet", "--package", "xtask", "--", "install", "--no-command"]);
        xtask.args(["--profile", "dev", "--prefix", "/opt/hugekit", "--destdir"]).arg(&staged);
        said(xtask.env("CARGO_TARGET_DIR", target))?;
        let prefix = scratch.join("moved there");
        fs::rename(staged.join("opt/hugekit"), &prefix).map_err(|error| error.to_string())?;
        fs::write(scratch.join("program.c"), SOURCE).map_err(|error| error.to_string())?;
        fs::write(scratch.join("CMakeLists.txt"), CMAKE).map_err(|error| error.to_string())?;
        Ok(Self { prefix, scratch })
    }

    fn lib(&self) -> PathBuf {
        self.prefix.join("lib")
    }

    /// As a person would type it, through a shell, because pkg-config quotes for one.
    fn compile(&self, name: &str, linked: &str, wanted: &str) -> Result<PathBuf, Failed> {
        let program = self.scratch.join(name);
        let line = format!(
            "eval cc -Wall -Werror {linked} -o {name} program.c $(pkg-config --cflags {wanted} hugekit)"
        );
        let mut shell = Command::new("sh");
        shell.args(["-c", &line]).current_dir(&self.scratch);
        said(shell.env("PKG_CONFIG_PATH", self.lib().join("pkgconfig")))?;
        Ok(program)
    }

    fn runs(&self, program: &Path) -> Result<(), Failed> {
        let version = said(Command::new(program).env_remove("LD_LIBRARY_PATH"))?;
        let wanted = env!("CARGO_PKG_VERSION");
        if version.trim() != wanted {
            Err(format!("{version} is not {wanted}").into())
        } else {
            Ok(())
        }
    }
}

/// Nothing is asked of a dynamic linker.
fn stands_alone(program: &Path) -> Result<(), Failed> {
    let sections = said(Command::new("readelf").arg("--program-headers").arg(program))?;
    if sections.contains("INTERP") {
        Err("the program needs a dynamic linker".into())
    } else {
        Ok(())
    }
}

fn by_pkg_config(installed: &Installed) -> Result<(), Failed> {
    installed.runs(&installed.compile("shared", "", "--libs")?)?;
    let alone = installed.compile("alone", "-static", "--static --libs")?;
    stands_alone(&alone)?;
    installed.runs(&alone)
}

/// glibc has functions that need its shared libraries also in static programs, and linkers warn of them. The shared
/// library imports every function that the C interface can reach. A static library that was optimised at link time, as
/// `cargo xtask dist` builds it, needs no others: the standard library's other functions are not in it.
fn no_import_warns(installed: &Installed) -> Result<(), Failed> {
    let mut nm = Command::new("nm");
    let symbols =
        said(nm.args(["-D", "--undefined-only"]).arg(installed.lib().join("libhugekit.so")))?;
    let strong = symbols.lines().filter_map(|line| line.trim().strip_prefix("U "));
    let imports: Vec<_> = strong.filter_map(|name| name.split('@').next()).collect();
    if !imports.iter().any(|name| name.starts_with("mmap")) {
        return Err(format!("these are not all imports: {imports:?}").into());
    }
    fs::write(installed.scratch.join("empty.c"), "int main(void) { return 0; }\n")?;
    let mut cc = Command::new("cc");
    cc.args(["-static", "-Wl,--fatal-warnings", "-o", "empty", "empty.c"]);
    cc.args(imports.iter().map(|name| format!("-Wl,--undefined={name}")));
    said(cc.current_dir(&installed.scratch))?;
    Ok(())
}

fn by_cmake(installed: &Installed) -> Result<(), Failed> {
    let build = installed.scratch.join("build");
    let mut prefix = std::ffi::OsString::from("-DCMAKE_PREFIX_PATH=");
    prefix.push(&installed.prefix);
    said(
        Command::new("cmake").arg("-S").arg(&installed.scratch).arg("-B").arg(&build).arg(prefix),
    )?;
    said(Command::new("cmake").arg("--build").arg(&build))?;
    stands_alone(&build.join("alone"))?;
    for program in ["shared", "static", "alone"] {
        installed.runs(&build.join(program))?;
    }
    Ok(())
}

fn in_gdb(installed: &Installed) -> Result<(), Failed> {
    let mut gdb = Command::new("gdb");
    gdb.args(["-nx", "-batch", "-x"]).arg(installed.prefix.join("share/hugekit/hugekit.gdb"));
    let answer = said(gdb.args(GDB.iter().flat_map(|command| ["-ex", command])))?;
    let signals =
        answer.lines().filter(|line| line.starts_with("SIG") && !line.starts_with("Signal"));
    let handled: Vec<_> =
        signals.map(|line| line.split_whitespace().take(4).collect::<Vec<_>>().join(" ")).collect();
    let last: Vec<_> = handled.iter().map(String::as_str).collect();
    let (Some(bus), Some(hidden)) = (last.first(), last.last()) else { return Err(answer.into()) };
    if *bus != "SIGBUS No No Yes"
        || *hidden != "SIGSEGV No No Yes"
        || !last.contains(&"SIGSEGV Yes Yes Yes")
    {
        return Err(answer.into());
    }
    Ok(())
}

type Test = fn(&Installed) -> Result<(), Failed>;

const TESTS: [(&str, &str, &[&str], Test); 4] = [
    (
        "static_programs_are_linked_without_warnings",
        "apt-get install gcc",
        &["cc", "nm"],
        no_import_warns,
    ),
    ("found_by_pkg_config", "apt-get install gcc pkg-config", &["cc", "pkg-config"], by_pkg_config),
    ("found_by_cmake", "apt-get install gcc cmake", &["cc", "cmake"], by_cmake),
    ("gdb_hides_the_faults_that_are_served", "apt-get install gdb", &["gdb"], in_gdb),
];

fn trials(installed: &'static Installed) -> Vec<Trial> {
    let has = |program: &&str| said(Command::new(program).arg("--version")).is_ok();
    TESTS
        .into_iter()
        .map(|(name, remedy, needed, test)| {
            let trial = Trial::test(name, move || test(installed));
            match needed.iter().find(|program| !has(program)) {
                None => trial,
                Some(missing) => {
                    let reason = format!("no {missing} ({remedy})");
                    Trial::ignorable_test(name, move || Ok(Completion::ignored_with(reason)))
                }
            }
        })
        .collect()
}

fn main() {
    let arguments = Arguments::from_args();
    let installed = match Installed::new() {
        Ok(installed) => Box::leak(Box::new(installed)),
        Err(error) => panic!("the libraries cannot be installed: {error}"),
    };
    libtest_mimic::run(&arguments, trials(installed)).exit();
}
