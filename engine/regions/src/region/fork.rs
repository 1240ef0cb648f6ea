//! Forks of regions: two regions with the same bytes, of which each changes its own. The folder
//! `cow/` explains the implementation.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::mapped::RegionMemory;
use super::{Region, SharedRegion};
use crate::cow::{CowHandle, ForkError, ForkGroup, NextEpoch, Terms, usual_granule};
use crate::fault::FaultMode;
use crate::pool::Pool;

/// The largest granule.
const MOST_BYTES: usize = 2 << 20;

/// Options of a fork. [`Region::fork_builder`] and [`SharedRegion::fork_builder`] make them.
///
/// The options of a region's first fork apply to the whole fork group: to later forks of the
/// region, and to forks of forks.
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

    /// Sets the granule: the number of bytes that one copy contains, a power of two.
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

    /// Sets the mode of fault handling of the fork group. By default the region's mode if the
    /// region uses [`Clearing::OnFault`](crate::pool::Clearing::OnFault), otherwise
    /// [`FaultMode::Auto`].
    pub fn fault_mode(mut self, fault_mode: FaultMode) -> Self {
        self.fault_mode = Some(fault_mode);
        self
    }

    /// Sets the highest number of mappings of the process that copies of the fork group may use. By
    /// default half of `vm.max_map_count`, for all fork groups together. This is also the maximum.
    ///
    /// If no mapping is left, a write copies all bytes that its region still shares, and maps the
    /// region as one piece.
    pub fn max_vmas(mut self, mappings: usize) -> Self {
        self.max_vmas = Some(mappings);
        self
    }

    /// Leaves a range out of the fork, as `MADV_DONTFORK` does for `fork(2)`: the fork has zeroes
    /// there, in its own memory. By default no range. Several calls leave out several ranges.
    ///
    /// Later writes of the region to whole granules of the range cause no faults. If a granule is
    /// left out only in part, the call to [`build`](Self::build) copies it. Other forks of the
    /// region, and forks of this fork, are not affected.
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
    /// [`build`](Self::build) returns [`ForkError::OutOfRange`] if the range does not lie within
    /// the region.
    pub fn leave_out(mut self, range: Range<usize>) -> Self {
        self.left_out.push(range);
        self
    }

    /// Makes the fork.
    ///
    /// # Errors
    /// [`ForkError`] if the fork cannot be made. The region is unchanged then.
    pub fn build(&self) -> Result<Region, ForkError> {
        let fork = self.handle(None)?;
        Ok(Region::new(RegionMemory::in_group(self.origin.pool().clone(), fork, self.origin.len())))
    }

    /// Makes the fork's mapping in the fork group. An epoch of the region may begin with it.
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

/// Returns the requested granule, if the memory can be shared in such granules.
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
    /// Makes a region with the same bytes. Neither region sees later writes to the other.
    ///
    /// The call write-protects the region and copies nothing. The first write to a granule, by the
    /// region or by the fork, copies the granule. With
    /// [`Clearing::OnFault`](crate::pool::Clearing::OnFault), memory that is not cleared yet is
    /// cleared later in both regions. The fork reserves as many bytes of the pool as the region
    /// has. Forks and the region may be dropped in any order.
    ///
    /// For 1 GiB, the call lasts 0.09 to 0.18 ms on reserved huge pages, and 12 to 31 ms on base
    /// pages ([benchmarks.md]).
    ///
    /// If faults are handled in place, a thread that writes must not block SIGBUS. On transparent
    /// huge pages, it must not block SIGSEGV either, and no code may call `mprotect` on the memory.
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
    /// [`ForkError`] if the fork cannot be made. The region is unchanged then.
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
    /// The fork contains stores from before the call, and no stores from after the call. If another
    /// thread writes to a granule during the call, the fork may contain this store or not, as with
    /// `fork(2)`.
    ///
    /// # Errors
    /// The errors of [`Region::fork`], and [`ForkError::FileGiven`] if the program has called
    /// [`file`](Self::file).
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
