//! Sets of CPU or node numbers in the kernel's list format, `0-3,8`.
//!
//! The set is kept as ranges, not as a bitmap. So there is no size limit, and an absurd list like
//! `0-4294967295` costs no more than a usual one.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

/// A set of CPU (or node) numbers of any size.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet {
    /// Ascending ranges, with at least one number between two ranges.
    ranges: Vec<RangeInclusive<u32>>,
}

/// The error of a text that is not a list of CPUs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not a list of CPUs such as 0-3,8")]
pub struct ParseCpuSetError;

impl CpuSet {
    /// Returns the number of CPUs in the set.
    pub fn len(&self) -> usize {
        self.ranges.iter().map(|range| (range.end() - range.start()) as usize + 1).sum()
    }

    /// Returns true if the set has no CPU.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the lowest CPU.
    pub fn first(&self) -> Option<u32> {
        self.ranges.first().map(|range| *range.start())
    }

    /// Returns true if `cpu` is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        self.ranges.iter().any(|range| range.contains(&cpu))
    }

    /// Returns the CPUs, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges.iter().cloned().flatten()
    }

    /// Returns the CPUs that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let overlaps = self.ranges.iter().flat_map(|a| {
            let overlap =
                |b: &RangeInclusive<u32>| *a.start().max(b.start())..=*a.end().min(b.end());
            other.ranges.iter().map(overlap)
        });
        Self { ranges: overlaps.filter(|range| !range.is_empty()).collect() }
    }

    fn from_ranges(mut ranges: Vec<RangeInclusive<u32>>) -> Self {
        ranges.sort_by_key(|range| *range.start());
        let mut merged: Vec<RangeInclusive<u32>> = Vec::with_capacity(ranges.len());
        for range in ranges {
            match merged.last_mut() {
                Some(last) if *range.start() <= last.end().saturating_add(1) => {
                    *last = *last.start()..=*last.end().max(range.end());
                }
                _ => merged.push(range),
            }
        }
        Self { ranges: merged }
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self::from_ranges(cpus.into_iter().map(|cpu| cpu..=cpu).collect())
    }
}

impl FromStr for CpuSet {
    type Err = ParseCpuSetError;

    /// Parses the kernel's list format. An empty text is the empty set.
    fn from_str(text: &str) -> Result<Self, ParseCpuSetError> {
        match text.trim() {
            "" => Ok(Self::default()),
            list => {
                list.split(',').map(parse_range).collect::<Result<_, _>>().map(Self::from_ranges)
            }
        }
    }
}

fn parse_range(text: &str) -> Result<RangeInclusive<u32>, ParseCpuSetError> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.parse::<u32>().map_err(|_| ParseCpuSetError);
    let range = number(first)?..=number(last)?;
    if range.is_empty() { Err(ParseCpuSetError) } else { Ok(range) }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, range) in self.ranges.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            match (range.start(), range.end()) {
                (first, last) if first == last => write!(f, "{comma}{first}")?,
                (first, last) => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn set(text: &str) -> CpuSet {
        text.parse().unwrap()
    }

    #[test]
    fn cpu_set_printed_is_what_the_kernel_prints() {
        for text in ["", "0", "0-3,8", "1,3,5", "0-1023", "4095", "0-4294967295"] {
            assert_eq!(set(text).to_string(), text);
        }
        assert_eq!(set("8,0-3\n").to_string(), "0-3,8");
        assert_eq!(set("0-3,2-5,6").to_string(), "0-6");
    }

    #[test]
    fn parse_of_what_is_no_list_is_refused() {
        for text in ["banana", "-1", "3-", "3-1", "0,,1", "0-1-2", "4294967296", "0;1", "0-3:1/2"] {
            assert_eq!(text.parse::<CpuSet>(), Err(ParseCpuSetError), "{text}");
        }
    }

    #[test]
    fn cpu_set_of_a_thousand_cpus_holds_them() {
        let odd: CpuSet = (0..2048).filter(|cpu| cpu % 2 == 1).collect();
        assert_eq!(odd.len(), 1024);
        assert_eq!(odd.first(), Some(1));
        assert_eq!(odd.to_string().parse(), Ok(odd));
    }

    proptest! {
        #[test]
        fn cpu_set_under_any_operations_is_like_a_set(
            a in prop::collection::btree_set(0u32..70, 0..40),
            b in prop::collection::btree_set(0u32..70, 0..40),
        ) {
            let (left, right): (CpuSet, CpuSet) = (a.iter().copied().collect(), b.iter().copied().collect());
            let both: BTreeSet<u32> = a.intersection(&b).copied().collect();
            prop_assert_eq!(left.len(), a.len());
            prop_assert!(left.iter().eq(a.iter().copied()));
            prop_assert!((0..70).all(|cpu| left.contains(cpu) == a.contains(&cpu)));
            prop_assert_eq!(left.intersection(&right), both.into_iter().collect());
            prop_assert_eq!(left.to_string().parse(), Ok(left));
        }
    }
}
