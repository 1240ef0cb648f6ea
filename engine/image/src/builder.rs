//! Sources and options of an image, and its load.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::Path;

use hugekit_bulk::parallel::{Progress, WorkSharing};
use hugekit_bulk::{Cancel, Threads};
#[cfg(feature = "delta")]
use hugekit_delta::StateId;
use hugekit_lease::protocol::ImageRange;
use hugekit_sys::headroom;
use hugekit_sys::memfd::{self, FilePages};

use crate::canvas::Canvas;
#[cfg(feature = "delta")]
use crate::deltas::{self, Base};
use crate::error::ImageError;
use crate::image::Image;
use crate::meter::Meter;
use crate::range;
use crate::raw::Raw;

/// Options of an image, and its load. [`Image::builder`] makes them.
///
/// The sources are regular files. Several threads read them by read(2). A source that changes
/// during the load is an error.
#[derive(Debug)]
#[must_use = "a builder loads nothing until `load`"]
pub struct ImageBuilder<'a> {
    name: String,
    sources: Vec<File>,
    ranges: Vec<ImageRange>,
    #[cfg(feature = "delta")]
    state: Option<StateId>,
    most: u64,
    sharing: WorkSharing<'a>,
}

impl<'a> ImageBuilder<'a> {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            sources: Vec::new(),
            ranges: Vec::new(),
            #[cfg(feature = "delta")]
            state: None,
            most: u64::MAX,
            sharing: WorkSharing { threads: Threads::Auto, ..WorkSharing::default() },
        }
    }

    /// Adds a source. The first source is a raw memory file. With the feature `delta`, the first
    /// source may be a full delta, and the other sources are the deltas that follow it.
    pub fn source(mut self, file: File) -> Self {
        self.sources.push(file);
        self
    }

    /// Loads only this part of the raw memory file. Several calls load several parts. The rest of
    /// the image, up to the end of its last range, is zero. By default the image is the whole file.
    pub fn range(mut self, range: ImageRange) -> Self {
        self.ranges.push(range);
        self
    }

    /// Sets the state of the raw memory file: a first delta that begins with another state is
    /// refused. By default the first delta may begin with any state of the image's length, because
    /// a raw memory file does not name its state.
    #[cfg(feature = "delta")]
    pub fn state(mut self, state: StateId) -> Self {
        self.state = Some(state);
        self
    }

    /// Sets the highest number of bytes to populate, in whole granules of 2 MiB. By default no
    /// limit.
    #[doc(hidden)]
    pub fn most(mut self, bytes: u64) -> Self {
        self.most = bytes;
        self
    }

    /// Sets the number of threads that read a raw memory file. By default [`Threads::Auto`]. Deltas
    /// are applied by one thread.
    pub fn threads(mut self, threads: Threads) -> Self {
        self.sharing.threads = threads;
        self
    }

    /// Sets a callback that is called after each chunk of a raw memory file and after each change
    /// of a delta. By default none. Its arguments are the bytes of the sources that were read, and
    /// the bytes of all sources. Calls do not overlap, and the bytes ascend.
    pub fn progress(mut self, progress: &'a Progress<'a>) -> Self {
        self.sharing.progress = Some(progress);
        self
    }

    /// Sets the flag that stops the load. By default none.
    pub fn cancel(mut self, cancel: &'a Cancel) -> Self {
        self.sharing.cancel = Some(cancel);
        self
    }

    /// Returns the highest number of bytes that the load will populate, without reading the
    /// sources. For a raw memory file, these are the bytes outside of holes. For deltas, this is
    /// the whole length.
    ///
    /// # Errors
    /// The errors of [`load`](Self::load).
    #[doc(hidden)]
    pub fn needed(&self) -> Result<u64, ImageError> {
        let first = self.sources.first().ok_or(ImageError::Nothing)?.try_clone();
        let first = first.map_err(|source| ImageError::Kernel { call: "dup", source })?;
        let first = Raw::new(first, 0)?;
        #[cfg(feature = "delta")]
        if deltas::is_delta(&first)? {
            return deltas::length(&first);
        }
        let ranges = self.ranges_of(&first)?;
        match self.sources.len() {
            1 => ranges.into_iter().map(|range| first.needed(range)).sum(),
            _ => range::length(&ranges, first.bytes()),
        }
    }

    /// Loads the image into new memory, and seals the memory.
    ///
    /// # Errors
    /// [`ImageError`] if a source is refused or was changed, if memory is short, or if the load is
    /// cancelled. The loaded memory is freed then.
    pub fn load(self) -> Result<Image, ImageError> {
        headroom::check()?;
        let file = memfd::create(&memfd::name(&self.name), FilePages::Shmem);
        let image = self.load_into(file.map_err(ImageError::of("memfd_create"))?)?;
        memfd::make_openable(&image).map_err(ImageError::of("fchmod"))?;
        Ok(image)
    }

    /// Loads the image into a new file of memory that only this process has. The file stays
    /// writable. Returns the file, and the number of its bytes that are on huge pages.
    ///
    /// # Errors
    /// The errors of [`load`](Self::load).
    #[doc(hidden)]
    pub fn load_unsealed(self) -> Result<(OwnedFd, u64), ImageError> {
        headroom::check()?;
        let file = memfd::create(&memfd::name(&self.name), FilePages::Shmem);
        let canvas = self.fill(file.map_err(ImageError::of("memfd_create"))?)?;
        let huge = canvas.huge();
        Ok((canvas.into_file()?, huge))
    }

    /// Loads the image into an empty file that memfd_create(2) has made and that may be sealed. The
    /// mode of the file does not change.
    ///
    /// # Errors
    /// The errors of [`load`](Self::load), and an error if the file does not meet these conditions.
    #[doc(hidden)]
    pub fn load_into(self, file: OwnedFd) -> Result<Image, ImageError> {
        let canvas = self.fill(file)?;
        let huge = canvas.huge();
        Image::seal(canvas.into_file()?, huge)
    }

    /// Writes the image to a new file in a tmpfs, for programs that cannot receive a descriptor.
    /// The file gets its name when it is complete. Its mode permits reading and no writing; the
    /// kernel cannot seal a named file. Returns the number of bytes that are on huge pages.
    ///
    /// # Errors
    /// The errors of [`load`](Self::load). [`ImageError::NoTmpfs`] if the folder is not in a file
    /// system of memory. [`ImageError::Kernel`] if the folder has a file of that name.
    pub fn load_to(self, path: &Path) -> Result<u64, ImageError> {
        headroom::check()?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let file = memfd::create_in(folder.unwrap_or(Path::new(".")));
        let file = file.map_err(ImageError::of("open(O_TMPFILE)"))?;
        if memfd::huge_page(&file).map_err(ImageError::of("fstatfs"))? != Some(None) {
            return Err(ImageError::NoTmpfs);
        }
        let canvas = self.fill(file)?;
        let huge = canvas.huge();
        let file = canvas.into_file()?;
        memfd::make_readable(&file).map_err(ImageError::of("fchmod"))?;
        memfd::link(&file, path).map_err(ImageError::of("linkat"))?;
        Ok(huge)
    }

    fn fill(mut self, file: OwnedFd) -> Result<Canvas, ImageError> {
        let sources = std::mem::take(&mut self.sources).into_iter().enumerate();
        let sources = sources.map(|(nth, file)| Raw::new(file, nth));
        let sources: Vec<Raw> = sources.collect::<Result<_, _>>()?;
        let canvas = self.fill_from(&sources, file)?;
        sources.iter().try_for_each(Raw::check)?;
        Ok(canvas)
    }

    #[cfg(feature = "delta")]
    fn fill_from(&self, sources: &[Raw], file: OwnedFd) -> Result<Canvas, ImageError> {
        let (first, behind) = sources.split_first().ok_or(ImageError::Nothing)?;
        if deltas::is_delta(first)? {
            let canvas = Canvas::new(file, deltas::length(first)?, self.most)?;
            deltas::apply(sources, Base::Empty, &canvas, &mut self.meter(&[], sources))?;
            return Ok(canvas);
        }
        let ranges = self.ranges_of(first)?;
        let mut meter = self.meter(&ranges, behind);
        let canvas = self.fill_raw(first, &ranges, file, &mut meter)?;
        deltas::apply(behind, self.state.map_or(Base::Unnamed, Base::State), &canvas, &mut meter)?;
        Ok(canvas)
    }

    #[cfg(not(feature = "delta"))]
    fn fill_from(&self, sources: &[Raw], file: OwnedFd) -> Result<Canvas, ImageError> {
        match sources {
            [] => Err(ImageError::Nothing),
            [raw] => {
                let ranges = self.ranges_of(raw)?;
                self.fill_raw(raw, &ranges, file, &mut self.meter(&ranges, &[]))
            }
            _ => Err(ImageError::NoDeltas),
        }
    }

    fn fill_raw(
        &self,
        raw: &Raw,
        ranges: &[ImageRange],
        file: OwnedFd,
        meter: &mut Meter<'_>,
    ) -> Result<Canvas, ImageError> {
        let canvas = Canvas::new(file, range::length(ranges, raw.bytes())?, self.most)?;
        for &range in ranges {
            raw.load(range, &canvas, self.sharing.threads, meter)?;
        }
        Ok(canvas)
    }

    fn meter(&self, ranges: &[ImageRange], deltas: &[Raw]) -> Meter<'a> {
        let of_deltas: u64 = deltas.iter().map(Raw::bytes).sum();
        let total = ranges.iter().map(|range| range.len).sum::<u64>().saturating_add(of_deltas);
        Meter::new(self.sharing.progress, self.sharing.cancel, total)
    }

    fn ranges_of(&self, raw: &Raw) -> Result<Vec<ImageRange>, ImageError> {
        let ranges = match &self.ranges[..] {
            [] if raw.bytes() == 0 => return Err(ImageError::Nothing),
            [] => {
                raw.refuse_saved_vm()?;
                vec![range::whole(raw.bytes())]
            }
            ranges => ranges.to_vec(),
        };
        range::length(&ranges, raw.bytes())?;
        Ok(ranges)
    }
}
