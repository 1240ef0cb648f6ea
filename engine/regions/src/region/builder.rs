//! Options of a region, and its construction.
#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use super::Region;
use super::mapped::RegionMemory;
use crate::cow::{ForkGroup, FoundingRegion};
use crate::fault::{FaultMode, suits};
use crate::pool::{Clearing, Content, FaultError, Pool, PoolError};
use hugekit_bulk::parallel::{Progress, Threads};
use hugekit_sys::error_chain;

/// Options of a region, made by [`Pool::region_builder`].
#[derive(Clone)]
#[must_use = "a builder does nothing until built"]
pub struct RegionBuilder<'a> {
    pool: &'a Pool,
    len: usize,
    clearing: Clearing,
    fault_mode: FaultMode,
    threads: Option<Threads>,
    progress: Option<&'a Progress<'a>>,
}

impl fmt::Debug for RegionBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionBuilder")
            .field("len", &self.len)
            .field("clearing", &self.clearing)
            .field("fault_mode", &self.fault_mode)
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Allocates a region of `len` bytes, all zero. The mapped length is rounded up to a multiple
    /// of the folio.
    ///
    /// Clean folios are mapped as they are, in microseconds. Dirty folios are cleared first, and
    /// holes are populated first, with the number of threads in
    /// [`PoolBuilder::threads`](crate::pool::PoolBuilder::threads).
    ///
    /// # Errors
    /// [`PoolError::NoBytes`] for a length of 0, [`PoolError::NoRoom`] if the pool has no
    /// contiguous free memory of this length, [`PoolError::Forked`] in a forked child, and any
    /// error of populating. The pool is unchanged then.
    pub fn region(&self, len: usize) -> Result<Region, PoolError> {
        self.region_builder(len).build()
    }

    /// Makes a builder for a region of `len` bytes, with options.
    ///
    /// ```no_run
    /// use hugekit::fault::FaultMode;
    /// use hugekit::pool::{Backing, Clearing, Pool};
    ///
    /// let pool = Pool::builder(1 << 20).backing(Backing::Base).scrub_threads(0).build()?;
    /// pool.region(1 << 20)?.fill(7); // Dirty now.
    /// let region = pool.region_builder(1 << 20).clearing(Clearing::OnFault).build()?;
    /// assert_eq!(region[5], 0); // Cleared now, with its surroundings.
    /// assert!(matches!(region.serving().unwrap().fault_mode, FaultMode::InPlace | FaultMode::Threaded { .. }));
    /// # Ok::<(), hugekit::pool::PoolError>(())
    /// ```
    pub fn region_builder(&self, len: usize) -> RegionBuilder<'_> {
        RegionBuilder {
            pool: self,
            len,
            clearing: self.clearing(),
            fault_mode: FaultMode::default(),
            threads: None,
            progress: None,
        }
    }
}

impl<'a> RegionBuilder<'a> {
    /// Sets the moment at which dirty memory is cleared. By default the pool's setting.
    ///
    /// If the kernel could show dirty memory to the owner without a fault, [`Clearing::OnFault`]
    /// clears at allocation. [`Region::fallback`] then returns the reason.
    pub fn clearing(mut self, clearing: Clearing) -> Self {
        self.clearing = clearing;
        self
    }

    /// Sets the mode of fault handling for [`Clearing::OnFault`]. By default [`FaultMode::Auto`].
    pub fn fault_mode(mut self, fault_mode: FaultMode) -> Self {
        self.fault_mode = fault_mode;
        self
    }

    /// Sets the number of threads that clear or populate at allocation. By default the pool's
    /// number.
    pub fn threads(mut self, threads: Threads) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Sets a callback that is called with the number of bytes cleared or populated at allocation.
    /// The count begins again for each extent. By default none.
    pub fn progress(mut self, progress: &'a Progress<'a>) -> Self {
        self.progress = Some(progress);
        self
    }

    /// Makes the region.
    ///
    /// # Errors
    /// [`PoolError::NoBytes`] for a length of 0, [`PoolError::NoRoom`] if the pool has no
    /// contiguous free memory of this length, [`PoolError::Forked`] in a forked child, and any
    /// error of populating. [`PoolError::Fault`] if [`Clearing::OnFault`] is set and faults cannot
    /// be handled. The pool is unchanged then.
    ///
    /// # Panics
    /// If the progress callback panics. The pool is unchanged then.
    pub fn build(&self) -> Result<Region, PoolError> {
        match self.clearing {
            Clearing::OnFault if suits(self.pool.backing(), self.fault_mode) => {
                self.at_fault(|len| ForkGroup::create_unready(self.pool, len, self.fault_mode))
            }
            _ => self.on_allocation(None),
        }
    }

    /// Cleared now, for a reason if it was to be cleared at the fault.
    fn on_allocation(&self, fallback: Option<FaultError>) -> Result<Region, PoolError> {
        let mapped = self.pool.allocate(self.len, self.threads, self.progress)?;
        let memory = RegionMemory::new(self.pool.clone(), mapped, self.len);
        Ok(Region::new(memory.cleared_because(fallback)))
    }

    fn at_fault(
        &self,
        found: impl FnOnce(usize) -> Result<Arc<ForkGroup>, FaultError>,
    ) -> Result<Region, PoolError> {
        // SAFETY: no user is told an address before the region's group watches it; if it cannot, none ever is.
        let (mapped, contents) =
            unsafe { self.pool.hand_out_unready(self.len, self.threads, self.progress) }?;
        if contents.iter().all(|(_, content)| *content == Content::Clean) {
            return Ok(Region::new(RegionMemory::new(self.pool.clone(), mapped, self.len)));
        }
        let taken_in = match found(mapped.mapping().len()) {
            Ok(group) => {
                FoundingRegion::join(&group, mapped, Some(&contents)).inspect_err(|_| group.end())
            }
            Err(error) => Err((mapped, error)),
        };
        match taken_in {
            Ok(region) => {
                Ok(Region::new(RegionMemory::in_group(self.pool.clone(), region, self.len)))
            }
            Err((mapped, error)) => {
                // SAFETY: no user was told an address, so everything is as it was.
                unsafe { self.pool.reclaim_as(mapped, &contents) };
                self.or_at_hand_out(error)
            }
        }
    }

    fn or_at_hand_out(&self, error: FaultError) -> Result<Region, PoolError> {
        match error {
            FaultError::Collapsible => {
                hugekit_sys::events::info!("cleared at allocation: {}", error_chain(&error));
                self.on_allocation(Some(error))
            }
            other => Err(other.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Backing;

    #[test]
    fn build_where_the_kernel_may_show_dirty_memory_clears_at_allocation() {
        let len = 1 << 20;
        let pool = Pool::builder(len).backing(Backing::Base).scrub_threads(0).build().unwrap();
        pool.region(len).unwrap().fill(7);
        let builder = pool.region_builder(len).clearing(Clearing::OnFault);
        let region = builder.at_fault(|_| Err(FaultError::Collapsible)).unwrap();
        assert!(region.serving().is_none());
        assert!(matches!(region.fallback(), Some(FaultError::Collapsible)));
        assert_eq!(pool.stats().unwrap().scrubbed_at_allocation, len as u64);
        assert!(region.iter().all(|&byte| byte == 0));
        drop(region);
        let refused = builder.at_fault(|_| Err(FaultError::Blocked));
        assert!(matches!(refused, Err(PoolError::Fault(FaultError::Blocked))));
        assert_eq!(pool.stats().unwrap().in_use, 0);
    }
}
