//! A window: units that are dropped from the cache and read again together.

use std::ops::Range;

use hugekit_sys::free_blocks::make_free_blocks;
use hugekit_sys::page_cache::{self, CacheMapping};
use hugekit_sys::pagemap::PageMap;
use rustix::io::Errno;
use rustix::param::page_size;

use crate::error::WarmError;
use crate::units::UNIT;
use crate::warmer::{GivenUp, Work};

/// The pages that the cache has of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UnitState {
    /// The unit is one huge page.
    Huge,
    /// The unit is completely or partly on smaller pages.
    Small,
    /// No page of the unit is in the cache.
    Absent,
    /// The kernel does not report the pages to this user.
    Unknown,
}

/// Units that follow on each other.
#[derive(Clone, Debug)]
pub(crate) struct Window {
    pub(crate) units: Range<u64>,
    /// True if a hole follows that is to stay one.
    pub(crate) hole_behind: bool,
    /// The place of the first unit's state among those of the file.
    pub(crate) first_state: usize,
}

impl Window {
    /// Returns the places of its states among those of the file.
    pub(crate) fn states(&self) -> Range<usize> {
        self.first_state..self.first_state + (self.units.end - self.units.start) as usize
    }

    /// Finds the states. Only units whose first and last page are in the cache are touched, in their first page.
    pub(crate) fn look(&self, work: &Work<'_>, states: &mut [UnitState]) -> Result<(), WarmError> {
        let mapping = self.map_to_look(work)?;
        for (index, state) in states.iter_mut().enumerate() {
            *state = self.look_at(work, &mapping, index)?;
        }
        Ok(())
    }

    fn look_at(
        &self,
        work: &Work<'_>,
        mapping: &CacheMapping,
        index: usize,
    ) -> Result<UnitState, WarmError> {
        let unit = unit(index);
        let (first, last) =
            (unit.start..unit.start + page_size(), unit.end - page_size()..unit.end);
        let pages = |bytes| mapping.cached_pages(bytes).map_err(WarmError::of("mincore"));
        if pages(first)? + pages(last)? == 2 {
            return match mapping.touch_is_huge(&work.map, unit.start) {
                Ok(true) => Ok(UnitState::Huge),
                Ok(false) => Ok(UnitState::Small),
                Err(errno) => Err(work.unread(errno, self.bytes_of(&(index..index + 1)))),
            };
        }
        Ok(if pages(unit)? == 0 { UnitState::Absent } else { UnitState::Small })
    }

    /// Makes the units huge that are not. In each round those that are left are dropped and read again; before a round,
    /// the kernel is made to gather memory if it has too few free blocks.
    pub(crate) fn make(
        &self,
        work: &mut Work<'_>,
        all: &mut [UnitState],
        own: Range<usize>,
    ) -> Result<(), WarmError> {
        let mut given_up = None;
        for round in 0..work.options().rounds.get() {
            let left = left(&all[own.clone()]);
            if left.is_empty() {
                return Ok(());
            }
            work.check_cancel(all)?;
            let needed = left.len() as u64 * UNIT;
            if round > 0 || work.free_blocks() < needed {
                make_blocks(work, left.len());
            }
            let has_blocks = work.free_blocks() >= needed;
            let states = &mut all[own.clone()];
            let stuck = self.read_again(work, states, &left)?;
            // Others use all that is left.
            if self::left(states).iter().all(|index| stuck.contains(index)) {
                given_up = None;
                break;
            }
            let is_none_huge = stuck.is_empty() && !all.contains(&UnitState::Huge);
            given_up = match (is_none_huge, has_blocks) {
                (true, true) => Some(GivenUp::FileSystem),
                (true, false) => Some(GivenUp::Fragmented),
                (false, _) => None,
            };
            if round > 0 && given_up == Some(GivenUp::FileSystem) {
                break;
            }
        }
        self.collapse(work, &mut all[own])?;
        work.given_up = given_up.filter(|_| !all.contains(&UnitState::Huge));
        Ok(())
    }

    /// Drops units from the cache and reads them again, in huge folios if there are some. Returns the units of which pages
    /// stayed in the cache. The states are those after that.
    fn read_again(
        &self,
        work: &mut Work<'_>,
        states: &mut [UnitState],
        left: &[usize],
    ) -> Result<Vec<usize>, WarmError> {
        // Of a unit that is known to be on small pages, or that was read in the round before.
        let small: Vec<usize> =
            left.iter().copied().filter(|&index| states[index] == UnitState::Small).collect();
        let mut mapping = self.map(work)?;
        if !small.is_empty() {
            work.note_users(&mapping)?;
            // Pages that this process has mapped would stay.
            drop(mapping);
            self.drop_units(work, &small)?;
            mapping = self.map(work)?;
        }
        let mut stuck = self.stuck(work, &mapping, &small)?;
        if !stuck.is_empty() && !work.is_synced {
            // Dirty pages stay until they are on the disk. If they cannot be written, they stay, and none is lost.
            let _ = work.file.sync_data();
            work.is_synced = true;
            self.drop_units(work, &stuck)?;
            stuck = self.stuck(work, &mapping, &small)?;
        }
        work.is_stuck |= !stuck.is_empty();
        if mapping.want_huge_folios().is_err() {
            return Err(WarmError::NoHugePages);
        }
        if self.hole_behind {
            // The kernel would read the next 2 MiB, too: zeroes that take memory.
            self.read_nothing_ahead(&mapping)?;
        }
        for &index in left {
            states[index] = self.read_unit(&mapping, &work.map, index).map_err(|errno| {
                let unit = index..index + 1;
                work.unread(errno, self.bytes_of(&unit))
            })?;
        }
        Ok(stuck)
    }

    /// The first touch of a huge page maps all of it, and each other page is read for itself.
    fn read_unit(
        &self,
        mapping: &CacheMapping,
        map: &PageMap,
        index: usize,
    ) -> Result<UnitState, Errno> {
        if mapping.touch_is_huge(map, unit(index).start)? {
            return Ok(UnitState::Huge);
        }
        mapping.populate(unit(index))?;
        Ok(UnitState::Small)
    }

    fn drop_units(&self, work: &Work<'_>, units: &[usize]) -> Result<(), WarmError> {
        for run in runs(units) {
            let dropped = page_cache::drop_clean(work.file, &self.bytes_of(&run));
            dropped.map_err(WarmError::of("posix_fadvise"))?;
        }
        Ok(())
    }

    /// Returns the units that have pages in the cache. None if the kernel does not tell.
    fn stuck(
        &self,
        work: &Work<'_>,
        mapping: &CacheMapping,
        units: &[usize],
    ) -> Result<Vec<usize>, WarmError> {
        let mut stuck = Vec::new();
        for &index in units.iter().filter(|_| work.tells_cached) {
            let pages = mapping.cached_pages(unit(index)).map_err(WarmError::of("mincore"))?;
            stuck.extend((pages > 0).then_some(index));
        }
        Ok(stuck)
    }

    /// Looks at units that were just collapsed, by a mapping that has touched none of them.
    fn look_again(
        &self,
        work: &Work<'_>,
        states: &mut [UnitState],
        left: &[usize],
    ) -> Result<(), WarmError> {
        let mapping = self.map_to_look(work)?;
        for &index in left {
            let is_huge = mapping.touch_is_huge(&work.map, unit(index).start);
            let is_huge =
                is_huge.map_err(|errno| work.unread(errno, self.bytes_of(&(index..index + 1))))?;
            states[index] = if is_huge { UnitState::Huge } else { UnitState::Small };
        }
        Ok(())
    }

    /// Returns the units that were not huge before, to be touched.
    pub(crate) fn to_touch(
        &self,
        work: &Work<'_>,
        before: &[UnitState],
    ) -> Result<Touch, WarmError> {
        Ok(Touch { mapping: self.map_to_look(work)?, units: left(before) })
    }

    /// Makes huge pages where the small ones lie, of a kernel that can. Units are tried again as long as some are made.
    fn collapse(&self, work: &mut Work<'_>, states: &mut [UnitState]) -> Result<(), WarmError> {
        for _ in 0..work.options().rounds.get() {
            let left = left(states);
            if left.is_empty() || !work.can_collapse {
                break;
            }
            let mapping = self.map(work)?;
            let is_refused =
                |&&index: &&usize| mapping.collapse(unit(index).start) == Err(Errno::INVAL);
            let refused = left.iter().filter(is_refused).count();
            self.look_again(work, states, &left)?;
            // Of a page in use, Linux 6.1 says the same as of a file whose pages it cannot collapse.
            work.can_collapse = refused < left.len() || states.contains(&UnitState::Huge);
            work.is_in_use |= refused > 0 && work.can_collapse;
            if refused == left.len() {
                break;
            }
        }
        Ok(())
    }

    fn map(&self, work: &Work<'_>) -> Result<CacheMapping, WarmError> {
        work.map_bytes(self.units.start * UNIT, self.len())
    }

    /// A touch reads a page that was dropped at this moment, and nothing else: no hole, and no unit on small pages.
    fn map_to_look(&self, work: &Work<'_>) -> Result<CacheMapping, WarmError> {
        let mapping = self.map(work)?;
        self.read_nothing_ahead(&mapping)?;
        Ok(mapping)
    }

    fn read_nothing_ahead(&self, mapping: &CacheMapping) -> Result<(), WarmError> {
        mapping.read_nothing_ahead(0..self.len()).map_err(WarmError::of("madvise(MADV_RANDOM)"))
    }

    fn len(&self) -> usize {
        ((self.units.end - self.units.start) * UNIT) as usize
    }

    /// Returns the bytes of the file that are these units of the window.
    fn bytes_of(&self, units: &Range<usize>) -> Range<u64> {
        let first = self.units.start;
        (first + units.start as u64) * UNIT..(first + units.end as u64) * UNIT
    }
}

/// Units that were read again, and that no CPU has read yet. Their mapping is the window's, which is done: pages that it
/// holds would stay when they are dropped.
#[derive(Debug)]
pub(crate) struct Touch {
    mapping: CacheMapping,
    units: Vec<usize>,
}

impl Touch {
    /// Has the CPU read each page.
    pub(crate) fn run(self) {
        for &index in &self.units {
            // Refused, programs wait for it as they do without this call.
            let _ = self.mapping.read_each_page(unit(index));
        }
    }
}

/// Returns the bytes of a unit in the mapping of a window.
fn unit(index: usize) -> Range<usize> {
    index * UNIT as usize..(index + 1) * UNIT as usize
}

/// Returns the units that are not huge.
fn left(states: &[UnitState]) -> Vec<usize> {
    let left = states.iter().enumerate().filter(|(_, state)| **state != UnitState::Huge);
    left.map(|(index, _)| index).collect()
}

/// Units that follow on each other.
fn runs(units: &[usize]) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for &index in units {
        match runs.last_mut() {
            Some(last) if last.end == index => last.end += 1,
            _ => runs.push(index..index + 1),
        }
    }
    runs
}

/// Blocks that are not made, because memory is short or no huge pages are allowed, are missed in the count of huge units.
fn make_blocks(work: &mut Work<'_>, blocks: usize) {
    if work.budget.take(blocks as u64 * UNIT).is_ok() {
        let _ = make_free_blocks(blocks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_that_follow_on_each_other_are_one_run() {
        assert_eq!(runs(&[0, 1, 4, 6, 7]), [0..2, 4..5, 6..8]);
        let states = [UnitState::Small, UnitState::Huge, UnitState::Absent, UnitState::Unknown];
        assert_eq!(left(&states), [0, 2, 3]);
        assert_eq!(unit(3), 6 << 20..8 << 20);
    }
}
