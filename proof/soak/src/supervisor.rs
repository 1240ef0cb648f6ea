//! Runs a worker in a process of its own and turns a hang into a failure with all backtraces. It shares
//! nothing with the worker but a page of counters, so that no lock the worker holds can stop it.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::backtraces;
use crate::operations::OPERATIONS;
use crate::status::{ACTORS, DESCRIPTOR, Status};

/// The end of a worker.
#[derive(Debug)]
pub enum Ended {
    /// By itself, or by a signal.
    Exited(ExitStatus),
    /// It was killed, because an actor made no step for too long: the actor, and its operation.
    Hung(String),
}

/// Runs a worker, telling `tick` its counters ten times a second.
///
/// # Errors
/// The system's error, if the worker cannot be started or watched.
pub fn run(
    mut command: Command,
    patience: Duration,
    mut tick: impl FnMut(&Status),
) -> io::Result<Ended> {
    let (status, file) = Status::create()?;
    let mut child = command.env(DESCRIPTOR, file.to_string()).spawn()?;
    let mut watch = Watch::new(patience);
    let ended = loop {
        if let Some(ended) = child.try_wait()? {
            if ended.signal().is_some() {
                status.print_actors();
            }
            break Ended::Exited(ended);
        }
        if let Some(hung) = watch.look(status) {
            end_hung(&mut child, status, &hung)?;
            break Ended::Hung(hung);
        }
        tick(status);
        std::thread::sleep(Duration::from_millis(100));
    };
    tick(status);
    // SAFETY: opened above; the page stays mapped.
    unsafe { libc::close(file) };
    Ok(ended)
}

/// The child may be the worker, or a tracer that runs it: a tracer goes first, so that a debugger may come.
fn end_hung(child: &mut Child, status: &Status, hung: &str) -> io::Result<()> {
    let worker = status.process.load(Ordering::SeqCst);
    eprintln!("hung: {hung}");
    if worker != child.id() as i32 {
        child.kill()?;
    }
    if worker > 0 {
        backtraces::print(worker);
        // SAFETY: a process that this one, or the tracer that it started, has started.
        unsafe { libc::kill(worker, libc::SIGKILL) };
    }
    child.kill()?;
    child.wait().map(|_| ())
}

/// When each actor was last seen to make a step.
struct Watch {
    patience: Duration,
    seen: [(u64, u32, Instant); ACTORS],
}

impl Watch {
    fn new(patience: Duration) -> Self {
        Self { patience, seen: [(0, 0, Instant::now()); ACTORS] }
    }

    /// The actors that have made no step for too long. An actor between two operations need not make any,
    /// unless all are.
    fn look(&mut self, status: &Status) -> Option<String> {
        let mut latest = None;
        for (actor, seen) in self.seen.iter_mut().enumerate() {
            let beat = status.beats[actor].load(Ordering::Relaxed);
            let doing = status.doing[actor].load(Ordering::Relaxed);
            if (beat, doing) != (seen.0, seen.1) {
                *seen = (beat, doing, Instant::now());
            }
            latest = latest.max(Some(seen.2));
            if doing > 0 && seen.2.elapsed() > self.patience {
                let name =
                    OPERATIONS.get(doing as usize - 1).map_or("?", |operation| operation.name);
                let seed = status.seeds[actor].load(Ordering::Relaxed);
                return Some(format!(
                    "actor {actor} has made no step in operation {name}, seed {seed}, for {:?}",
                    self.patience
                ));
            }
        }
        let is_silent = latest.is_some_and(|latest| latest.elapsed() > 2 * self.patience);
        is_silent.then(|| format!("no actor has made a step for {:?}", 2 * self.patience))
    }
}
