//! Random operations through the C interface against a plain model: `operations.c` runs a sequence, this makes them,
//! watches, and shortens one that fails.
//!
//! A sequence is a process of its own, so that a crash and a hang are findings like any other. All of it follows from
//! a seed: `HUGEKIT_FUZZ_SEED` is that of the first sequence, `HUGEKIT_FUZZ_SECONDS` how long new ones are made
//! (`cargo xtask fuzz --target operations`). What once failed is kept in `operations/` and run each time.

#[allow(dead_code, reason = "one of two tests that share it")]
mod programs;

use std::env;
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, Trial};

use self::programs::{Linked, Places, Program, said};

/// Verbs of `operations.c`, and how often each is drawn.
const VERBS: &[(&str, u32)] = &[
    ("pool", 4),
    ("tend", 4),
    ("region", 10),
    ("plain", 6),
    ("drop", 5),
    ("fill", 12),
    ("poke", 10),
    ("clear", 5),
    ("copy", 5),
    ("release", 4),
    ("prepare", 4),
    ("pin", 4),
    ("divide", 8),
    ("snapshot", 12),
    ("several", 3),
    ("look", 8),
    ("finish", 6),
    ("leave", 3),
    ("advise", 6),
    ("protect", 2),
    ("threaded", 5),
    ("hoard", 2),
    ("child", 2),
    ("check", 3),
];

/// Operations of one sequence.
const LENGTH: usize = 120;

/// A sequence takes well below a second; one that takes so long hangs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sequences of a run that says nothing else.
const SEQUENCES: u64 = 12;

/// How often a sequence that fails is run to shorten it.
const ATTEMPTS: usize = 150;

/// Lines of `operations.c`.
type Sequence = Vec<String>;

/// The sequence of a seed. It begins with memory to work on.
fn sequence(seed: u64) -> Sequence {
    let mut random = fastrand::Rng::with_seed(seed);
    let all: u32 = VERBS.iter().map(|(_, weight)| weight).sum();
    let start =
        ["pool 0 0 0 0", "pool 1 2 0 0", "pool 2 3 0 0", "plain 0 1023 0 0", "region 1 0 700 0"];
    let mut lines: Sequence = start.map(str::to_owned).to_vec();
    while lines.len() < LENGTH {
        let mut left = random.u32(..all);
        let verb = VERBS.iter().find(|(_, weight)| match left.checked_sub(*weight) {
            Some(rest) => {
                left = rest;
                false
            }
            None => true,
        });
        let (verb, _) = verb.expect("the weights add up");
        let [a, b, c, d] = std::array::from_fn(|_| random.u32(..1000));
        lines.push(format!("{verb} {a} {b} {c} {d}"));
    }
    lines
}

/// Runs a sequence; says how it failed, if it did.
fn run(program: &Path, lines: &[String]) -> Result<(), String> {
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let mut input = child.stdin.take().expect("it was asked for");
    // One that died reads no further.
    let _ = input.write_all((lines.join("\n") + "\n").as_bytes());
    drop(input);
    let ended = ended(&mut child);
    let mut said = String::new();
    let _ = child.stderr.take().expect("it was asked for").read_to_string(&mut said);
    match ended {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(format!("{status}\n{said}")),
        None => Err(format!("it hung for {} seconds\n{said}", PATIENCE.as_secs())),
    }
}

/// How it ended; nothing if it had to be killed.
fn ended(child: &mut Child) -> Option<std::process::ExitStatus> {
    let began = Instant::now();
    loop {
        if let Ok(Some(status)) = child.try_wait() {
            return Some(status);
        }
        if began.elapsed() > PATIENCE {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Leaves out of a sequence what it fails without: halves of it, quarters, and so on.
fn shortened(program: &Path, mut lines: Sequence) -> Sequence {
    let mut attempts = ATTEMPTS;
    let mut piece = lines.len() / 2;
    while piece > 0 {
        let mut at = 0;
        while at < lines.len() && attempts > 0 {
            attempts -= 1;
            let mut fewer = lines.clone();
            fewer.drain(at..(at + piece).min(fewer.len()));
            // A race may need more than one try.
            if (0..2).any(|_| run(program, &fewer).is_err()) {
                lines = fewer;
            } else {
                at += piece;
            }
        }
        piece /= 2;
    }
    lines
}

/// Runs the sequence of a seed, and reports it shortened if it fails.
fn try_seed(program: &Path, seed: u64) -> Result<(), Failed> {
    let lines = sequence(seed);
    let Err(first) = run(program, &lines) else { return Ok(()) };
    let lines = shortened(program, lines);
    let how = run(program, &lines).err().unwrap_or(first);
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{seed}.ops"));
    let text = format!("# seed {seed}\n{}\n", lines.join("\n"));
    fs::write(&path, &text).map_err(|error| error.to_string())?;
    Err(format!(
        "seed {seed} fails: {how}\n{text}\nRepeat it: {} < {}; once mended, keep it in bindings/c/tests/operations",
        program.display(),
        path.display()
    )
    .into())
}

fn number(variable: &str) -> Option<u64> {
    env::var(variable).ok()?.parse().ok()
}

/// So many sequences, or as many as there is time for.
fn random_sequences(program: &Path) -> Result<(), Failed> {
    let seconds = number("HUGEKIT_FUZZ_SECONDS").map(Duration::from_secs);
    let first = number("HUGEKIT_FUZZ_SEED");
    let first =
        first.unwrap_or_else(|| if seconds.is_some() { fastrand::u64(..1 << 32) } else { 1 });
    let began = Instant::now();
    let mut seed = first;
    while seconds.map_or(seed < first + SEQUENCES, |seconds| began.elapsed() < seconds) {
        try_seed(program, seed)?;
        seed += 1;
    }
    println!("{} sequences, from seed {first}", seed - first);
    Ok(())
}

/// Sequences that once failed.
fn kept() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/operations");
    let entries = fs::read_dir(folder).expect("the folder of kept sequences");
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn trials(program: &'static Path) -> Vec<Trial> {
    let kept = kept().into_iter().map(|path| {
        let name = path.file_name().unwrap_or_default().display().to_string();
        Trial::test(name, move || {
            let text = fs::read_to_string(&path)?;
            let lines: Sequence = text.lines().map(str::to_owned).collect();
            Ok(run(program, &lines)?)
        })
    });
    let random = Trial::test("random_sequences", move || random_sequences(program));
    kept.chain([random]).collect()
}

fn main() {
    let arguments = Arguments::from_args();
    let program = Program::c("operations.c", false);
    if said(Command::new(program.compiler).arg("--version")).is_err() {
        let reason = format!("no compiler {}", program.compiler);
        let skip = move || Ok(Completion::ignored_with(reason));
        let trial = Trial::ignorable_test("operations", skip);
        libtest_mimic::run(&arguments, vec![trial]).exit();
    }
    let compiled =
        Places::new("operations").and_then(|places| places.compile(program, Linked::Shared));
    let path: &'static Path = match compiled {
        Ok(path) => Box::leak(path.into_boxed_path()),
        Err(error) => panic!("the program cannot be built: {error}"),
    };
    libtest_mimic::run(&arguments, trials(path)).exit();
}
