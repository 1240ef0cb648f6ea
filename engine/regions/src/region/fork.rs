//! Forks of regions: the same bytes twice, of which each side changes its own. `cow/` has how.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::mapped::RegionMemory;
use super::{Region, SharedRegion};
use crate::cow::{CowHandle, ForkError, ForkGroup, NextEpoch, Terms, usual_granule};
use crate::fault::FaultMode;
use crate::pool::Pool;

/// The largest granule there is.
const MOST_BYTES: usize = 2 << 20;

/// Options of a fork, made by [`Region::fork_builder`] or [`SharedRegion::fork_builder`].
///
/// The options of a region's first fork apply to its fork group: its other forks, and theirs.
#[derive(Clone)]
#[must_use = "a builder does nothing until built"]
pub struct ForkBuilder<'a> {
    origin: &'a RegionMemory,
    granule: Option<usize>,
    fault_mode: Option<FaultMode>,
    max_vmas: Option<usize>,
    left_out: Vec<Range<usize>>,
}

impl fmt::Debug for ForkBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ForkBuilder")
            .field("granule", &self.granule)
            .field("fault_mode", &self.fault_mode)
            .finish_non_exhaustive()
    }
}

impl<'a> ForkBuilder<'a> {
    pub(super) fn new(origin: &'a RegionMemory) -> Self {
        Self { origin, granule: None, fault_mode: None, max_vmas: None, left_out: Vec::new() }
    }

    /// Sets how many bytes are copied as a whole, a power of two.
    ///
    /// | backing | granule | default |
    /// | --- | --- | --- |
    /// | reserved huge pages | a folio | a folio |
    /// | transparent huge pages | a base page up to a folio | a folio |
    /// | base pages | a base page up to 2 MiB | 64 KiB |
    pub fn granule(mut self, bytes: usize) -> Self {
        self.granule = Some(bytes);
        self
    }

    /// Sets who handles the faults of the fork group. By default [`FaultMode::Auto`], or the mode
    /// of the region if that is cleared at the fault.
    pub fn fault_mode(mut self, fault_mode: FaultMode) -> Self {
        self.fault_mode = Some(fault_mode);
        self
    }

    /// Sets the most mappings of the process that copies of the fork group may use. By default, and
    /// at most, half of `vm.max_map_count` for all fork groups together.
    ///
    /// If they are used up, a write copies all bytes that its region still shares, and maps the
    /// region as one piece.
    pub fn max_vmas(mut self, mappings: usize) -> Self {
        self.max_vmas = Some(mappings);
        self
    }

    /// Leaves a range out of the fork, as `MADV_DONTFORK` does for `fork(2)`: the fork has zeroes
    /// there, in its own memory. May be called several times. By default no range.
    ///
    /// Writes of the region to whole granules of the range cause no faults. A granule that is left
    /// out only in part is copied when the fork is made. Other forks of the region, and forks of
    /// this fork, are not affected.
    ///
    /// ```
    /// use hugekit::pool::{Backing, Pool};
    ///
    /// let pool = Pool::builder(2 << 20).backing(Backing::Base).build()?;
    /// let mut guest = pool.region(1 << 20)?;
    /// guest.fill(1);
    /// let clone = guest.fork_builder().leave_out(0x1000..0x2000).build()?; // a ring, or a key
    /// assert_eq!((clone[0xfff], clone[0x1000], clone[0x1fff], clone[0x2000]), (1, 0, 0, 1));
    /// assert_eq!(guest[0x1000], 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`build`](Self::build) returns [`ForkError::OutOfRange`] if the bytes do not lie within the region.
    pub fn leave_out(mut self, range: Range<usize>) -> Self {
        self.left_out.push(range);
        self
    }

    /// Makes the fork.
    ///
    /// # Errors
    /// [`ForkError`]. The region is unchanged then.
    pub fn build(&self) -> Result<Region, ForkError> {
        let fork = self.handle(None)?;
        Ok(Region::new(RegionMemory::in_group(self.origin.pool().clone(), fork, self.origin.len())))
    }

    /// Its mapping in the fork group, with the beginning of an epoch of the region if there is one.
    pub(crate) fn handle(&self, epoch: Option<&mut NextEpoch<'_>>) -> Result<CowHandle, ForkError> {
        let terms = |pool: &Pool| {
            let granule_bytes = granule(pool, self.granule)?;
            let fault_mode = self.fault_mode.unwrap_or_default();
            Ok(Terms { granule_bytes, fault_mode, max_vmas: self.max_vmas })
        };
        let agree = |group: &Arc<ForkGroup>| group.check(self.granule, self.fault_mode);
        self.origin.fork(&self.left_out, terms, agree, epoch)
    }

    /// Returns the region to fork.
    pub(super) fn origin(&self) -> &RegionMemory {
        self.origin
    }
}

/// Returns the granule that was asked for, if the memory can be shared in such pieces.
fn granule(pool: &Pool, asked: Option<usize>) -> Result<usize, ForkError> {
    let (folio, base_page) = (pool.page_size(), rustix::param::page_size());
    let (least, most) = if folio > MOST_BYTES {
        return Err(ForkError::Gigantic);
    } else if pool.backing().is_reserved() {
        (folio, folio)
    } else if folio > base_page {
        (base_page, folio)
    } else {
        (folio, MOST_BYTES)
    };
    let granule = asked.unwrap_or_else(|| usual_granule(pool));
    if granule.is_power_of_two() && (least..=most).contains(&granule) {
        Ok(granule)
    } else {
        Err(ForkError::Granule { granule, least, most })
    }
}

impl Region {
    /// Makes a region with the same bytes. Later writes to one side are not seen by the other.
    ///
    /// The call write-protects the region and copies nothing. The first write to a granule, on
    /// either side, copies the granule. Memory that is still to be cleared at the fault stays so,
    /// on both sides. The fork reserves as many bytes of the pool as the region has. Forks and the
    /// region may be dropped in any order.
    ///
    /// Costs for 1 GiB: 0.09 to 0.18 ms on reserved huge pages, 12 to 31 ms on base pages
    /// ([benchmarks.md]).
    ///
    /// If faults are handled in place, a thread that writes must not block SIGBUS. On transparent
    /// huge pages it must not block SIGSEGV, and no code may call `mprotect` on the memory.
    ///
    /// ```
    /// use hugekit::pool::{Backing, Pool};
    ///
    /// let pool = Pool::builder(2 << 20).backing(Backing::Base).build()?;
    /// let mut region = pool.region(1 << 20)?;
    /// region.fill(1);
    /// let mut fork = region.fork()?;
    /// region[5] = 2;
    /// fork[6] = 3;
    /// assert_eq!((region[5], region[6]), (2, 1));
    /// assert_eq!((fork[5], fork[6]), (1, 3));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ForkError`]. The region is unchanged then.
    ///
    /// [benchmarks.md]: https://github.com/hugekit/hugekit/blob/main/docs/benchmarks.md
    pub fn fork(&self) -> Result<Self, ForkError> {
        self.fork_builder().build()
    }

    /// Makes a builder for a fork, with options.
    pub fn fork_builder(&self) -> ForkBuilder<'_> {
        ForkBuilder::new(self.memory())
    }
}

impl SharedRegion {
    /// Makes a region with the same bytes, as [`Region::fork`] does.
    ///
    /// Stores before the call are in the fork, stores after it are not. A granule that another
    /// thread writes during the call is in the fork with or without that store, as with `fork(2)`.
    ///
    /// # Errors
    /// The errors of [`Region::fork`], and [`ForkError::FileGiven`].
    pub fn fork(&self) -> Result<Region, ForkError> {
        self.fork_builder().build()
    }

    /// Makes a builder for a fork, with options.
    pub fn fork_builder(&self) -> ForkBuilder<'_> {
        ForkBuilder::new(self.memory())
    }
}

impl<'a> From<&'a Region> for ForkBuilder<'a> {
    fn from(region: &'a Region) -> Self {
        region.fork_builder()
    }
}

impl<'a> From<&'a SharedRegion> for ForkBuilder<'a> {
    fn from(region: &'a SharedRegion) -> Self {
        region.fork_builder()
    }
}
