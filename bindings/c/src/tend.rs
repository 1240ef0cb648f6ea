//! Tenders: the memory of processes kept on huge pages, so that they fork fast.
#![allow(unsafe_code)]

use std::mem::offset_of;
use std::sync::atomic::AtomicBool;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use hugekit_tend::{Builder, Hindrance, PassReport, Status, Tender, Tending};

use engine::HeapShortage;

use crate::status::{self, Answer, Refusal, answer, give, handle, hugekit_status};
use crate::versioned::{self, CallerOptions, Place, Versioned};

/// Keeps the private memory of a process on huge pages, from outside. The process may be this one
/// or another. Made by `hugekit_tender_new`.
pub struct hugekit_tender(Mutex<State>);

enum State {
    Idle(Tender),
    Running(Tending),
    /// Its thread could not be started.
    Spent,
}

impl hugekit_tender {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Options of a tender. Zero means the default everywhere, and the calling process: set `size` and
/// the fields that you need.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hugekit_tend_options {
    /// `sizeof(hugekit_tend_options)`.
    pub size: usize,
    /// The process. 0: the calling one.
    pub pid: i32,
    /// Collapse a 2 MiB range only if at least this percentage of its pages is populated. The other
    /// pages are filled with zeroes. 0: 90.
    pub density_percent: u32,
    /// The most CPU time to use, in percent of one CPU. 0: 100.
    pub cpu_percent: u32,
    /// Zero. Anything else is `HUGEKIT_STATUS_UNSUPPORTED`.
    pub reserved: u32,
    /// The most bytes to collapse per second. 0: 1 GiB.
    pub bytes_per_second: u64,
    /// Bytes of free huge pages to leave for other uses. 0: 256 MiB.
    pub keep_free: u64,
}

// SAFETY: integers, the first of which is the size.
unsafe impl Versioned for hugekit_tend_options {
    const NAME: &str = "hugekit_tend_options";
    const FIRST: usize = offset_of!(Self, keep_free) + size_of::<u64>();
}

impl CallerOptions for hugekit_tend_options {
    fn reserved(&self) -> u32 {
        self.reserved
    }
}

/// Why a pass ended early, or did not begin.
#[repr(u32)]
pub enum hugekit_tend_hindrance {
    /// The pass was complete.
    None = 0,
    /// A forked child exists and shares the memory.
    Child = 1,
    /// Tasks of this machine wait for memory.
    Pressure = 2,
    /// Too few huge pages are free.
    NoFreeHugePages = 3,
    /// The process's control group has too little memory left.
    ControlGroup = 4,
    /// The process has ended or started another program.
    Gone = 5,
    /// The tender was freed.
    Stopped = 6,
    /// The kernel does not answer, because the process keeps its memory map locked.
    Stuck = 7,
    /// Its files in `/proc` cannot be read.
    Unreadable = 8,
    /// No thread could be started for the pass.
    NoThread = 9,
}

/// The work of a tender, and its observations. A pass is one walk over the memory.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct hugekit_tend_report {
    /// `sizeof(hugekit_tend_report)`, set by the caller.
    pub size: usize,
    /// Bytes of populated private memory, after the last pass.
    pub resident_bytes: u64,
    /// Bytes of these on huge pages.
    pub huge_bytes: u64,
    /// Bytes that the last pass moved to huge pages.
    pub collapsed_bytes: u64,
    /// Bytes of holes that it filled with zeroes.
    pub filled_bytes: u64,
    /// Bytes of 2 MiB ranges with too many holes.
    pub sparse_bytes: u64,
    /// CPU time of the pass, in nanoseconds.
    pub cpu_ns: u64,
    /// The longest collapse, in nanoseconds. Writers of those 2 MiB waited as long.
    pub longest_ns: u64,
    /// A `hugekit_tend_hindrance`.
    pub hindrance: u32,
    /// Forked children that exist and share the memory.
    pub children: u32,
    /// Passes so far.
    pub passes: u64,
    /// Forks that were noticed.
    pub forks: u64,
    /// How long the last fork took, in nanoseconds; 0 if unknown.
    pub last_fork_ns: u64,
}

// SAFETY: integers, the first of which is the size.
unsafe impl Versioned for hugekit_tend_report {
    const NAME: &str = "hugekit_tend_report";
    const FIRST: usize = offset_of!(Self, last_fork_ns) + size_of::<u64>();
}

impl hugekit_tend_report {
    fn of_pass(report: &PassReport) -> Self {
        let hindrance = match report.hindrance {
            None => hugekit_tend_hindrance::None,
            Some(Hindrance::Child { .. }) => hugekit_tend_hindrance::Child,
            Some(Hindrance::Pressure { .. }) => hugekit_tend_hindrance::Pressure,
            Some(Hindrance::NoFreeHugePages { .. }) => hugekit_tend_hindrance::NoFreeHugePages,
            Some(Hindrance::ControlGroup { .. }) => hugekit_tend_hindrance::ControlGroup,
            Some(Hindrance::Gone) => hugekit_tend_hindrance::Gone,
            Some(Hindrance::Stuck) => hugekit_tend_hindrance::Stuck,
            Some(Hindrance::Unreadable) => hugekit_tend_hindrance::Unreadable,
            Some(Hindrance::NoThread) => hugekit_tend_hindrance::NoThread,
            Some(_) => hugekit_tend_hindrance::Stopped,
        };
        Self {
            resident_bytes: report.after.all,
            huge_bytes: report.after.huge,
            collapsed_bytes: report.collapsed * engine::HUGE_PAGE_BYTES as u64,
            filled_bytes: report.filled,
            sparse_bytes: report.sparse,
            cpu_ns: nanoseconds(report.cpu),
            longest_ns: nanoseconds(report.longest),
            hindrance: hindrance as u32,
            ..Self::default()
        }
    }

    fn of_status(status: &Status) -> Self {
        Self {
            children: status.children as u32,
            passes: status.passes,
            forks: status.forks,
            last_fork_ns: status.last_fork.map_or(0, nanoseconds),
            ..status.last.as_ref().map_or(Self::default(), Self::of_pass)
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Makes a tender of one process, and stores its handle in `*tender`. The process is not changed
/// yet. `options` may be NULL. Free it with `hugekit_tender_free`.
///
/// Fails with `HUGEKIT_STATUS_INVALID` if there is no such process; with
/// `HUGEKIT_STATUS_NOT_PERMITTED` if it is another user's; with `HUGEKIT_STATUS_CONFLICT` if it has
/// another tender; with `HUGEKIT_STATUS_UNSUPPORTED` before Linux 6.1, and if the process has
/// disabled transparent huge pages.
///
/// # Safety
/// `tender` can be written. `options` is NULL or its size is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_tender_new(
    options: *const hugekit_tend_options,
    tender: *mut *mut hugekit_tender,
) -> hugekit_status {
    // SAFETY: `options` is NULL or a structure whose size is set; `tender` is NULL or can be written, and `give`
    // refuses NULL.
    answer(unsafe {
        give(tender, "tender", || {
            let tender = builder(&versioned::read(options)?)?.build()?;
            Ok(hugekit_tender(Mutex::new(State::Idle(tender))))
        })
    })
}

fn builder(options: &hugekit_tend_options) -> Answer<Builder> {
    let share = |name: &str, percent: u32, usual: u32| match percent {
        0 => Ok(f64::from(usual) / 100.0),
        1..=100 => Ok(f64::from(percent) / 100.0),
        _ => Err(Refusal::invalid(format_args!("{name} is {percent}: a share is 1 to 100"))),
    };
    let pid = match options.pid {
        0 => std::process::id() as i32,
        pid => pid,
    };
    let mut builder = Tender::builder()
        .process(pid)
        .density(share("density_percent", options.density_percent, 90)?)
        .cpu_share(share("cpu_percent", options.cpu_percent, 100)?);
    if options.bytes_per_second > 0 {
        builder = builder.bytes_per_second(options.bytes_per_second);
    }
    if options.keep_free > 0 {
        builder = builder.keep_free(options.keep_free);
    }
    Ok(builder)
}

/// Makes one pass now and fills `*report`, which may be NULL. It collapses nearly full ranges, as
/// fast as the options allow. Call it before a fork.
///
/// Fails with `HUGEKIT_STATUS_INVALID` if the process has ended, and with `HUGEKIT_STATUS_CONFLICT`
/// after `hugekit_tender_start`.
///
/// # Safety
/// `tender` is a tender. `report` is NULL or its size is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_tender_pass(
    tender: *mut hugekit_tender,
    report: *mut hugekit_tend_report,
) -> hugekit_status {
    // SAFETY: `tender` is NULL or a handle that is not freed meanwhile; `report` is NULL or can be written for the
    // size that it states.
    answer((|| unsafe {
        let place = Place::new(report)?;
        HeapShortage::check()?;
        let State::Idle(tender) = &mut *handle(tender, "tender")?.state() else {
            return Err(started());
        };
        let reports = tender.pass(&AtomicBool::new(false))?;
        let done = reports.first().map_or_else(Default::default, hugekit_tend_report::of_pass);
        place.fill(&done);
        Ok(())
    })())
}

/// Starts a thread that tends from now on. It makes a pass at once, one whenever the last forked
/// child has ended, and one after a minute.
///
/// Fails with `HUGEKIT_STATUS_CONFLICT` if it was called before, and with
/// `HUGEKIT_STATUS_NO_MEMORY` if no thread can be started; the tender can only be freed then.
///
/// # Safety
/// `tender` is a tender.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_tender_start(tender: *mut hugekit_tender) -> hugekit_status {
    // SAFETY: `tender` is NULL, which `handle` refuses, or a handle that is not freed meanwhile.
    answer((|| unsafe {
        HeapShortage::check()?;
        let mut state = handle(tender, "tender")?.state();
        match std::mem::replace(&mut *state, State::Spent) {
            State::Idle(tender) => *state = State::Running(tender.spawn()?),
            other => {
                *state = other;
                return Err(started());
            }
        }
        Ok(())
    })())
}

fn started() -> Refusal {
    Refusal::conflict("the tender works in its own thread already")
}

/// Fills `report` with the work and the observations of a started tender; all 0 before its first
/// pass.
///
/// # Safety
/// `tender` is a tender. The size of `report` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_tender_query(
    tender: *const hugekit_tender,
    report: *mut hugekit_tend_report,
) -> hugekit_status {
    // SAFETY: `tender` is NULL or a handle that is not freed meanwhile; `report` is NULL or can be written for the
    // size that it states.
    answer((|| unsafe {
        let place = Place::needed(report)?;
        let said = match &*handle(tender, "tender")?.state() {
            State::Running(tending) => tending.said().pop(),
            _ => None,
        };
        place.fill(&said.as_ref().map_or_else(Default::default, hugekit_tend_report::of_status));
        Ok(())
    })())
}

/// Stops tending within a tenth of a second and frees the tender. The memory stays as it is. Does
/// nothing for NULL.
///
/// # Safety
/// NULL, or a tender that no thread uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_tender_free(tender: *mut hugekit_tender) {
    // SAFETY: `tender` is NULL or came from `hugekit_tender_new`, and no thread uses it any more.
    drop(unsafe { status::take_handle(tender) });
}
