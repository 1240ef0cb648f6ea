//! Which clear routines this processor has.

use super::line::{Line, Topic};

const TOPIC: Topic = Topic("routines");

/// A routine: its name, its kind, whether this processor has it, and what it needs.
pub(super) type Row<'a> = (&'a str, &'a str, bool, &'a str);

pub(super) fn routine_lines<'a>(rows: impl IntoIterator<Item = Row<'a>>) -> Vec<Line> {
    rows.into_iter().map(routine_line).collect()
}

fn routine_line((name, kind, available, needs): Row) -> Line {
    match available {
        true => TOPIC.ok(name, kind),
        false => TOPIC.note(name, format!("{kind}; needs {needs}")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::line::Verdict;
    use super::*;

    #[test]
    fn what_is_not_available_says_what_it_needs() {
        let rows =
            [("memset", "cached", true, ""), ("clzero", "streaming", false, "an AMD processor")];
        let lines = routine_lines(rows);
        assert_eq!(lines[0].verdict, Verdict::Ok);
        assert_eq!(lines[1].value, "streaming; needs an AMD processor");
    }
}
