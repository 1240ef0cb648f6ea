//! Warm-ups: page caches of files on huge pages.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_void};
use std::mem::offset_of;

use hugekit_warm::{WarmMode, WarmOptions, WarmReport, Warmer, WhySmall};

use crate::image::path_of;
use crate::status::{Answer, Refusal, answer, hugekit_status};
use crate::versioned::{self, CallerOptions, OutParameter, Versioned};
use crate::work::{as_progress, hugekit_cancel, hugekit_progress, told};

/// Only count huge units. Read nothing of the file, and change nothing.
pub const HUGEKIT_WARM_CHECK: u32 = 1;
/// Fill holes of the file with memory, too. Without this flag, 2 MiB without data are skipped.
pub const HUGEKIT_WARM_FILL_HOLES: u32 = 2;

const FLAGS: u32 = HUGEKIT_WARM_CHECK | HUGEKIT_WARM_FILL_HOLES;

/// Options of `hugekit_warm`. Zero means the default everywhere: set `size` and the fields that you
/// need.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hugekit_warm_options {
    /// `sizeof(hugekit_warm_options)`.
    pub size: usize,
    /// `HUGEKIT_WARM_` flags.
    pub flags: u32,
    /// Zero. Anything else is `HUGEKIT_STATUS_UNSUPPORTED`.
    pub reserved: u32,
    /// Called after each 64 MiB with the bytes that were read again, and all bytes. NULL: no
    /// callback.
    pub progress: hugekit_progress,
    /// Passed to `progress` unchanged.
    pub context: *mut c_void,
    /// The flag that stops the call early, or NULL.
    pub cancel: *const hugekit_cancel,
}

// SAFETY: integers and pointers, the first of which is the size; the function is null or what the caller put there.
unsafe impl Versioned for hugekit_warm_options {
    const NAME: &str = "hugekit_warm_options";
    const FIRST: usize = offset_of!(Self, cancel) + size_of::<*const hugekit_cancel>();
}

impl CallerOptions for hugekit_warm_options {
    fn reserved(&self) -> u32 {
        self.reserved
    }
}

/// The reason why units of a file are not huge.
#[repr(u32)]
#[derive(Clone, Copy)]
pub enum hugekit_warm_reason {
    /// All units are huge.
    None = 0,
    /// The call was only a check.
    NotMade = 1,
    /// The file system makes no huge pages in the page cache.
    FileSystem = 2,
    /// Other processes have mapped the file on smaller pages.
    Mapped = 3,
    /// The pages are being read or written, or a process that this user may not inspect has mapped
    /// them.
    Busy = 4,
    /// The kernel found no free blocks of 2 MiB.
    Fragmented = 5,
}

/// The page cache of a file, after a check or a warm-up. A unit is an aligned 2 MiB of the file.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hugekit_warm_report {
    /// `sizeof(hugekit_warm_report)`, set by the caller.
    pub size: usize,
    /// Units of the file that are not holes.
    pub units: u64,
    /// Units that are huge.
    pub huge: u64,
    /// Units that were huge before the call.
    pub already_huge: u64,
    /// Units without data, which were skipped.
    pub holes: u64,
    /// A `hugekit_warm_reason`: the reason if `huge` is less than `units`.
    pub reason: u32,
}

// SAFETY: integers, the first of which is the size.
unsafe impl Versioned for hugekit_warm_report {
    const NAME: &str = "hugekit_warm_report";
    const FIRST: usize = offset_of!(Self, reason) + size_of::<u32>();
}

/// Puts the page cache of a file on huge pages. Every process that maps the file afterwards gets
/// one page fault for each 2 MiB. `path` is a regular file of at least 2 MiB that this user may
/// read. `options` may be NULL. Fills `report`, which may be NULL. Units that stay on small pages
/// are no failure: see `reason`.
///
/// Units that are huge already do not change. The other units are dropped from the cache and read
/// again. The file needs as much memory as it has data. Dirty pages are written to the disk before
/// the drop, so the content does not change.
///
/// Fails with:
/// - `HUGEKIT_STATUS_INVALID` for a file that is not regular, is shorter than 2 MiB, or consists of
///   one hole.
/// - `HUGEKIT_STATUS_NO_MEMORY` if the machine or a control group has less memory than the file.
///   Nothing is dropped then.
/// - `HUGEKIT_STATUS_NOT_PERMITTED` for a check of another user's file.
/// - `HUGEKIT_STATUS_CONFLICT` for a file that was truncated or replaced during the call.
/// - `HUGEKIT_STATUS_SYSTEM` if the file cannot be read.
///
/// # Safety
/// `path` is NULL or ends with a zero byte. `options` is NULL or such a structure. `report` is NULL
/// or can be written, and its size is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_warm(
    path: *const c_char,
    options: *const hugekit_warm_options,
    report: *mut hugekit_warm_report,
) -> hugekit_status {
    // SAFETY: `path` is NULL, which is refused, or a text; `options` and `report` are NULL or such structures, and the
    // flag outlives the call.
    answer((|| unsafe {
        let place = OutParameter::new(report)?;
        let options = versioned::read(options)?;
        let path = path_of("path", path)?;
        let cancel = options.cancel.as_ref().map(|hugekit_cancel(cancel)| cancel);
        let progress = told(options.progress, options.context);
        let mut warmer = Warmer::new(read(&options)?);
        warmer = as_progress(&progress).into_iter().fold(warmer, Warmer::progress);
        warmer = cancel.into_iter().fold(warmer, Warmer::cancel);
        let warmed = warmer.run(path);
        let warmed = warmed.map_err(|error| Refusal::from(error).about(path.display()))?;
        place.fill(&facts(&warmed.report));
        Ok(())
    })())
}

fn read(options: &hugekit_warm_options) -> Answer<WarmOptions> {
    let flags = options.flags;
    if flags & !FLAGS != 0 {
        let other = flags & !FLAGS;
        return Err(Refusal::unsupported(format_args!("flags has unknown bits: {other:#x}")));
    }
    let mode = match flags & HUGEKIT_WARM_CHECK {
        0 => WarmMode::Make,
        _ => WarmMode::Check,
    };
    let fill_holes = flags & HUGEKIT_WARM_FILL_HOLES != 0;
    Ok(WarmOptions { mode, fill_holes, ..WarmOptions::default() })
}

fn facts(report: &WarmReport) -> hugekit_warm_report {
    use hugekit_warm_reason as reason;
    let why = match report.left.as_ref().map(|left| &left.why) {
        None => reason::None,
        Some(WhySmall::NotMade { .. }) => reason::NotMade,
        Some(WhySmall::FileSystem { .. }) => reason::FileSystem,
        Some(WhySmall::Mapped(_)) => reason::Mapped,
        Some(WhySmall::Fragmented { .. }) => reason::Fragmented,
        Some(_) => reason::Busy,
    };
    hugekit_warm_report {
        size: 0,
        units: report.units(),
        huge: report.huge(),
        already_huge: report.already_huge,
        holes: report.holes,
        reason: why as u32,
    }
}
