//! Work in a thread of its own while the first thread waits for signals, so that they are heard whatever the work waits
//! for: the kernel, or a reader of its output.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::Duration;

use anyhow::anyhow;

use super::signals::{Signal, Signals};

/// After a signal the work has so long to end. Then the process ends without it.
const GRACE: Duration = Duration::from_millis(700);

/// The last line may take so long.
const LAST: Duration = Duration::from_millis(200);

/// An event that the first thread waits for.
pub(super) enum Awaited {
    Signal(Signal),
    /// The work has ended.
    Ended(anyhow::Result<()>),
}

/// Starts the work, and a thread that waits for the signals.
pub(super) fn start(
    signals: Signals,
    stop: &Arc<AtomicBool>,
    work: impl FnOnce(&AtomicBool) -> anyhow::Result<()> + Send + 'static,
) -> std::io::Result<Receiver<Awaited>> {
    let (tell, events) = channel();
    let stop = Arc::clone(stop);
    let told: Sender<Awaited> = tell.clone();
    Builder::new()
        .name("signals".into())
        .spawn(move || while told.send(Awaited::Signal(signals.wait())).is_ok() {})?;
    let run = move || {
        // Unwinding must not leave the first thread waiting for an end that never comes.
        let ended = catch_unwind(AssertUnwindSafe(|| work(&stop)));
        tell.send(Awaited::Ended(
            ended.unwrap_or_else(|_| Err(anyhow!("the tending has panicked"))),
        ))
    };
    Builder::new().name("tending".into()).spawn(run)?;
    Ok(events)
}

/// Works until that is done, or a signal came: its number.
pub(super) fn until_signal(
    signals: Signals,
    work: impl FnOnce(&AtomicBool) -> anyhow::Result<()> + Send + 'static,
) -> anyhow::Result<Option<i32>> {
    let stop = Arc::new(AtomicBool::new(false));
    let events = start(signals, &stop, work)?;
    match events.recv()? {
        Awaited::Ended(ended) => ended.map(|()| None),
        Awaited::Signal(signal) => {
            stop.store(true, Ordering::Relaxed);
            end(&events).map(|()| Some(signal.number))
        }
    }
}

/// The work's end, if it comes soon.
fn end(events: &Receiver<Awaited>) -> anyhow::Result<()> {
    loop {
        match events.recv_timeout(GRACE) {
            Ok(Awaited::Ended(ended)) => return ended,
            Ok(Awaited::Signal(_)) => {}
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

/// Has a thread do this, and waits for it, but not long: whoever should read its output may not.
pub(super) fn briefly(last: impl FnOnce() + Send + 'static) {
    let (tell, done) = channel();
    let run = move || {
        last();
        tell.send(())
    };
    if Builder::new().name("last".into()).spawn(run).is_ok() {
        let _ = done.recv_timeout(LAST);
    }
}
