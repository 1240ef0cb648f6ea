//! A tender at work: processes that come, go, and are another tender's for a while.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hugekit::error_chain;
use hugekit_tend::{TendError, Tender};

use super::event::TendEvent;
use super::stamp;
use super::teller::Teller;
use super::wanted::{self, Wanted};

/// The time between two looks for processes that are not tended yet.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

const NONE_OF_THEM: &str = "no process to tend yet: none that was found can be tended; waiting";

pub(super) struct Session {
    tender: Tender,
    wanted: Wanted,
    /// Processes that are not tended, for a reason that was printed.
    said: HashSet<i32>,
    /// Processes of which the kernel gave no answer at the last look.
    unanswered: HashSet<i32>,
    /// Processes that another tender had at the last look.
    taken: usize,
    /// The processes that were tended at the last comparison.
    begun: Vec<(i32, String)>,
}

impl Session {
    /// # Errors
    /// A process that is named by its number cannot be tended, for another reason than that another tender has it, or is
    /// the forked child of another process.
    pub(super) fn new(tender: Tender, wanted: Wanted) -> anyhow::Result<Self> {
        let (said, unanswered) = (HashSet::new(), HashSet::new());
        let begun = Vec::new();
        let mut session = Self { tender, wanted, said, unanswered, taken: 0, begun };
        for pid in session.wanted.pids.clone() {
            match session.tender.add(pid) {
                Ok(()) => session.wanted.check_parent(pid)?,
                Err(TendError::Taken { .. } | TendError::Stuck { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        session.look();
        session.say_waiting();
        Ok(session)
    }

    /// Prints the reason why it waits, if it does.
    fn say_waiting(&self) {
        let unmatched = self.wanted.unmatched();
        match (self.tender.is_empty(), unmatched.is_empty()) {
            (true, false) => stamp::say(&format!("no process to tend yet: {unmatched}; waiting")),
            (false, false) => stamp::say(&format!("note: {unmatched}; waiting")),
            (true, true) if self.wanted.follows() => stamp::say(NONE_OF_THEM),
            _ => {}
        }
    }

    /// Tends until all processes have ended, a stop is requested, or a reader of the events is
    /// gone.
    pub(super) fn run(
        &mut self,
        stop: &AtomicBool,
        tell: &mut dyn FnMut(&TendEvent<'_>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let mut teller = Teller::new(tell);
        let mut looked = Instant::now();
        while !stop.load(Ordering::Relaxed) && teller.told.is_ok() && self.goes_on() {
            self.compare(&mut teller);
            self.tender.tick(stop, &mut |status| teller.tell(TendEvent::Observed(status)));
            self.compare(&mut teller);
            if looked.elapsed() >= LOOK_AGAIN {
                looked = Instant::now();
                self.look();
            }
        }
        teller.told
    }

    /// Reports the processes that came and went since the last call.
    fn compare(&mut self, teller: &mut Teller<'_>) {
        let now = self.tender.processes();
        let before = std::mem::replace(&mut self.begun, now);
        for (pid, name) in before.iter().filter(|process| !self.begun.contains(process)) {
            teller.tell(TendEvent::Ended { pid: *pid, name });
        }
        for (pid, name) in self.begun.iter().filter(|process| !before.contains(process)) {
            teller.tell(TendEvent::Begun { pid: *pid, name });
        }
    }

    /// Returns true if there is a process, or may be one later.
    fn goes_on(&mut self) -> bool {
        if self.tender.is_empty() && !self.wanted.follows() {
            // One that has started another program, or that its tender has left.
            self.look();
        }
        self.wanted.follows() || self.taken > 0 || !self.tender.is_empty()
    }

    /// Adds the wanted processes that are not tended yet.
    fn look(&mut self) {
        self.taken = 0;
        let wanted = self.wanted.now();
        self.said.retain(|pid| wanted.contains(pid));
        let before = std::mem::take(&mut self.unanswered);
        for pid in wanted {
            match self.tender.try_add(pid) {
                Some(Ok(())) => {}
                // The root of the control groups has all threads of the kernel.
                Some(Err(
                    TendError::Gone { .. } | TendError::Thread { .. } | TendError::Kernel { .. },
                )) => {}
                Some(Err(error @ TendError::Taken { .. })) => {
                    self.taken += 1;
                    let other = wanted::tender_of(&error);
                    let other = other.map(|other| format!(" (process {other})"));
                    let other = other.unwrap_or_default();
                    self.say_once(pid, &format!("{error}{other}: waiting for its end"));
                }
                Some(Err(error)) => self.say_once(pid, &format!("{:#}", error_chain(&error))),
                None => {
                    self.unanswered.insert(pid);
                    if before.contains(&pid) {
                        self.say_once(pid, &TendError::Stuck { pid }.to_string());
                    }
                }
            }
        }
    }

    fn say_once(&mut self, pid: i32, what: &str) {
        if self.said.insert(pid) {
            stamp::say(&format!("note: {what}"));
        }
    }
}
