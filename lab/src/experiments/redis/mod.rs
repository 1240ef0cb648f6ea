//! A real Redis as its operators run it: values of mixed kinds and lengths, an append-only file, a replica, a client that
//! overwrites all the time, and saves that follow on each other within seconds (`life.rs`). It runs in several ways in
//! turn, by its users' means and by the tender. Each turn starts a new server.

mod life;

use std::fs;
use std::io;
use std::time::Duration;

use self::life::{Life, Times};
use super::{Bench, Definition};
use crate::measure::LabError;
use crate::measure::part::{Part, Parts};
use crate::measure::workloads::redis_server::RedisServer;
use crate::record::{Experiment, Unit};
use hugekit::error_chain;
use hugekit_machine::Root;
use hugekit_machine::size::{MIB, Size};

pub(super) const DEFINITION: Definition = Definition {
    name: "redis",
    repeats: "beyond: saves of a Redis with mixed values, a replica and a client that writes",
    why: "Measures the forks of a real Redis and the waits of its client, when saves follow on each other within \
          seconds. Its values are of mixed kinds and lengths and are overwritten all the time, so its allocator gives \
          pages back and writes during a save split huge pages. Compares what its users have without hugekit with the \
          tender, and with both together.",
    headlines: &["stock-vs-tend", "malloc-vs-tend", "malloc-vs-both"],
    is_core: false,
    run,
};

/// Bytes of the server's data, if there is room.
const MOST: usize = 2236 * MIB;
const QUICK: usize = 16 * MIB;

/// The available memory must have room for this many: the server, its replica, the pages that are written during a save,
/// and its files in the page cache.
const IN_MEMORY: usize = 4;

const THP: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// A way to run a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Stock,
    Tend,
    Malloc,
    Both,
    /// Transparent huge pages for every program, and khugepaged faster than by default.
    Always,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Stock => "stock",
            Self::Tend => "tend",
            Self::Malloc => "malloc",
            Self::Both => "both",
            Self::Always => "always",
        }
    }

    fn is_tended(self) -> bool {
        matches!(self, Self::Tend | Self::Both)
    }

    /// The allocator of Debian's Redis reads the first variable, and the one in Redis's sources the second.
    fn environment(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Malloc | Self::Both => {
                &[("MALLOC_CONF", "thp:always"), ("JE_MALLOC_CONF", "thp:always")]
            }
            _ => &[],
        }
    }

    /// If the setting is `always`, a server switches huge pages off for itself.
    fn options(self) -> &'static [&'static str] {
        let is_always = || fs::read_to_string(THP).is_ok_and(|said| said.contains("[always]"));
        match self {
            Self::Stock => &[],
            _ if is_always() => &["--disable-thp", "no"],
            _ => &[],
        }
    }
}

fn run(bench: &mut Bench<'_>) -> Result<Experiment, LabError> {
    let version = match RedisServer::version() {
        Ok(version) => version,
        Err(error) => {
            let reason = format!("no redis-server: {error}");
            return Ok(Experiment::skipped("redis", reason, "install redis-server"));
        }
    };
    let most = if bench.options().quick { QUICK } else { MOST };
    let memory = bench.leave_memory()?;
    let bytes = most.min(memory).min(bench.available_memory()? / IN_MEMORY) / MIB * MIB;
    let mut experiment = Experiment::on("redis", format!("a server with {} of data", Size(bytes)));
    experiment.notices.push(version);
    let ways = ways(bench, &mut experiment.notices)?;
    let part = measure(bench, &ways, bytes)?;
    experiment.add("saves", Ok(part))?;
    Ok(experiment)
}

/// The ways that this machine has.
fn ways(bench: &mut Bench<'_>, notices: &mut Vec<String>) -> Result<Vec<Way>, LabError> {
    let mut ways = vec![Way::Stock];
    match life::why_not_tended()? {
        None => ways.push(Way::Tend),
        Some(error) => {
            notices.push(format!("tend and both left out: {:#}", error_chain(&error)));
        }
    }
    if bench.allow_thp()? {
        ways.push(Way::Malloc);
        if ways.contains(&Way::Tend) {
            ways.push(Way::Both);
        }
    } else {
        notices.push("malloc and both left out: transparent huge pages are off".to_owned());
    }
    match bench.options().setup {
        true => ways.push(Way::Always),
        false => notices.push("always left out: it changes settings, with `--setup`".to_owned()),
    }
    Ok(ways)
}

fn measure(bench: &mut Bench<'_>, ways: &[Way], bytes: usize) -> Result<Part, LabError> {
    let label = Size(bytes).to_string();
    let times = if bench.options().quick { Times::QUICK } else { Times::FULL };
    let rounds = bench.long_rounds(0.1, 4);
    rounds.observer.begin(&format!("redis {label}"));
    let names: Vec<_> =
        ways.iter().map(|way| format!("{}/fork-first-{label}", way.name())).collect();
    let measured = rounds.measure_with("redis", Unit::Microseconds, &names, |index| {
        let way = ways[index];
        bench.with_settings_for_a_while(|settings| {
            if way == Way::Always && !settings.huge_pages_for_all(&Root::default())? {
                let source = io::Error::other("this kernel lacks one of its settings");
                return Err(LabError::Program { name: "khugepaged", source });
            }
            let life = Life::live(way, bytes, &times, rounds.observer)?;
            Ok((micros(life.saves[0].fork), life))
        })
    });
    let (mut part, lives) = measured?;
    for (way, lives) in ways.iter().zip(&lives) {
        for (what, unit, figures) in &FIGURES {
            let samples = lives.iter().flat_map(figures).collect();
            part.add_case(&format!("{}/{what}-{label}", way.name()), *unit, samples);
        }
        // Without huge pages there is nothing to compare.
        let huge = lives.iter().flat_map(|life| life.later(|save| save.huge * 100.0)).collect();
        let name = format!("{}/huge-before-later-{label}", way.name());
        part.add_case(&name, Unit::Percent, huge);
    }
    for (baseline, subject) in
        [("stock", "tend"), ("malloc", "tend"), ("malloc", "both"), ("always", "both")]
    {
        part.compare((baseline, subject), &format!("fork-first-{label}"), None);
        for (what, ..) in &FIGURES {
            part.compare((baseline, subject), &format!("{what}-{label}"), None);
        }
    }
    Ok(part)
}

/// A name, a unit, and the samples of a server's life.
type Recorded = (&'static str, Unit, fn(&Life) -> Vec<f64>);

/// The recorded figures, beside the fork of the first save.
const FIGURES: [Recorded; 11] = [
    ("fork-later", Unit::Microseconds, |life| life.later(|save| micros(save.fork))),
    ("fork-sync", Unit::Microseconds, |life| vec![micros(life.sync)]),
    ("wait-at-fork-first", Unit::Microseconds, |life| vec![micros(life.saves[0].wait_at_fork)]),
    ("wait-at-fork-later", Unit::Microseconds, |life| life.later(|save| micros(save.wait_at_fork))),
    ("wait-in-save", Unit::Microseconds, |life| life.all(|save| micros(save.longest_wait))),
    ("wait-before-first-save", Unit::Microseconds, |life| vec![micros(life.settling.longest)]),
    ("p99-before-first-save", Unit::Microseconds, |life| vec![micros(life.settling.p99)]),
    ("p99-without-save", Unit::Microseconds, |life| vec![micros(life.without_save.p99)]),
    ("wait-without-save", Unit::Microseconds, |life| vec![micros(life.without_save.longest)]),
    ("rss", Unit::Mebibytes, |life| vec![mebibytes(life.resident)]),
    ("rss-after-flush", Unit::Mebibytes, |life| vec![mebibytes(life.flushed)]),
];

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}
