//! Signals everywhere: each operation is interrupted a thousand times a second in every thread, at every system
//! call of every thread, and between any two instructions of stretches that begin a thousand times a second. The
//! handler reads and writes the memory concerned. A handler belongs to a whole process, so each operation runs in
//! one of its own, which a supervisor watches.
//!
//! In CI each operation runs a few times, and until a signal has come. The nightly run repeats each for seconds.
//! `HUGEKIT_INTERRUPTED_MS` is another time in milliseconds, and `HUGEKIT_INTERRUPTED_STRETCH` is how many instructions
//! are stepped in a row.

use std::process::{Command, ExitCode};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use hugekit::fault::FaultMode;
use hugekit::pool::{Backing, Clearing};
use hugekit::{Pool, PoolError};
use hugekit_soak::operations::{FAULT_MODES, OPERATIONS, Operation};
use hugekit_soak::status::{Count, Status};
use hugekit_soak::storm::Storm;
use hugekit_soak::supervisor::{self, Ended};
use hugekit_soak::world::{Size, World};
use hugekit_soak::{backtraces, exposed, footprint, soak, step, tracer};
use hugekit_testing::seed::random;
use hugekit_testing::trials::{nightly, unless_lacking};
use libtest_mimic::{Arguments, Failed, Trial};

/// Names the case that this process is to run.
const CASE: &str = "HUGEKIT_INTERRUPTED";

/// For how many milliseconds the process repeats its operation.
const TIME: &str = "HUGEKIT_INTERRUPTED_MS";

/// Has this process trace the one that runs the case.
const TRACER: &str = "HUGEKIT_INTERRUPTED_TRACER";

/// Seconds: a hung operation makes no step for ever; a slow machine's makes one in far less.
const PATIENCE: Duration = Duration::from_secs(60);

/// The least number of runs of an operation.
const ROUNDS: u64 = 3;

/// Milliseconds for which the nightly run repeats an operation.
const NIGHTLY: u64 = 2000;

/// Instructions from one signal to the next, round by round: memory that a handler touches all the time has few
/// first touches left.
const EVERY: [u32; 6] = [1, 97, 1, 1009, 11, 20_011];

/// When signals come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum When {
    AThousandTimesASecond,
    AtEachSystemCall,
    AtEachInstruction,
}

impl When {
    const ALL: [Self; 3] =
        [Self::AThousandTimesASecond, Self::AtEachSystemCall, Self::AtEachInstruction];

    fn name(self) -> &'static str {
        match self {
            Self::AThousandTimesASecond => "at_1_khz",
            Self::AtEachSystemCall => "at_each_system_call",
            Self::AtEachInstruction => "at_each_instruction",
        }
    }
}

/// An operation, the server of its faults, and when it is interrupted.
#[derive(Clone, Copy, Debug)]
struct Case {
    operation: &'static Operation,
    served: Option<(&'static str, FaultMode)>,
    when: When,
}

impl Case {
    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for operation in OPERATIONS {
            let ways: Vec<_> =
                if operation.is_served { FAULT_MODES.map(Some).to_vec() } else { vec![None] };
            for served in ways {
                let can = |&when: &When| operation.can_step || when != When::AtEachInstruction;
                let cases = When::ALL.into_iter().filter(can);
                all.extend(cases.map(|when| Self { operation, served, when }));
            }
        }
        all
    }

    fn name(&self) -> String {
        let by = self.served.map_or(String::new(), |(name, _)| format!("::{name}"));
        format!("{}{by}::{}", self.operation.name, self.when.name())
    }

    /// Repeats the operation for at least this many milliseconds.
    fn run(&self, time: u64) -> Result<(), Failed> {
        let program = std::env::current_exe()?;
        let mut command = Command::new(program);
        command.env(CASE, self.name()).env(TIME, number("MS", time).to_string());
        if self.when == When::AtEachSystemCall {
            command.env(TRACER, "1");
        }
        let mut counts = (0, 0);
        let ended = supervisor::run(command, PATIENCE, |status| {
            counts = (status.read(Count::Signals), status.read(Count::BytesVerified));
        })?;
        match ended {
            Ended::Exited(status) if !status.success() => Err(format!("{status}").into()),
            Ended::Hung(what) => Err(format!("hung: {what}").into()),
            Ended::Exited(_) if counts.0 == 0 || counts.1 == 0 => {
                Err(format!("{} signals came, {} bytes were verified", counts.0, counts.1).into())
            }
            Ended::Exited(_) => Ok(()),
        }
    }

    /// In a process of its own.
    fn work(&self) {
        let status = Status::inherited().expect("a page");
        footprint::steady_heap();
        backtraces::allow();
        soak::end_at_the_first_failure(status);
        exposed::install();
        step::install();
        let storm = (self.when != When::AtEachSystemCall).then(Storm::start);
        step::STRETCH.store(number("STRETCH", 512) as u32, Ordering::SeqCst);
        let (started, time) = (Instant::now(), Duration::from_millis(number("MS", 0)));
        let (seed, mut round) = (random().u64(..), 0);
        while round < ROUNDS || started.elapsed() < time || exposed::calls() == 0 {
            self.round(status, soak::mix(seed, round), round);
            round += 1;
        }
        drop(storm);
        status.add(Count::Signals, exposed::calls());
    }

    fn round(&self, status: &'static Status, seed: u64, round: u64) {
        let fault_mode = self.served.map_or(FaultMode::Auto, |(_, fault_mode)| fault_mode);
        let is_stepped = self.when == When::AtEachInstruction;
        let size = if is_stepped { Size::Stepped } else { Size::Short };
        let every = if is_stepped { EVERY[round as usize % EVERY.len()] } else { 0 };
        let rng = fastrand::Rng::with_seed(0);
        let mut world = World { rng, fault_mode, size, every, actor: 0, status };
        if self.when == When::AtEachSystemCall {
            tracer::toggle();
        }
        self.operation.run(&mut world, seed);
        if self.when == When::AtEachSystemCall {
            tracer::toggle();
        }
    }
}

fn number(name: &str, usual: u64) -> u64 {
    let said = std::env::var(format!("{CASE}_{name}")).ok();
    said.and_then(|said| said.parse().ok()).unwrap_or(usual)
}

/// Returns the reason if a case cannot run here.
fn lack(case: &Case, threaded: &Option<String>, traced: &Option<String>) -> Option<String> {
    match (case.when, case.served) {
        (_, Some((_, FaultMode::Threaded { .. }))) if threaded.is_some() => threaded.clone(),
        (When::AtEachSystemCall, _) => traced.clone(),
        (When::AtEachInstruction, _) if !step::POSSIBLE => {
            Some("only threads on x86-64 can step themselves".to_owned())
        }
        _ => None,
    }
}

fn threads_cannot_serve() -> Option<String> {
    let pool = Pool::builder(4096).backing(Backing::Base).strict(true).scrub_threads(0).build();
    let pool = pool.expect("any machine has base pages");
    drop(pool.region(4096).expect("there is one"));
    let builder = pool.region_builder(4096).clearing(Clearing::OnFault);
    match builder.fault_mode(FaultMode::Threaded { threads: 1 }).build() {
        Err(PoolError::Fault(error)) => Some(error.to_string()),
        _ => None,
    }
}

fn cannot_trace() -> Option<String> {
    tracer::run(Command::new("true")).err().map(|error| format!("cannot trace a child: {error}"))
}

fn trials(case: Case, lack: Option<String>) -> [Trial; 2] {
    let once = Trial::test(case.name(), move || case.run(0));
    let name = format!("{}::for_seconds", case.name());
    let repeated = Trial::test(name, move || case.run(NIGHTLY));
    [once, nightly("signals must meet each step", repeated)]
        .map(|trial| unless_lacking(trial, lack.as_deref()))
}

/// Traces the process that runs the case, and ends as it does.
fn trace() -> ExitCode {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.env_remove(TRACER);
    let status = tracer::run(command).expect("it can be traced");
    let went_well = libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0;
    if !went_well {
        eprintln!("the traced process ended with status {status:#x}");
    }
    if went_well { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn main() -> ExitCode {
    if std::env::var_os(TRACER).is_some() {
        return trace();
    }
    let cases = Case::all();
    if let Ok(name) = std::env::var(CASE) {
        cases.iter().find(|case| case.name() == name).expect("a case of the table").work();
        return ExitCode::SUCCESS;
    }
    let (threaded, traced) = (threads_cannot_serve(), cannot_trace());
    let trials = cases.into_iter().flat_map(|case| trials(case, lack(&case, &threaded, &traced)));
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}
