//! Several ways to do one thing, timed in turn.

use std::fmt;
use std::time::Duration;

use hugekit_terminal::text::{COLUMNS, wrap};

/// Times that each way is gone, in turn with the others.
const ROUNDS: usize = 5;

/// A way to do the task.
struct SaveWay {
    name: &'static str,
    /// Work that it leaves for another time, if the comparison is not like for like.
    elsewhere: &'static str,
    times: Vec<Duration>,
}

/// Ways that were gone in turn, the usual one first.
pub(super) struct Ways {
    about: String,
    ways: Vec<SaveWay>,
}

impl Ways {
    /// Goes each way of these names in turn; `go` is given the index of one and times it.
    pub(super) fn in_turn(
        about: String,
        names: &[(&'static str, &'static str)],
        mut go: impl FnMut(usize) -> anyhow::Result<Duration>,
    ) -> anyhow::Result<Self> {
        let way = |&(name, elsewhere): &(&'static str, &'static str)| SaveWay {
            name,
            elsewhere,
            times: Vec::with_capacity(ROUNDS),
        };
        let mut ways: Vec<SaveWay> = names.iter().map(way).collect();
        for _ in 0..ROUNDS {
            for (index, way) in ways.iter_mut().enumerate() {
                way.times.push(go(index)?);
            }
        }
        Ok(Self { about, ways })
    }
}

impl SaveWay {
    fn median(&self) -> Duration {
        let mut times = self.times.clone();
        times.sort();
        times[times.len() / 2]
    }
}

impl fmt::Display for Ways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in wrap(&self.about, COLUMNS) {
            writeln!(f, "{line}")?;
        }
        writeln!(f)?;
        let usual = self.ways[0].median().as_secs_f64();
        let width = self.ways.iter().map(|way| way.name.len()).max().unwrap_or(0);
        for way in &self.ways {
            let median = way.median();
            let times = usual / median.as_secs_f64();
            let time = format!("{median:.1?}");
            writeln!(f, "  {:width$}  {time:>9}  {times:>7.1} times as fast", way.name)?;
        }
        writeln!(f, "\nMedians of {ROUNDS} rounds.")?;
        for way in self.ways.iter().filter(|way| !way.elsewhere.is_empty()) {
            for line in wrap(&format!("{}: {}", way.name, way.elsewhere), COLUMNS) {
                writeln!(f, "{line}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_gone_in_turn_and_compared_with_the_first() {
        let mut order = Vec::new();
        let ways = Ways::in_turn("One thing.".into(), &[("usual", ""), ("other", "more")], |way| {
            order.push(way);
            Ok(Duration::from_millis([40, 10][way]))
        });
        let text = ways.unwrap().to_string();
        assert_eq!(order, [0, 1].repeat(ROUNDS));
        assert!(text.contains("usual     40.0ms      1.0 times as fast"), "{text}");
        assert!(text.contains("other     10.0ms      4.0 times as fast"), "{text}");
        assert!(text.ends_with("other: more\n"), "{text}");
    }
}
