//! Which observations of a tender are news for people. A pass that changes nothing is none, every minute.

use std::collections::HashMap;
use std::mem::{Discriminant, discriminant};

use hugekit_tend::{ForkCost, Hindrance, PassReport, Status};

use super::event::TendEvent;
use super::news::News;
use super::words;

/// The passes and forks of each process that were printed.
#[derive(Debug)]
pub(super) struct Telling {
    cost: Option<ForkCost>,
    passes: HashMap<i32, Pass>,
}

#[derive(Debug)]
struct Pass {
    last: PassReport,
    hindrance: Option<Discriminant<Hindrance>>,
    /// The reasons of memory on small pages, as they were printed last.
    left_out: Vec<String>,
}

impl Telling {
    pub(super) fn new(cost: Option<ForkCost>) -> Self {
        Self { cost, passes: HashMap::new() }
    }

    pub(super) fn of(&mut self, event: &TendEvent<'_>) -> Option<News> {
        match *event {
            TendEvent::Begun { pid, name } => Some(words::of_begin(pid, name)),
            TendEvent::Observed(status) => self.of_status(status),
            TendEvent::Ended { pid, name } => {
                // Another process may have this number later.
                self.passes.remove(&pid);
                Some(words::of_end(pid, name))
            }
        }
    }

    fn of_status(&mut self, status: &Status) -> Option<News> {
        let Some(last) = &status.last else { return Some(words::of_forks(status)) };
        let hindrance = last.hindrance.as_ref().map(discriminant);
        let left_out = words::left_out(last);
        let now = Pass { last: last.clone(), hindrance, left_out };
        let Some(before) = self.passes.insert(status.pid, now) else {
            return Some(words::of_first_pass(status, last, self.cost));
        };
        let is_same = before.last == *last;
        if is_same || last.collapsed == 0 && before.hindrance == hindrance {
            // The reasons of this pass are not printed.
            self.passes.entry(status.pid).and_modify(|now| now.left_out = before.left_out);
            return is_same.then(|| words::of_forks(status));
        }
        Some(words::of_later_pass(status, last, self.cost, &before.left_out))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn status(collapsed: u64, hindrance: Option<Hindrance>, millis: u64) -> Status {
        let elapsed = Duration::from_millis(millis);
        let last = PassReport { collapsed, hindrance, elapsed, ..PassReport::default() };
        let (name, last) = ("server".to_owned(), Some(last));
        Status { pid: 7, name, passes: 1, forks: 0, children: 0, last_fork: None, last }
    }

    #[test]
    fn passes_are_told_when_they_changed_something_or_ended_for_another_reason() {
        let mut telling = Telling::new(None);
        let child = Some(Hindrance::Child { count: 1 });
        let mut tells = |status: &Status| telling.of_status(status);
        assert!(tells(&status(0, None, 1)).is_some(), "the first");
        assert_eq!(tells(&status(0, None, 2)), None);
        assert!(tells(&status(3, None, 3)).is_some());
        assert!(tells(&status(0, child, 4)).is_some());
        assert_eq!(tells(&status(0, Some(Hindrance::Child { count: 2 }), 5)), None);
        assert!(tells(&status(0, Some(Hindrance::Stuck), 6)).is_some());
        assert!(tells(&status(0, None, 7)).is_some());
    }

    #[test]
    fn memory_that_is_left_out_is_told_again_when_it_differs_from_what_was_printed() {
        let mut telling = Telling::new(None);
        let mut tells = |collapsed, millis, sparse| {
            let mut status = status(collapsed, None, millis);
            status.last.as_mut().unwrap().sparse = sparse;
            telling.of_status(&status).map(|news| news.in_a_line())
        };
        let has_holes = |text: Option<String>| text.unwrap().contains("too many holes");
        assert!(has_holes(tells(3, 1, 1 << 21)), "the first");
        assert!(!has_holes(tells(3, 2, 1 << 21)), "the same");
        assert!(has_holes(tells(3, 3, 1 << 22)), "more");
        assert_eq!(tells(0, 4, 1 << 23), None);
        assert!(has_holes(tells(3, 5, 1 << 23)), "the pass before was not printed");
    }

    #[test]
    fn fork_without_a_new_pass_is_told_in_a_line() {
        let mut telling = Telling::new(None);
        let mut forked = status(3, None, 1);
        telling.of_status(&forked);
        (forked.forks, forked.children) = (1, 1);
        let text = telling.of_status(&forked).unwrap().in_a_line();
        assert!(text.contains("1 fork seen") && !text.contains("pass"), "{text}");
    }

    #[test]
    fn process_with_the_number_of_an_ended_one_has_a_first_pass() {
        let mut telling = Telling::new(None);
        let first = status(0, None, 1);
        let begun = telling.of(&TendEvent::Begun { pid: 7, name: "server" }).unwrap().in_a_line();
        assert_eq!(begun, "server (7): tending");
        assert!(telling.of(&TendEvent::Observed(&first)).is_some());
        let ended = telling.of(&TendEvent::Ended { pid: 7, name: "server" }).unwrap().in_a_line();
        assert_eq!(ended, "server (7): ended");
        assert!(telling.of(&TendEvent::Observed(&status(0, None, 2))).is_some());
    }
}
