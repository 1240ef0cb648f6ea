//! The C interface as C and C++ programs see it: compiled by the system's compiler, with warnings as errors, linked
//! with the shared and with the static library, run, and run under valgrind.
//!
//! Valgrind 3.19 knows neither AVX-512 nor userfaultfd(2): the library sees a CPU without the one and a kernel
//! without the other there, so that routines with AVX-512 and forks are left out. So are children of fork(2): they
//! have the stacks of threads that they have not, which counts as lost.

mod programs;

use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use self::programs::{Linked, Places, Program, said};

/// The exit status of a test program that cannot run here.
const SKIPPED: i32 = 77;

const PROGRAMS: [Program; 12] = [
    Program::c("work.c", true),
    Program::c("machine.c", true),
    Program::c("pool.c", true),
    Program::c("fork.c", false),
    Program::c("snapshot.c", false),
    Program::c("epoch.c", false),
    Program::c("tend.c", false),
    Program::c("nothing_left.c", false),
    Program::c("misuse.c", false),
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

/// One at a time: they compare what the whole machine has.
static ONE: Mutex<()> = Mutex::new(());

fn run(command: &mut Command) -> Result<Completion, Failed> {
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let Output { status, stdout, stderr } = command.output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&stdout);
    match status.code() {
        Some(0) => Ok(Completion::Completed),
        Some(SKIPPED) => {
            let reason = said.trim().trim_start_matches("SKIP ").trim();
            Ok(Completion::ignored_with(reason))
        }
        _ => Err(format!("{status}\n{said}{}", String::from_utf8_lossy(&stderr)).into()),
    }
}

/// The valgrind that `cargo xtask test --install` has fetched, else the machine's.
fn valgrind() -> Command {
    let fetched = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/valgrind/valgrind");
    let is_fetched = Path::new(fetched).exists();
    let mut command = Command::new(if is_fetched { fetched } else { "valgrind" });
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
            let reason = format!("no compiler {}", program.compiler);
            let skip = move || Ok(Completion::ignored_with(reason));
            trials.push(Trial::ignorable_test(program.source, skip));
            continue;
        }
        trials.push(Trial::ignorable_test(program.source, move || {
            let path = places.compile(program, Linked::Shared)?;
            run(Command::new(path).args(program.arguments))
        }));
        if !program.under_valgrind {
            continue;
        }
        let trial = Trial::ignorable_test(format!("{}::valgrind", program.source), move || {
            let path = places.compile(Program { ..program }, Linked::Static)?;
            run(valgrind().arg(path))
        });
        trials.push(match has_valgrind {
            true => trial,
            false => Trial::ignorable_test(trial.name(), || {
                Ok(Completion::ignored_with("no valgrind (apt-get install valgrind)"))
            }),
        });
    }
    trials.push(go(places));
    trials
}

/// Another runtime in the same process, with signal handlers, stacks and a collector of its own.
fn go(places: &'static Places) -> Trial {
    const SOURCE: &str = "go/main.go";
    if said(Command::new("go").arg("version")).is_err() {
        let reason = "no compiler go (apt-get install golang-go)";
        return Trial::ignorable_test(SOURCE, move || Ok(Completion::ignored_with(reason)));
    }
    Trial::ignorable_test(SOURCE, move || run(&mut Command::new(places.compile_go(SOURCE)?)))
}

fn main() {
    let arguments = Arguments::from_args();
    let places = match Places::new("c") {
        Ok(places) => Box::leak(Box::new(places)),
        Err(error) => panic!("the libraries cannot be built: {error}"),
    };
    libtest_mimic::run(&arguments, trials(places)).exit();
}
