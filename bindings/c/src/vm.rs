//! Running microVMs: saved, and forked.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_char};
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::slice;

use engine::HeapShortage;
use hugekit_vm::checkpoint::{ChildSettings, ForkReport, ForkSettings, Report, Settings, Way};

use crate::image::path_of;
use crate::status::{Answer, Refusal, answer, hugekit_status};
use crate::versioned::{self, CallerOptions, Place, Versioned};

/// Options of a checkpoint and of a fork. Zero means the default everywhere: set `size` and the
/// fields that you need.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hugekit_vm_options {
    /// `sizeof(hugekit_vm_options)`.
    pub size: usize,
    /// The paths of earlier checkpoints of the VM, a full one first and then each delta since, or
    /// NULL. The output is then a delta. Not for a fork.
    pub previous: *const *const c_char,
    /// The number of these paths.
    pub previous_count: usize,
    /// If not 0, memory on base pages is not put on huge pages before the pause. The pause is then
    /// longer.
    pub no_collapse: u32,
    /// If not 0, the socket of the API may belong to another process, such as a proxy.
    pub proxy: u32,
    /// If not 0, children stay paused. Not for a checkpoint.
    pub paused: u32,
    /// Zero. Anything else is `HUGEKIT_STATUS_UNSUPPORTED`.
    pub reserved: u32,
}

// SAFETY: integers and a pointer, the first of which is the size.
unsafe impl Versioned for hugekit_vm_options {
    const NAME: &str = "hugekit_vm_options";
    const FIRST: usize = offset_of!(Self, reserved) + size_of::<u32>();
}

impl CallerOptions for hugekit_vm_options {
    fn reserved(&self) -> u32 {
        self.reserved
    }
}

/// What a checkpoint or a fork has cost. Times are in nanoseconds.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct hugekit_vm_report {
    /// `sizeof(hugekit_vm_report)`, set by the caller.
    pub size: usize,
    /// How long the VM was paused; 0 if it was paused before.
    pub paused_ns: u64,
    /// Before the pause, how long memory was put on huge pages.
    pub collapse_ns: u64,
    /// Bytes of this memory.
    pub collapsed_bytes: u64,
    /// From the call until all children were restored; 0 for a checkpoint.
    pub restored_ns: u64,
    /// From the call until the output, or the children's memory, was complete.
    pub complete_ns: u64,
    /// Bytes of the VM's memory.
    pub memory_bytes: u64,
    /// Bytes of it that were copied.
    pub copied_bytes: u64,
    /// Bytes of the delta; 0 if the output is none.
    pub delta_bytes: u64,
    /// Accesses of the running VM that waited for a copy.
    pub faults: u64,
    /// The longest time in which such an access was answered.
    pub longest_fault_ns: u64,
    /// 1 if Firecracker saved the memory in the pause, because this version does not save its state
    /// alone.
    pub stock_snapshot: u32,
    /// Zero.
    pub reserved: u32,
}

// SAFETY: integers, the first of which is the size.
unsafe impl Versioned for hugekit_vm_report {
    const NAME: &str = "hugekit_vm_report";
    const FIRST: usize = offset_of!(Self, reserved) + size_of::<u32>();
}

impl From<Report> for hugekit_vm_report {
    fn from(report: Report) -> Self {
        Self {
            paused_ns: nanoseconds(report.paused_ms),
            collapse_ns: nanoseconds(report.collapse_ms),
            collapsed_bytes: report.collapsed_bytes,
            complete_ns: nanoseconds(report.complete_ms),
            memory_bytes: report.memory_bytes,
            copied_bytes: report.copied_bytes,
            delta_bytes: report.delta_bytes.unwrap_or(0),
            faults: report.faults,
            longest_fault_ns: nanoseconds(report.longest_fault_ms),
            stock_snapshot: u32::from(report.way == Way::StockSnapshot),
            ..Self::default()
        }
    }
}

impl From<ForkReport> for hugekit_vm_report {
    fn from(report: ForkReport) -> Self {
        Self {
            paused_ns: nanoseconds(report.paused_ms),
            collapse_ns: nanoseconds(report.collapse_ms),
            collapsed_bytes: report.collapsed_bytes,
            restored_ns: nanoseconds(report.restored_ms),
            complete_ns: nanoseconds(report.complete_ms),
            memory_bytes: report.memory_bytes,
            copied_bytes: report.copied_bytes,
            faults: report.faults,
            longest_fault_ns: nanoseconds(report.longest_fault_ms),
            stock_snapshot: u32::from(report.way == Way::StockSnapshot),
            ..Self::default()
        }
    }
}

fn nanoseconds(milliseconds: f64) -> u64 {
    (milliseconds * 1e6) as u64
}

/// A child to start, and its processes.
#[repr(C)]
pub struct hugekit_vm_child {
    /// The program that starts Firecracker, its arguments, and NULL, as for `execvp(3)`. Its
    /// standard streams are `/dev/null`.
    pub command: *const *const c_char,
    /// The socket of the child's API, which must not exist. The command must name it, too.
    pub api: *const c_char,
    /// Other fields of the request that restores the child, as a JSON object such as
    /// `{"network_overrides": […]}`, or NULL.
    pub load: *const c_char,
    /// Set by `hugekit_vm_fork`: the process of the program, a child of the calling process. Wait
    /// for its end by `waitpid(2)`.
    pub program: i32,
    /// Set by `hugekit_vm_fork`: the process of Firecracker.
    pub vmm: i32,
}

/// Saves a running VM of stock Firecracker to the folder `output`, which it makes: `vmstate` and
/// `memory`, or `memory.delta` if the options name earlier checkpoints. The VM is paused for some
/// milliseconds, and its memory is copied while it runs. `pid` is the process of Firecracker, `api`
/// the socket of its API. The VM must have been restored by `hugekit pager`, which has left it.
/// `options` and `report` may be NULL.
///
/// Fails with `HUGEKIT_STATUS_INVALID` if the output exists, or the VM has no userfaultfd; with
/// `HUGEKIT_STATUS_CONFLICT` if a pager or another checkpoint uses it; with `HUGEKIT_STATUS_SYSTEM`
/// otherwise. The output is then absent, and the VM runs on.
///
/// # Safety
/// `api` and `output` are NULL or end with a zero byte. `options` is NULL or such a structure: its
/// texts end with a zero byte, and its list is as long as `previous_count`. `report` is NULL or its
/// size is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_vm_checkpoint(
    pid: i32,
    api: *const c_char,
    output: *const c_char,
    options: *const hugekit_vm_options,
    report: *mut hugekit_vm_report,
) -> hugekit_status {
    // SAFETY: texts are NULL, which is refused, or end with a zero byte; `options` is NULL or such a structure, whose
    // list is as long as it says; `report` is NULL or can be written for the size that it states.
    answer((|| unsafe {
        let place = Place::new(report)?;
        HeapShortage::check()?;
        let options = versioned::read(options)?;
        let (api, output) = (path_of("api", api)?, path_of("output", output)?);
        let settings = Settings {
            previous: previous(&options)?,
            collapse: options.no_collapse == 0,
            check_api: options.proxy == 0,
            ..Settings::new(pid, api.to_owned(), output.to_owned())
        };
        if options.paused != 0 {
            return Err(Refusal::invalid("paused is for children: a checkpoint starts none"));
        }
        place.fill(&hugekit_vm::checkpoint::checkpoint(&settings)?.into());
        Ok(())
    })())
}

/// # Safety
/// The list is as long as `previous_count`, and its texts end with a zero byte.
unsafe fn previous(options: &hugekit_vm_options) -> Answer<Vec<PathBuf>> {
    // SAFETY: not NULL, so the list is as long as its count, and its texts end with a zero byte.
    let paths = unsafe {
        match options.previous_count {
            0 => &[],
            _ if options.previous.is_null() => return Err(Refusal::invalid("previous is NULL")),
            count => slice::from_raw_parts(options.previous, count),
        }
    };
    // SAFETY: the texts end with a zero byte, as this function's caller promises.
    let path = |&path| unsafe { path_of("an earlier checkpoint", path) }.map(Into::into);
    paths.iter().map(path).collect()
}

/// Starts children from a running VM of stock Firecracker, without a file: the VM is paused for
/// some milliseconds, and the children run from that moment. Returns when the children have all of
/// their memory, and stores their processes in `children`. They run on without this process, and
/// can be saved and forked as the VM can, which must be as for `hugekit_vm_checkpoint`. `options`
/// and `report` may be NULL.
///
/// Fails with `HUGEKIT_STATUS_INVALID` if the number of children is not 1 to 64, or the socket of
/// one exists; otherwise as `hugekit_vm_checkpoint`. All children have then ended, and the VM runs
/// on.
///
/// # Safety
/// `api` is NULL or ends with a zero byte. `children` is NULL, or `count` structures that can be
/// written, whose texts are NULL or end with a zero byte and whose `command` is NULL or ends with
/// NULL. `options` is NULL or its size is set. `report` is NULL or its size is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_vm_fork(
    pid: i32,
    api: *const c_char,
    children: *mut hugekit_vm_child,
    count: usize,
    options: *const hugekit_vm_options,
    report: *mut hugekit_vm_report,
) -> hugekit_status {
    // SAFETY: texts are NULL, which is refused, or end with a zero byte; `children` is NULL, which is refused, or so
    // many structures; `options` is NULL or such a structure; `report` is NULL or can be written for the size that it
    // states.
    answer((|| unsafe {
        let place = Place::new(report)?;
        HeapShortage::check()?;
        let options = versioned::read(options)?;
        if children.is_null() {
            return Err(Refusal::invalid("children is NULL"));
        }
        let children = slice::from_raw_parts_mut(children, count);
        let wanted = children.iter().map(|child| settings_of(child));
        let settings = ForkSettings {
            resume: options.paused == 0,
            collapse: options.no_collapse == 0,
            check_api: options.proxy == 0,
            ..ForkSettings::new(
                pid,
                path_of("api", api)?.to_owned(),
                wanted.collect::<Answer<_>>()?,
            )
        };
        if options.previous_count != 0 {
            return Err(Refusal::invalid("previous is for checkpoints: a fork saves nothing"));
        }
        let forked = hugekit_vm::checkpoint::fork(&settings)?;
        let started = forked.programs.iter().zip(&forked.report.children);
        for (child, (program, grown)) in children.iter_mut().zip(started) {
            (child.program, child.vmm) = (program.id().cast_signed(), grown.pid);
        }
        place.fill(&forked.report.into());
        Ok(())
    })())
}

/// # Safety
/// Texts are NULL or end with a zero byte; `command` is NULL or ends with NULL.
unsafe fn settings_of(child: &hugekit_vm_child) -> Answer<ChildSettings> {
    if child.command.is_null() {
        return Err(Refusal::invalid("the command of a child is NULL"));
    }
    // SAFETY: `command` ends with NULL, and its texts and the others with a zero byte.
    unsafe {
        let texts = (0..).map(|at| *child.command.add(at)).take_while(|text| !text.is_null());
        let text = |text| OsStr::from_bytes(CStr::from_ptr(text).to_bytes()).to_owned();
        let command = texts.map(text).collect();
        let load = if child.load.is_null() { c"{}" } else { CStr::from_ptr(child.load) };
        let load = serde_json::from_slice(load.to_bytes()).map_err(|error| {
            Refusal::invalid(format_args!("load of a child is not a JSON object: {error}"))
        })?;
        Ok(ChildSettings { command, api: path_of("the api of a child", child.api)?.into(), load })
    }
}
