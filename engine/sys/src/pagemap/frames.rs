//! Flags of page frames (`/proc/kpageflags`), which the kernel reports only to root.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use super::entries::PageEntry;

const FLAGS: usize = size_of::<u64>();

/// The flags of one frame, of the kernel's `kernel-page-flags.h`.
#[derive(Clone, Copy, Debug)]
pub struct FrameFlags(u64);

impl FrameFlags {
    const ANONYMOUS: u64 = 1 << 12;
    const SWAP_BACKED: u64 = 1 << 14;
    const COMPOUND_HEAD: u64 = 1 << 15;

    /// Returns true if the frame is of private memory that was freed lazily (`MADV_FREE`).
    pub fn is_freed_lazily(self) -> bool {
        self.0 & (Self::ANONYMOUS | Self::SWAP_BACKED) == Self::ANONYMOUS
    }

    /// Returns true if the frame is the first frame of a folio of several frames.
    pub fn is_folio_head(self) -> bool {
        self.0 & Self::COMPOUND_HEAD != 0
    }
}

/// The file of all frames' flags.
#[derive(Debug)]
pub struct Frames(File);

impl Frames {
    /// Opens the file; `None` if this user may not open it.
    pub fn open() -> Option<Self> {
        File::open("/proc/kpageflags").ok().map(Self)
    }

    /// Returns the flags of the frames of these pages, in their order; `None` if the kernel does
    /// not report one of them. Adjacent frames are read together.
    pub fn flags_of(&self, pages: impl IntoIterator<Item = PageEntry>) -> Option<Vec<FrameFlags>> {
        let mut runs: Vec<Range<u64>> = Vec::new();
        for page in pages {
            let frame = page.frame()?;
            match runs.last_mut().filter(|run| run.end == frame) {
                Some(run) => run.end += 1,
                None => runs.push(frame..frame + 1),
            }
        }
        let mut flags = Vec::new();
        for run in runs {
            let mut bytes = vec![0; (run.end - run.start) as usize * FLAGS];
            self.0.read_exact_at(&mut bytes, run.start * FLAGS as u64).ok()?;
            let words = bytes.chunks_exact(FLAGS);
            let words = words.map(|word| u64::from_ne_bytes(word.try_into().expect("eight bytes")));
            flags.extend(words.map(FrameFlags));
        }
        Some(flags)
    }
}
