//! Tenders of programs that are measured.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hugekit_tend::{PassReport, Tender, Tending};

use crate::measure::workloads::threads::spawn;
use crate::measure::{LabError, Observer};

/// Between two looks at what a tender does.
const PAUSE: Duration = Duration::from_millis(10);

/// The longest pass over what is measured, on a machine that does something else.
const PATIENCE: Duration = Duration::from_secs(300);

/// A tender of one process, by the settings that it has unless told.
pub fn tender_of(pid: i32) -> Result<Tender, LabError> {
    Ok(Tender::builder().process(pid).build()?)
}

/// Makes one pass, which ends early if the run does.
pub fn pass(tender: &mut Tender, observer: &dyn Observer) -> Result<PassReport, LabError> {
    let stop = AtomicBool::new(false);
    let reports = thread::scope(|scope| {
        let pass = spawn(scope, || tender.pass(&stop))?;
        while !pass.is_finished() {
            stop.store(observer.check().is_err(), Ordering::Relaxed);
            thread::sleep(PAUSE);
        }
        Ok::<_, LabError>(pass.join().expect("a pass does not panic")?)
    })?;
    observer.check()?;
    Ok(reports.into_iter().next().expect("a report for each process"))
}

/// Waits for a whole pass of a tender, of which none is counted that came before these; what it did.
pub fn pass_after(
    tending: &Tending,
    passes: u64,
    observer: &dyn Observer,
) -> Result<PassReport, LabError> {
    let since = Instant::now();
    loop {
        observer.check()?;
        let said = tending.said().pop();
        let done = said.filter(|status| status.passes > passes && status.children == 0);
        let whole = done.and_then(|status| status.last).filter(|last| last.hindrance.is_none());
        if let Some(report) = whole {
            return Ok(report);
        }
        if since.elapsed() > PATIENCE || tending.is_over() {
            let said =
                format!("no whole pass in {:?}; it says {:?}", since.elapsed(), tending.said());
            let cause = std::io::Error::other(said);
            return Err(LabError::Program { name: "the tender", source: cause });
        }
        thread::sleep(PAUSE);
    }
}

/// Passes that it has made.
pub fn passes(tending: &Tending) -> u64 {
    tending.said().pop().map_or(0, |status| status.passes)
}
