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

use hugekit_testing::trials::nightly;
use libtest_mimic::{Arguments, Completion, Failed, Trial};

use self::programs::{Linked, Places, Program, said};

/// The exit status of a test program that cannot run here.
const SKIPPED: i32 = 77;

const PROGRAMS: [Program; 14] = [
    Program::c("work.c", true),
    Program::c("machine.c", true),
    Program::c("pool.c", true),
    Program::c("fork.c", false),
    Program::c("snapshot.c", false),
    Program::c("epoch.c", false),
    Program::c("image.c", false),
    Program::c("warm.c", false),
    Program::c("nothing_left.c", false),
    Program::c("misuse.c", false),
    Program { arguments: &["16", "2"], ..Program::c("../examples/prealloc.c", false) },
    Program { arguments: &["/proc/self/exe", "3"], ..Program::c("../examples/clones.c", false) },
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
    trials.extend(
        ["README.md", "docs/c.md", "docs/firecracker.md", "docs/warm.md"]
            .map(|page| of_page(places, page)),
    );
    trials.extend([128, 1024, 4096].map(|mib| readme_at(places, mib)));
    let rewritten =
        Trial::ignorable_test("snapshot.c::256_and_1024_mib_are_rewritten", move || {
            let path = places.compile(Program::c("snapshot.c", false), Linked::Static)?;
            run(Command::new(path).args(["256", "1024"]))
        });
    trials.push(nightly("it rewrites 1 GiB", rewritten));
    trials.push(go(places));
    trials
}

/// The programs of a page compile; one without `main` is the body of one.
fn of_page(places: &'static Places, page: &'static str) -> Trial {
    Trial::ignorable_test(page, move || {
        let programs = programs_of(page)?;
        for (index, program) in programs.iter().enumerate() {
            let name = format!("{}-{index}", page.replace('/', "-"));
            places.compile_text(&name, &with_main(program))?;
        }
        Ok(if programs.is_empty() {
            return Err("no program".into());
        } else {
            Completion::Completed
        })
    })
}

/// The README's program, with memory of another size, all of which it writes.
fn readme_at(places: &'static Places, mib: u64) -> Trial {
    let kind = if mib >= 1024 { "nightly: it uses gigabytes" } else { "" };
    let trial = Trial::ignorable_test(format!("README.md at {mib} MiB"), move || {
        let (available, needed) = (available_mib()?, 3 * mib);
        if available < needed {
            let reason =
                format!("{available} MiB of memory are available, and {needed} are needed");
            return Ok(Completion::ignored_with(reason));
        }
        let programs = programs_of("README.md")?;
        let program = programs.first().ok_or("no program")?;
        let sized =
            program.replace("(size_t)2 << 30", "2 * bytes").replace("(size_t)1 << 30", "bytes");
        if sized.matches("bytes").count() < 2 {
            return Err("the README's program has no sizes that could be replaced".into());
        }
        let begin = format!("size_t bytes = (size_t){mib} << 20;");
        let end = "memset(hugekit_region_address(guest), 1, bytes);";
        let program = with_main(&format!("{begin}\n{sized}{end}\n"));
        run(&mut Command::new(places.compile_text(&format!("readme-{mib}"), &program)?))
    });
    trial.with_kind(kind).with_ignored_flag(!kind.is_empty())
}

/// The blocks of C of a page of the repository.
fn programs_of(page: &str) -> Result<Vec<String>, String> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(page);
    let text = std::fs::read_to_string(path).map_err(|error| format!("{page}: {error}"))?;
    let block = |rest: &str| rest.split("```").next().unwrap_or_default().to_owned();
    Ok(text.split("```c\n").skip(1).map(block).collect())
}

fn with_main(program: &str) -> String {
    if program.contains("main(") {
        return program.to_owned();
    }
    let headers = "#include <hugekit.h>\n#include <stdio.h>\n#include <string.h>\n";
    format!("{headers}int main(void)\n{{\n{program}}}\n")
}

fn available_mib() -> Result<u64, String> {
    let memory = std::fs::read_to_string("/proc/meminfo").map_err(|error| error.to_string())?;
    let line = memory.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.ok_or("/proc/meminfo has no MemAvailable")? >> 10)
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
