//! The progress of a load over all of its sources: the callback, and the flag that stops the load.

use hugekit_bulk::Cancel;
use hugekit_bulk::parallel::Progress;

#[cfg(feature = "delta")]
use crate::error::ImageError;

/// Bytes of the sources that were read.
pub(crate) struct Meter<'a> {
    progress: Option<&'a Progress<'a>>,
    pub(crate) cancel: Option<&'a Cancel>,
    done: u64,
    total: u64,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(
        progress: Option<&'a Progress<'a>>,
        cancel: Option<&'a Cancel>,
        total: u64,
    ) -> Self {
        Self { progress, cancel, done: 0, total }
    }

    /// Tells of `part` bytes of a source that is being read.
    pub(crate) fn tell(&self, part: u64) {
        let bytes = |bytes: u64| usize::try_from(bytes).unwrap_or(usize::MAX);
        if let Some(progress) = self.progress {
            progress(bytes(self.done.saturating_add(part)), bytes(self.total));
        }
    }

    pub(crate) fn is_watched(&self) -> bool {
        self.progress.is_some()
    }

    /// A source, or a part of one, has been read.
    pub(crate) fn finish(&mut self, bytes: u64) {
        self.done = self.done.saturating_add(bytes);
    }

    #[cfg(feature = "delta")]
    pub(crate) fn check(&self) -> Result<(), ImageError> {
        match self.cancel {
            Some(cancel) if cancel.is_cancelled() => Err(ImageError::Cancelled),
            _ => Ok(()),
        }
    }
}
