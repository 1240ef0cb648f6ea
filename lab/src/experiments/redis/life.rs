//! The life of a server: it is filled, a replica copies it, saves follow on each other, and all keys are deleted.

use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use hugekit_tend::{Extent, TendError, Tending};

use super::Way;
use crate::measure::workloads::clients::{Wait, waits_at_constant_rate};
use crate::measure::workloads::mixed_data::MixedData;
use crate::measure::workloads::redis_server::RedisServer;
use crate::measure::workloads::tending::tender_of;
use crate::measure::workloads::threads::spawn;
use crate::measure::{LabError, Observer};

/// SETs a second of the client.
const RATE: u32 = 1000;

/// A request that was due so shortly before a fork may wait for it.
const BEFORE_FORK: Duration = Duration::from_millis(10);

/// A fork is in the way of a client for so long.
const AT_FORK: Duration = Duration::from_secs(1);

/// Between two looks for the end of the run.
const PIECE: Duration = Duration::from_millis(50);

/// The course of a life.
#[derive(Debug)]
pub(super) struct Times {
    /// From the replica's copy to the first save. A tender makes its first pass then.
    settling: Duration,
    /// From the end of each save to the next save. All keys are deleted as soon as the last one has ended, when a tender
    /// makes a pass.
    gaps: &'static [Duration],
    /// So long before a save, the huge pages are counted. The count delays the server's calls of mmap.
    counted: Duration,
    /// From the deletion of all keys to the look at the memory.
    flushed: Duration,
}

impl Times {
    pub(super) const FULL: Self = Self {
        settling: Duration::from_secs(12),
        gaps: &[
            Duration::from_secs(2),
            Duration::from_secs(3),
            Duration::from_secs(4),
            Duration::from_secs(2),
        ],
        counted: Duration::from_secs(1),
        flushed: Duration::from_secs(13),
    };
    pub(super) const QUICK: Self = Self {
        settling: Duration::from_millis(300),
        gaps: &[Duration::from_millis(200), Duration::from_millis(100)],
        counted: Duration::from_millis(50),
        flushed: Duration::from_millis(200),
    };
}

/// The figures of a server.
#[derive(Debug)]
pub(super) struct Life {
    /// The fork for the replica's copy.
    pub(super) sync: Duration,
    pub(super) saves: Vec<Save>,
    /// Waits of the client before the first save, and between saves.
    pub(super) settling: Waits,
    pub(super) without_save: Waits,
    /// Private memory after the last save, and after the deletion of all keys.
    pub(super) resident: u64,
    pub(super) flushed: u64,
}

#[derive(Debug)]
pub(super) struct Save {
    pub(super) fork: Duration,
    /// The share of the server's memory that was on huge pages shortly before.
    pub(super) huge: f64,
    /// The client's longest wait within a second of the fork, and of the whole save.
    pub(super) wait_at_fork: Duration,
    pub(super) longest_wait: Duration,
}

/// Waits of a client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Waits {
    pub(super) p99: Duration,
    pub(super) longest: Duration,
}

/// A save whose client is not known yet.
#[derive(Clone, Copy, Debug)]
struct Seen {
    fork: Duration,
    huge: f64,
    began: Instant,
    ended: Instant,
}

impl Life {
    pub(super) fn live(
        way: Way,
        bytes: usize,
        times: &Times,
        observer: &dyn Observer,
    ) -> Result<Self, LabError> {
        let (server, port) = start(way)?;
        // As a service does: it runs before the server has any data.
        let _tending = if way.is_tended() { Some(tend(&server)?) } else { None };
        let data = MixedData::new(bytes);
        data.fill(&server, observer)?;
        let _replica = RedisServer::start_replica(port, observer)?;
        let sync = server.last_fork()?;
        let (seen, waits) = beside_client(&server, &data, || saves(&server, times, observer))?;
        let resident = Extent::of(server.pid())?.all;
        server.flush()?;
        pause(times.flushed, observer)?;
        let flushed = Extent::of(server.pid())?.all;
        let saves = seen.iter().map(|save| save.with(&waits)).collect();
        let (settling, without_save) = apart_from_saves(&seen, &waits);
        Ok(Self { sync, saves, settling, without_save, resident, flushed })
    }

    pub(super) fn all(&self, figure: impl Fn(&Save) -> f64) -> Vec<f64> {
        self.saves.iter().map(figure).collect()
    }

    /// Figures of all saves but the first.
    pub(super) fn later(&self, figure: impl Fn(&Save) -> f64) -> Vec<f64> {
        self.saves[1..].iter().map(figure).collect()
    }
}

/// Returns the reason why no server can be tended here, if so.
pub(super) fn why_not_tended() -> Result<Option<TendError>, LabError> {
    match tender_of(RedisServer::start(&[])?.pid()) {
        Ok(_) => Ok(None),
        Err(LabError::Tend(error)) => Ok(Some(error)),
        Err(error) => Err(error),
    }
}

/// A server with a port for its replica. It rewrites its append-only file never, because that is a fork, too.
fn start(way: Way) -> Result<(RedisServer, u16), LabError> {
    let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let port = port.map_err(|source| LabError::Program { name: "redis-server", source })?.port();
    let number = port.to_string();
    let mut options = vec!["--bind", "127.0.0.1", "--port", &number, "--appendonly", "yes"];
    options.extend(["--auto-aof-rewrite-percentage", "0", "--repl-diskless-sync-delay", "0"]);
    options.extend(way.options());
    Ok((RedisServer::start_with(&options, way.environment())?, port))
}

fn tend(server: &RedisServer) -> Result<Tending, LabError> {
    tender_of(server.pid())?.spawn().map_err(LabError::Thread)
}

fn beside_client<T>(
    server: &RedisServer,
    data: &MixedData,
    work: impl FnOnce() -> Result<T, LabError>,
) -> Result<(T, Vec<Wait>), LabError> {
    let goes_on = AtomicBool::new(true);
    thread::scope(|scope| {
        let client = spawn(scope, || {
            let (mut connection, mut random) = (server.connect()?, fastrand::Rng::with_seed(1));
            let overwrite = || data.overwrite(&mut connection, &mut random);
            waits_at_constant_rate(RATE, overwrite, || goes_on.load(Ordering::Relaxed))
        })?;
        let done = work();
        goes_on.store(false, Ordering::Relaxed);
        let waits = client.join().expect("a client does not panic")?;
        Ok((done?, waits))
    })
}

fn saves(
    server: &RedisServer,
    times: &Times,
    observer: &dyn Observer,
) -> Result<Vec<Seen>, LabError> {
    let mut saves = Vec::new();
    let (mut before, mut gaps) = (times.settling, times.gaps.iter());
    loop {
        pause(before.saturating_sub(times.counted), observer)?;
        let memory = Extent::of(server.pid())?;
        let huge = memory.huge as f64 / memory.all as f64;
        pause(times.counted, observer)?;
        let began = Instant::now();
        server.save()?;
        let ended = Instant::now();
        saves.push(Seen { fork: server.last_fork()?, huge, began, ended });
        match gaps.next() {
            Some(&gap) => before = gap,
            None => return Ok(saves),
        }
    }
}

impl Seen {
    fn with(&self, waits: &[Wait]) -> Save {
        let from = self.began - BEFORE_FORK;
        let longest = |until| longest(waits.iter().filter(|w| w.due >= from && w.due <= until));
        Save {
            fork: self.fork,
            huge: self.huge,
            wait_at_fork: longest(self.began + AT_FORK),
            longest_wait: longest(self.ended),
        }
    }
}

fn longest<'a>(waits: impl Iterator<Item = &'a Wait>) -> Duration {
    waits.map(|wait| wait.took).max().unwrap_or_default()
}

/// Waits before the first save, and those between saves.
fn apart_from_saves(saves: &[Seen], waits: &[Wait]) -> (Waits, Waits) {
    let is_beside = |wait: &Wait| {
        saves.iter().any(|save| wait.due + wait.took >= save.began && wait.due <= save.ended)
    };
    let (first, apart) = (saves[0].began, waits.iter().filter(|wait| !is_beside(wait)));
    let (settling, between): (Vec<&Wait>, Vec<_>) = apart.partition(|wait| wait.due < first);
    (Waits::of(&settling), Waits::of(&between))
}

impl Waits {
    fn of(waits: &[&Wait]) -> Self {
        let mut times: Vec<_> = waits.iter().map(|wait| wait.took).collect();
        times.sort_unstable();
        let Some(&longest) = times.last() else { return Self::default() };
        Self { p99: times[(times.len() - 1) * 99 / 100], longest }
    }
}

fn pause(time: Duration, observer: &dyn Observer) -> Result<(), LabError> {
    let end = Instant::now() + time;
    loop {
        observer.check()?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        sleep(left.min(PIECE));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);

    #[test]
    fn waits_belong_to_the_fork_the_save_or_neither() {
        let start = Instant::now();
        let at = |millis: u32| start + millis * MILLI;
        let wait = |due: u32, took: u32| Wait { due: at(due), took: took * MILLI };
        let waits = [
            wait(0, 3),
            wait(995, 70),
            wait(1500, 20),
            wait(2100, 90),
            wait(3000, 5),
            wait(3100, 4),
        ];
        let seen = Seen { fork: MILLI, huge: 0.5, began: at(1000), ended: at(2500) };
        let save = seen.with(&waits);
        assert_eq!((save.wait_at_fork, save.longest_wait), (70 * MILLI, 90 * MILLI));
        let (settling, between) = apart_from_saves(&[seen], &waits);
        assert_eq!(settling, Waits { p99: 3 * MILLI, longest: 3 * MILLI });
        assert_eq!((between.p99, between.longest), (4 * MILLI, 5 * MILLI));
    }
}
