//! The C interface as C and C++ programs see it: compiled by the system's compiler, with warnings as errors, linked
//! with the shared and with the static library, run, and run under valgrind.
//!
//! Valgrind 3.19 knows neither AVX-512 nor userfaultfd(2): the library sees a CPU without the one and a kernel
//! without the other there, so that routines with AVX-512 and forks are left out. So are children of fork(2): they
//! have the stacks of threads that they have not, which counts as lost.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use libtest_mimic::{Arguments, Failed, Trial};

/// What a test program returns that cannot run here.
const SKIPPED: i32 = 77;

const STRICT: [&str; 5] = ["-O1", "-Wall", "-Wextra", "-Wpedantic", "-Werror"];

#[derive(Clone, Copy)]
struct Program {
    source: &'static str,
    compiler: &'static str,
    standard: &'static str,
    under_valgrind: bool,
    arguments: &'static [&'static str],
}

const PROGRAMS: [Program; 8] = [
    Program::c("work.c", true),
    Program::c("machine.c", true),
    Program::c("pool.c", true),
    Program::c("fork.c", false),
    Program::c("snapshot.c", false),
    Program { arguments: &["16", "2"], ..Program::c("../examples/prealloc.c", false) },
    Program { arguments: &["1000"], ..Program::c("../examples/overhead.c", false) },
    Program {
        source: "plus.cpp",
        compiler: "c++",
        standard: "-std=c++17",
        under_valgrind: false,
        arguments: &[],
    },
];

impl Program {
    const fn c(source: &'static str, under_valgrind: bool) -> Self {
        Self { source, compiler: "cc", standard: "-std=c11", under_valgrind, arguments: &[] }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Linked {
    Shared,
    Static,
}

/// Where the libraries are, and where programs go.
struct Places {
    libraries: PathBuf,
    programs: PathBuf,
}

impl Places {
    /// Builds the libraries: cargo does not for the tests of a package that no Rust program can link.
    fn new() -> Result<Self, String> {
        let programs = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c");
        let target =
            Path::new(env!("CARGO_TARGET_TMPDIR")).parent().ok_or("no target directory")?;
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "--quiet", "--package", "hugekit-c", "--target-dir"]).arg(target);
        said(&mut cargo)?;
        let libraries = target.join("debug");
        let _ = fs::remove_dir_all(&programs);
        fs::create_dir_all(&programs).map_err(|error| error.to_string())?;
        // The name that programs ask the dynamic linker for.
        symlink(libraries.join("libhugekit.so"), programs.join("libhugekit.so.0"))
            .map_err(|error| error.to_string())?;
        Ok(Self { libraries, programs })
    }

    fn compile(&self, program: Program, linked: Linked) -> Result<PathBuf, String> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let suffix = if linked == Linked::Static { "-static" } else { "" };
        let path =
            self.programs.join(format!("{}{suffix}", program.source.replace(['.', '/'], "-")));
        let mut compiler = Command::new(program.compiler);
        compiler.args(STRICT).args([program.standard, "-pthread", "-g", "-I"]);
        compiler.arg(folder.join("include")).arg("-o").arg(&path);
        compiler.arg(folder.join("tests").join(program.source));
        match linked {
            Linked::Shared => compiler.arg("-L").arg(&self.libraries).arg("-lhugekit"),
            Linked::Static => {
                let library = self.libraries.join("libhugekit.a");
                compiler.arg(library).args(["-ldl", "-lm", "-lgcc_s"])
            }
        };
        if linked == Linked::Shared {
            compiler.arg(format!("-Wl,-rpath,{}", self.programs.display()));
        }
        said(&mut compiler)?;
        Ok(path)
    }
}

/// What a command says, if it succeeds.
fn said(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?}\n{}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// One at a time: they compare what the whole machine has.
static ONE: Mutex<()> = Mutex::new(());

fn run(command: &mut Command) -> Result<(), Failed> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Output { status, stdout, stderr } = command.output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&stdout);
    match status.code() {
        Some(0) => Ok(()),
        Some(SKIPPED) => {
            println!("[skipped: {}]", said.trim().trim_start_matches("SKIP ").trim());
            Ok(())
        }
        _ => Err(format!("{status}\n{said}{}", String::from_utf8_lossy(&stderr)).into()),
    }
}

/// The valgrind that `cargo xtask test --install` has fetched, else the machine's.
fn valgrind() -> Command {
    let mut command =
        Command::new(env::var_os("HUGEKIT_VALGRIND").unwrap_or_else(|| "valgrind".into()));
    command.args(["--quiet", "--error-exitcode=99", "--leak-check=full"]);
    command.args(["--show-leak-kinds=definite,indirect"]);
    command.args(["--errors-for-leak-kinds=definite,indirect"]);
    command.env("UNDER_VALGRIND", "1");
    command
}

fn trials(places: &'static Places) -> Vec<Trial> {
    let has_valgrind = Command::new(valgrind().get_program()).arg("--version").output().is_ok();
    let mut trials = Vec::new();
    for program in PROGRAMS {
        if said(Command::new(program.compiler).arg("--version")).is_err() {
            let reason = format!("skipped: no compiler {}", program.compiler);
            let trial = Trial::test(program.source, || Ok(()));
            trials.push(trial.with_kind(reason).with_ignored_flag(true));
            continue;
        }
        trials.push(Trial::test(program.source, move || {
            let path = places.compile(program, Linked::Shared)?;
            run(Command::new(path).args(program.arguments))
        }));
        if !program.under_valgrind {
            continue;
        }
        let trial = Trial::test(format!("{}::valgrind", program.source), move || {
            let path = places.compile(Program { ..program }, Linked::Static)?;
            run(valgrind().arg(path))
        });
        trials.push(match has_valgrind {
            true => trial,
            false => trial
                .with_kind("skipped: no valgrind (apt-get install valgrind)")
                .with_ignored_flag(true),
        });
    }
    trials
}

fn main() {
    let arguments = Arguments::from_args();
    let places = match Places::new() {
        Ok(places) => Box::leak(Box::new(places)),
        Err(error) => panic!("the libraries cannot be built: {error}"),
    };
    libtest_mimic::run(&arguments, trials(places)).exit();
}
