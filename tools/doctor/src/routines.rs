//! Which clear routines this processor has.

use hugekit_bulk::arch::{ClearRoutine, Kind, clear_routines};

use crate::line::{Line, Topic};

const TOPIC: Topic = Topic("routines");

pub(crate) fn lines() -> impl Iterator<Item = Line> {
    clear_routines().iter().map(line)
}

fn line(routine: &ClearRoutine) -> Line {
    let kind = match routine.kind() {
        Kind::Cached => "cached",
        Kind::Streaming => "streaming",
    };
    if routine.is_available() {
        TOPIC.ok(routine.name(), kind)
    } else {
        TOPIC.note(routine.name(), format!("{kind}; not here: needs {}", routine.needs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Verdict;

    #[test]
    fn what_is_not_available_says_what_it_needs() {
        for (routine, line) in clear_routines().iter().zip(lines()) {
            assert_eq!(line.verdict == Verdict::Ok, routine.is_available());
            assert_eq!(line.value.contains(routine.needs()), !routine.is_available());
        }
    }
}
