//! Children, from the answer of their VMMs until they are independent of this process.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::checkpoint::children::Children;
use crate::checkpoint::fork_error::ForkError;
use crate::pager::{Completed, Event};
use crate::vmm::ControlError;

/// The longest time between two checks for a late child.
const LOOK: Duration = Duration::from_millis(20);

/// The longest time from the answer of a child's VMM until the child requests memory.
const LONGEST_CONNECT: Duration = Duration::from_secs(60);

/// The longest wait for the answer of a VMM whose child is lost.
const LONGEST_ANSWER: Duration = Duration::from_secs(2);

/// A child that is independent of this process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grown {
    pub(crate) restored: Instant,
    /// `None` for a child whose memory is a mapping of a file.
    pub(crate) completed: Option<Completed>,
}

/// A report of a thread.
pub(crate) enum ChildNews {
    /// The child with this number is restored.
    Restored(usize, Instant),
    /// The VMM that is this process asks for memory.
    Connected(i32),
    Served(Event),
    Failed(ForkError),
}

/// Waits until all children are restored, or until one has failed. The children need no memory from
/// this process.
pub(crate) fn await_restored(
    children: &Children<'_>,
    news: &Receiver<ChildNews>,
) -> Result<Vec<Grown>, ForkError> {
    let mut restored = vec![None; children.all().len()];
    while restored.contains(&None) {
        match news.recv() {
            Ok(ChildNews::Restored(number, at)) => restored[number - 1] = Some(at),
            Ok(ChildNews::Failed(error)) => return Err(error),
            Ok(ChildNews::Connected(_) | ChildNews::Served(_)) => {}
            Err(_) => return Err(ForkError::Memory("no VM has connected".to_owned())),
        }
    }
    Ok(restored.into_iter().flatten().map(|restored| Grown { restored, completed: None }).collect())
}

/// Waits until all children are complete, or until one has failed.
pub(crate) fn await_all(
    children: &Children<'_>,
    news: &Receiver<ChildNews>,
) -> Result<Vec<Grown>, ForkError> {
    let count = children.all().len();
    let (mut restored, mut completed) = (vec![None; count], vec![None; count]);
    let mut connected = vec![false; count];
    loop {
        let pairs = restored.iter().zip(&completed);
        let grown = pairs.map(|(&restored, &completed)| {
            Some(Grown { restored: restored?, completed: Some(completed?) })
        });
        if let Some(grown) = grown.collect() {
            return Ok(grown);
        }
        // Threads end when they have reported.
        let next = match news.recv_timeout(LOOK) {
            Ok(next) => next,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(ForkError::Memory("no VM has connected".to_owned()));
            }
            Err(RecvTimeoutError::Timeout) => {
                check_connected(&restored, &connected)?;
                continue;
            }
        };
        match next {
            ChildNews::Connected(pid) => {
                if let Some(number) = children.number_of(pid) {
                    connected[number - 1] = true;
                }
            }
            ChildNews::Restored(number, at) => restored[number - 1] = Some(at),
            ChildNews::Served(Event::Complete(done)) => {
                let number = children.number_of(done.pid);
                let stranger = || ForkError::Memory(format!("process {} is no child", done.pid));
                completed[number.ok_or_else(stranger)? - 1] = Some(done);
            }
            ChildNews::Served(event) => {
                refuse_failure(&event).map_err(|lost| answer_of_vmm(news).unwrap_or(lost))?;
            }
            ChildNews::Failed(error) if is_silence(&error) => {
                return Err(failure_of_handler(news).unwrap_or(error));
            }
            ChildNews::Failed(error) => return Err(error),
        }
    }
}

/// A VMM connects before it answers that the VM is restored.
fn check_connected(restored: &[Option<Instant>], connected: &[bool]) -> Result<(), ForkError> {
    let is_late = |at: &Option<Instant>| at.is_some_and(|at| at.elapsed() > LONGEST_CONNECT);
    let late =
        restored.iter().zip(connected).position(|(at, &connected)| is_late(at) && !connected);
    late.map_or(Ok(()), |index| {
        let (number, seconds) = (index + 1, LONGEST_CONNECT.as_secs());
        Err(ForkError::NotConnected { number, seconds })
    })
}

/// Returns true if a VMM gave no answer. It has ended, or was ended, for a reason in another
/// report.
fn is_silence(error: &ForkError) -> bool {
    matches!(error, ForkError::Restore { source: ControlError::NoAnswer { .. }, .. })
}

/// Waits for the message of a VMM that could not restore a child. The message comes a moment after
/// the VMM has closed the connection.
fn answer_of_vmm(news: &Receiver<ChildNews>) -> Option<ForkError> {
    next(news, |news| match news {
        ChildNews::Failed(error @ ForkError::Restore { .. }) => Some(error),
        _ => None,
    })
    .filter(|error| !is_silence(error))
}

/// Waits for the reason why the memory of a child could not be supplied, for which its VMM was
/// ended.
fn failure_of_handler(news: &Receiver<ChildNews>) -> Option<ForkError> {
    next(news, |news| match news {
        ChildNews::Served(event) => refuse_failure(&event).err(),
        _ => None,
    })
}

/// Waits for a report, at most [`LONGEST_ANSWER`].
fn next(
    news: &Receiver<ChildNews>,
    wanted: impl Fn(ChildNews) -> Option<ForkError>,
) -> Option<ForkError> {
    let until = Instant::now() + LONGEST_ANSWER;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if let Some(error) = wanted(news.recv_timeout(left).ok()?) {
            return Some(error);
        }
    }
}

fn refuse_failure(event: &Event) -> Result<(), ForkError> {
    match event {
        Event::Refused { .. } | Event::Failed { .. } | Event::Ended { .. } => {
            Err(ForkError::Memory(event.to_string()))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_that_is_known_is_told_whichever_report_comes_first() {
        let silent = || {
            let source = std::io::ErrorKind::UnexpectedEof.into();
            let source = ControlError::NoAnswer { request: "PUT".to_owned(), source };
            ForkError::Restore { number: 1, source }
        };
        let (sender, news) = std::sync::mpsc::channel();
        assert!(is_silence(&silent()));
        sender.send(ChildNews::Connected(7)).unwrap();
        sender.send(ChildNews::Served(Event::Ended { pid: 7, faults: 0 })).unwrap();
        let told = failure_of_handler(&news).unwrap();
        assert!(matches!(&told, ForkError::Memory(why) if why.contains('7')), "{told}");
        sender.send(ChildNews::Failed(silent())).unwrap();
        assert!(answer_of_vmm(&news).is_none(), "the VMM says nothing");
        let words = ControlError::Refused {
            request: "PUT".to_owned(),
            status: 400,
            answer: "no tap".to_owned(),
            remedy: None,
        };
        let refused = ForkError::Restore { number: 1, source: words };
        assert!(!is_silence(&refused));
        sender.send(ChildNews::Failed(refused)).unwrap();
        assert!(answer_of_vmm(&news).unwrap().to_string().contains("child 1"));
        drop(sender);
        assert!(failure_of_handler(&news).is_none());
    }

    #[test]
    fn child_that_does_not_ask_for_memory_is_named_when_its_time_is_over() {
        let long_ago = Instant::now().checked_sub(LONGEST_CONNECT * 2);
        let restored = [Some(Instant::now()), long_ago, long_ago, None];
        check_connected(&restored, &[false, true, true, false]).unwrap();
        // The one that is asked for its memory is not blamed for another one.
        let late = check_connected(&restored, &[false, true, false, false]).unwrap_err();
        assert!(matches!(late, ForkError::NotConnected { number: 3, seconds: 60 }), "{late}");
        check_connected(&restored[..1], &[false]).unwrap();
    }
}
