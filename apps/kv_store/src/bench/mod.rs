//! What clients notice of a save: SET latencies before, during and after BGSAVE, of the real server and of this one.
//!
//! All servers hold the same keys. In each round, each is loaded in turn while it saves, and a ratio compares within
//! one round. A latency counts from when the request was due, not from when a connection was free for it: a
//! server that stands still makes all wait that come meanwhile.

mod load;
mod servers;

use std::time::Duration;

use anyhow::Result;
use clap::Args;
use hdrhistogram::Histogram;
use hugekit::{PopulateOptions, Threads};

use self::load::{Load, Measured};
use self::servers::{Kind, Running};

/// Compare SET latencies during a save with the real redis-server
#[derive(Clone, Debug, Args)]
pub(crate) struct Options {
    /// Keys, each with a value of 256 to 1024 bytes
    #[arg(long, default_value_t = 1_600_000)]
    keys: u64,
    /// SETs a second; 0 sends as fast as they are answered
    #[arg(long, default_value_t = 10_000)]
    rate: u64,
    /// Connections, each with one request at a time
    #[arg(long, default_value_t = 50)]
    connections: usize,
    /// How often each server saves, in turn
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    rounds: u16,
    /// Seconds of load before and after each save
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Servers that are compared
    #[arg(long, value_delimiter = ',', default_value = "kv-store,redis,redis-thp")]
    servers: Vec<Kind>,
    /// Priority of this server's thread that saves, as of nice(1)
    #[arg(long, default_value_t = 19, allow_hyphen_values = true)]
    save_nice: i32,
}

/// Bytes of free memory that are touched before each measurement, for each key: what a save may take, for copies of
/// pages and for the file's pages.
const WARMED: usize = 2000;

/// What one server showed in all rounds.
#[derive(Debug)]
struct Shown {
    kind: Kind,
    before: Histogram<u64>,
    during: Histogram<u64>,
    after: Histogram<u64>,
    /// p99.9 during each save, in nanoseconds.
    tails: Vec<u64>,
    saves: Vec<Duration>,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let mut all = Vec::new();
    for &kind in &options.servers {
        let server = Running::start(kind, options.keys, options.save_nice)?;
        load::fill(server.port(), options.keys)?;
        println!("{kind}: {} keys, {}", options.keys, server.memory()?);
        all.push((server, Shown::new(kind)?));
    }
    for round in 1..=options.rounds {
        for (server, shown) in &mut all {
            let load = Load {
                keys: options.keys,
                rate: options.rate,
                connections: options.connections,
                margin: Duration::from_secs_f64(options.seconds),
            };
            warm(WARMED * options.keys as usize)?;
            let measured = load.during_a_save(server.port())?;
            shown.add(&measured)?;
            let (kind, save, cost) = (shown.kind, measured.save(), server.cost()?);
            let tail = shown.tails.last().map_or(0.0, |&tail| milliseconds(tail));
            println!("round {round}, {kind}: p99.9 {tail:.1} ms, saved in {save:.2?}{cost}");
        }
    }
    let shown: Vec<Shown> = all.into_iter().map(|(_, shown)| shown).collect();
    print(&shown);
    Ok(())
}

/// Has a hypervisor back so much of the memory that is free: its own first faults, milliseconds each, would be
/// measured otherwise.
fn warm(bytes: usize) -> Result<()> {
    let mut memory = Box::<[u8]>::new_uninit_slice(bytes);
    PopulateOptions::new().threads(Threads::Auto).run(&mut memory)?;
    Ok(())
}

impl Shown {
    fn new(kind: Kind) -> Result<Self> {
        let histogram = || Histogram::new(3);
        let (before, during, after) = (histogram()?, histogram()?, histogram()?);
        Ok(Self { kind, before, during, after, tails: Vec::new(), saves: Vec::new() })
    }

    fn add(&mut self, measured: &Measured) -> Result<()> {
        let [before, during, after] = measured.phases()?;
        self.tails.push(during.value_at_quantile(0.999));
        self.saves.push(measured.save());
        self.before.add(before)?;
        self.during.add(during)?;
        self.after.add(after)?;
        Ok(())
    }
}

fn print(shown: &[Shown]) {
    println!(
        "\n{:24} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8}",
        "SET, ms", "count", "p50", "p99", "p99.9", "p99.99", "max"
    );
    for server in shown {
        for (phase, histogram) in [
            ("before", &server.before),
            ("during a save", &server.during),
            ("after", &server.after),
        ] {
            let name = format!("{} {phase}", server.kind);
            print!("{name:32} {:>8}", histogram.len());
            for quantile in [0.5, 0.99, 0.999, 0.9999, 1.0] {
                print!(" {:>8.3}", milliseconds(histogram.value_at_quantile(quantile)));
            }
            println!();
        }
    }
    let Some(ours) = shown.iter().find(|server| server.kind == Kind::Ours) else { return };
    for server in shown.iter().filter(|server| server.kind != Kind::Ours) {
        let pairs = server.tails.iter().zip(&ours.tails);
        let mut ratios: Vec<f64> = pairs.map(|(&real, &ours)| real as f64 / ours as f64).collect();
        ratios.sort_by(f64::total_cmp);
        println!(
            "p99.9 of SET during BGSAVE, {} / {}: {:.1}, from {:.1} to {:.1} in {} rounds",
            server.kind,
            ours.kind,
            ratios[ratios.len() / 2],
            ratios[0],
            ratios[ratios.len() - 1],
            ratios.len()
        );
    }
}

fn milliseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e6
}
