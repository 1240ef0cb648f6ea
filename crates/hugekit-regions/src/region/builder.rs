//! How a region is asked for, where more is to be said than its length.
#![allow(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use super::Region;
use super::mapped::RegionMemory;
use crate::cow::ForkGroup;
use crate::fault::{FaultMode, suits};
use crate::pool::{Clearing, Content, FaultError, Pool, PoolError};
use hugekit_bulk::parallel::{Progress, Threads};
use hugekit_sys::error_chain;

/// A region to be made: [`Pool::region_builder`].
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
    /// A region of so many bytes, of which more is to be said.
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
    /// When what is dirty is cleared, instead of when the pool says. At allocation all the same where the kernel
    /// could show dirty memory past the one who serves its faults: [`Region::fallback`] says so.
    pub fn clearing(mut self, clearing: Clearing) -> Self {
        self.clearing = clearing;
        self
    }

    /// Who serves the faults of what is cleared then: [`FaultMode::Auto`] unless said.
    pub fn fault_mode(mut self, fault_mode: FaultMode) -> Self {
        self.fault_mode = fault_mode;
        self
    }

    /// How many threads clear or populate at allocation, instead of what the pool says.
    pub fn threads(mut self, threads: Threads) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Whom to tell how many bytes of each extent are cleared or populated at allocation.
    pub fn progress(mut self, progress: &'a Progress<'a>) -> Self {
        self.progress = Some(progress);
        self
    }

    /// Makes the region.
    ///
    /// # Errors
    /// [`PoolError::NoBytes`] for a length of 0, [`PoolError::NoRoom`] if so much is not free in one
    /// piece, [`PoolError::Forked`] in a forked child; whatever prevents holes from being populated; and
    /// [`PoolError::Fault`] if something is to be cleared at the fault and it cannot be served. Nothing
    /// is taken from the pool then.
    ///
    /// # Panics
    /// If the progress callback does. Nothing is taken from the pool then.
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
            Ok(group) => group.take_in(mapped, Some(&contents)).inspect_err(|_| group.end()),
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
