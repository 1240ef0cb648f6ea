//! How a region is asked for, where more is to be said than its length.
#![allow(unsafe_code)]

use std::fmt;

use super::Region;
use super::mapped::Memory;
use crate::fault::{Handling, Service, suits};
use crate::parallel::{Progress, Threads};
use crate::pool::{Clearing, Content, Pool, PoolError};

/// A region to be made: [`Pool::region_builder`].
#[derive(Clone)]
#[must_use = "a builder does nothing until built"]
pub struct RegionBuilder<'a> {
    pool: &'a Pool,
    len: usize,
    clearing: Clearing,
    handling: Handling,
    threads: Option<Threads>,
    progress: Option<&'a Progress<'a>>,
}

impl fmt::Debug for RegionBuilder<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionBuilder")
            .field("len", &self.len)
            .field("clearing", &self.clearing)
            .field("handling", &self.handling)
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// A region of so many bytes, of which more is to be said.
    ///
    /// ```no_run
    /// use hugekit::fault::Handling;
    /// use hugekit::pool::{Backing, Clearing, Pool};
    ///
    /// let pool = Pool::builder(1 << 20).backing(Backing::Base).scrub_threads(0).build()?;
    /// pool.region(1 << 20)?.fill(7); // Dirty now.
    /// let region = pool.region_builder(1 << 20).clearing(Clearing::AtFault).build()?;
    /// assert_eq!(region[5], 0); // Cleared now, with its surroundings.
    /// assert!(matches!(region.serving().unwrap().handling, Handling::InPlace | Handling::Threaded { .. }));
    /// # Ok::<(), hugekit::pool::PoolError>(())
    /// ```
    pub fn region_builder(&self, len: usize) -> RegionBuilder<'_> {
        RegionBuilder {
            pool: self,
            len,
            clearing: self.clearing(),
            handling: Handling::default(),
            threads: None,
            progress: None,
        }
    }
}

impl<'a> RegionBuilder<'a> {
    /// When what is dirty is cleared, instead of when the pool says.
    pub fn clearing(mut self, clearing: Clearing) -> Self {
        self.clearing = clearing;
        self
    }

    /// Who serves the faults of what is cleared then: [`Handling::Auto`] unless said.
    pub fn handling(mut self, handling: Handling) -> Self {
        self.handling = handling;
        self
    }

    /// How many threads clear or populate at hand-out, instead of what the pool says.
    pub fn threads(mut self, threads: Threads) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Whom to tell how many bytes of each extent are cleared or populated at hand-out.
    pub fn progress(mut self, progress: &'a Progress<'a>) -> Self {
        self.progress = Some(progress);
        self
    }

    /// Makes the region.
    ///
    /// # Errors
    /// [`PoolError::NoBytes`] for a length of 0, [`PoolError::NoRoom`] if so much is not free in one
    /// piece, [`PoolError::Forked`] in a forked child; whatever prevents holes from being populated; and
    /// [`PoolError::Fault`] if something is to be cleared at the fault and nobody can serve it. Nothing
    /// is taken from the pool then.
    ///
    /// # Panics
    /// If the progress callback does. Nothing is taken from the pool then.
    pub fn build(&self) -> Result<Region, PoolError> {
        match self.clearing {
            Clearing::AtFault if suits(self.pool.backing(), self.handling) => self.at_fault(),
            _ => self.at_hand_out(),
        }
    }

    fn at_hand_out(&self) -> Result<Region, PoolError> {
        let mapped = self.pool.hand_out(self.len, self.threads, self.progress)?;
        Ok(Region::new(Memory::new(self.pool.clone(), mapped, self.len, None)))
    }

    fn at_fault(&self) -> Result<Region, PoolError> {
        // SAFETY: nobody is told an address before the service has started; if it cannot, none ever is.
        let (mapped, contents) =
            unsafe { self.pool.hand_out_unready(self.len, self.threads, self.progress) }?;
        if contents.iter().all(|(_, content)| *content == Content::Clean) {
            return Ok(Region::new(Memory::new(self.pool.clone(), mapped, self.len, None)));
        }
        match Service::start(self.pool, &mapped, &contents, self.handling) {
            Ok(service) => {
                Ok(Region::new(Memory::new(self.pool.clone(), mapped, self.len, Some(service))))
            }
            Err(error) => {
                // SAFETY: nobody was told an address, so everything is as it was.
                unsafe { self.pool.take_back_as(mapped, &contents) };
                Err(error.into())
            }
        }
    }
}
