//! A real `redis-server` that saves, tended and as it is: the time of its fork, what a client waits for its SETs before,
//! during and after the save, how many SETs it answers at full speed, and how much memory it takes.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::measure::latencies::{distribution, sum};
use crate::measure::part::Parts;
use crate::measure::part::{Part, Rounds};
use crate::measure::workloads::clients::{at_constant_rate, at_full_speed};
use crate::measure::workloads::redis_server::{RedisServer, set, set_many, some_keys};
use crate::measure::workloads::tending::{pass_after, passes, tender_of};
use crate::measure::workloads::threads::spawn;
use crate::measure::{LabError, Observer};
use crate::record::{Experiment, Unit};
use hdrhistogram::Histogram;
use hugekit_machine::size::{GIB, MIB, Size};
use hugekit_tend::{Extent, Tending};

use crate::experiments::Bench;

/// The sizes of data that servers hold.
const STATES: [usize; 2] = [2 * GIB, 4 * GIB];
const QUICK_STATES: [usize; 1] = [64 * MIB];

/// A state has at most the available memory divided by this number. There are two servers, and each also has the pages
/// that are written during a save.
const SERVERS: usize = 4;

/// SETs a second of the client that asks at a constant rate: a server that does nothing else answers them all at once.
const RATE: u32 = 2000;

/// The time for which each client is watched before a save.
const BEFORE: Duration = Duration::from_secs(1);
const QUICK_BEFORE: Duration = Duration::from_millis(200);

/// After it, so many times as long: the tender begins then.
const AFTER: u32 = 3;

const THP: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Servers of each size that there is memory for.
pub(super) fn add_to(
    experiment: &mut Experiment,
    bench: &Bench<'_>,
    memory: usize,
) -> Result<(), LabError> {
    match RedisServer::version() {
        Ok(version) => experiment.notices.push(version),
        Err(error) => {
            experiment.notices.push(format!("redis-… left out: no redis-server: {error}"));
            return Ok(());
        }
    }
    let (states, before) = match bench.options().quick {
        true => (&QUICK_STATES[..], QUICK_BEFORE),
        false => (&STATES[..], BEFORE),
    };
    for &state in states {
        let label = Size(state);
        let available = bench.available_memory()?;
        if state > memory || state > available / SERVERS {
            let needed = Size(SERVERS * state);
            experiment.notices.push(format!(
                "redis-…-{label} left out: it needs {needed} of available memory, and `--memory {label}`"
            ));
            continue;
        }
        let watched = watch(state, before, bench.long_rounds(0.1, 4));
        experiment.add(&format!("redis-{label}"), watched)?;
    }
    Ok(())
}

/// A server that is measured, plain or tended.
#[derive(Debug)]
struct MeasuredServer {
    name: &'static str,
    server: RedisServer,
    tending: Option<Tending>,
    /// Passes that came before the last save.
    passes: u64,
}

/// When a client was watched.
const PHASES: [&str; 3] = ["before", "during", "after"];

/// The measurements of one save at a constant rate, and of one at full speed.
#[derive(Debug)]
struct SaveMeasurements {
    fork: Duration,
    latencies: [Histogram<u64>; 3],
    /// SETs a second, without a save and during one.
    rates: [f64; 2],
    resident: u64,
}

impl MeasuredServer {
    fn both(state: usize, observer: &dyn Observer) -> Result<[Self; 2], LabError> {
        let mut plain = RedisServer::start(&[])?;
        // Where the setting is always, a server switches huge pages off for itself.
        let is_always = fs::read_to_string(THP).is_ok_and(|said| said.contains("[always]"));
        let options = if is_always { &["--disable-thp", "no"][..] } else { &[] };
        let mut tended = RedisServer::start(options)?;
        plain.fill(state, observer)?;
        tended.fill(state, observer)?;
        let tending = Some(tender_of(tended.pid())?.spawn().map_err(LabError::Thread)?);
        Ok([
            Self { name: "redis-plain", server: plain, tending: None, passes: 0 },
            Self { name: "redis-tended", server: tended, tending, passes: 0 },
        ])
    }

    /// Waits until the tender, if there is one, has made a pass since the last save.
    fn settle(&self, observer: &dyn Observer) -> Result<(), LabError> {
        match &self.tending {
            Some(tending) => pass_after(tending, self.passes, observer).map(drop),
            None => Ok(()),
        }
    }

    fn measure_saves(
        &mut self,
        time: Duration,
        observer: &dyn Observer,
    ) -> Result<SaveMeasurements, LabError> {
        self.settle(observer)?;
        let before = self.at_constant_rate(within(time, observer))?;
        let without = self.at_full_speed(within(time, observer))?;
        let during =
            self.beside_save(observer, |server, goes_on| server.at_constant_rate(goes_on))?;
        let fork = self.server.last_fork()?;
        let after = self.at_constant_rate(within(AFTER * time, observer))?;
        self.settle(observer)?;
        let resident = Extent::of(self.server.pid())?.all;
        let beside = self.beside_save(observer, |server, goes_on| server.at_full_speed(goes_on))?;
        observer.check()?;
        Ok(SaveMeasurements {
            fork,
            latencies: [before, during, after],
            rates: [without, beside],
            resident,
        })
    }

    /// Measures a client while the server saves.
    fn beside_save<T>(
        &mut self,
        observer: &dyn Observer,
        client: impl FnOnce(&Self, &dyn Fn() -> bool) -> Result<T, LabError>,
    ) -> Result<T, LabError> {
        self.passes = self.tending.as_ref().map_or(0, passes);
        let saving = AtomicBool::new(true);
        thread::scope(|scope| {
            let save = spawn(scope, || {
                let saved = self.server.save();
                saving.store(false, Ordering::Relaxed);
                saved
            })?;
            let goes_on = || saving.load(Ordering::Relaxed) && observer.check().is_ok();
            let seen = client(self, &goes_on);
            save.join().expect("to save does not panic")?;
            seen
        })
    }

    fn at_constant_rate(&self, goes_on: impl Fn() -> bool) -> Result<Histogram<u64>, LabError> {
        let (mut connection, keys) = (self.server.connect()?, self.server.keys());
        let mut random = fastrand::Rng::with_seed(1);
        at_constant_rate(RATE, || set(&mut connection, random.usize(..keys)), goes_on)
    }

    fn at_full_speed(&self, goes_on: impl Fn() -> bool) -> Result<f64, LabError> {
        let (mut connection, keys) = (self.server.connect()?, self.server.keys());
        let mut random = fastrand::Rng::with_seed(2);
        at_full_speed(|| set_many(&mut connection, some_keys(keys, &mut random)), goes_on)
    }
}

/// For so long, unless the run ends.
fn within(time: Duration, observer: &dyn Observer) -> impl Fn() -> bool + '_ {
    let began = Instant::now();
    move || began.elapsed() < time && observer.check().is_ok()
}

fn watch(state: usize, before: Duration, rounds: Rounds<'_>) -> Result<Part, LabError> {
    let label = Size(state).to_string();
    rounds.observer.begin(&format!("tend redis {label}"));
    let mut servers = MeasuredServer::both(state, rounds.observer)?;
    let methods = servers.each_ref().map(|server| server.name);
    let names = methods.map(|method| format!("{method}/fork-{label}"));
    let measured = rounds.measure_with("tend", Unit::Microseconds, &names, |index| {
        let saves = servers[index].measure_saves(before, rounds.observer)?;
        Ok((saves.fork.as_secs_f64() * 1e6, saves))
    });
    let (mut part, measured) = measured?;
    for (method, measured) in
        methods.iter().zip(&measured).filter(|(_, measured)| !measured.is_empty())
    {
        describe(method, measured, &label, &mut part);
    }
    for what in FIGURES.map(|(what, ..)| format!("{what}-{label}")) {
        let sides = methods.map(|method| format!("{method}/{what}"));
        part.ratio(&format!("redis-plain-vs-tended/{what}"), (&sides[0], &sides[1]), None);
    }
    Ok(part)
}

/// A name, a unit, and the sample of two saves.
type Recorded = (&'static str, Unit, fn(&SaveMeasurements) -> f64);

/// The recorded figures of two saves.
const FIGURES: [Recorded; 7] = [
    ("fork", Unit::Microseconds, |saves| saves.fork.as_secs_f64() * 1e6),
    ("longest-set-before", Unit::Microseconds, |saves| saves.latencies[0].max() as f64 / 1e3),
    ("longest-set", Unit::Microseconds, |saves| saves.latencies[1].max() as f64 / 1e3),
    ("longest-set-after", Unit::Microseconds, |saves| saves.latencies[2].max() as f64 / 1e3),
    ("throughput", Unit::StoresPerSecond, |saves| saves.rates[0]),
    ("throughput-saving", Unit::StoresPerSecond, |saves| saves.rates[1]),
    ("rss", Unit::Mebibytes, |saves| saves.resident as f64 / MIB as f64),
];

/// Adds what was seen of one server. Its forks are there.
fn describe(name: &str, measured: &[SaveMeasurements], label: &str, part: &mut Part) {
    for (what, unit, figure) in &FIGURES[1..] {
        let samples = measured.iter().map(figure).collect();
        part.add_case(&format!("{name}/{what}-{label}"), *unit, samples);
    }
    for (index, phase) in PHASES.iter().enumerate() {
        let all = sum(measured.iter().map(|saves| &saves.latencies[index]));
        part.distributions.push(distribution(&format!("tend/{name}/set-{phase}-{label}"), &all));
    }
}
