//! Memory and processes that are unlike others: guard pages, faults that the owner serves, names that are no text.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use hugekit_testing::processes::happens;
use rustix::fs::{FlockOperation, flock};
use rustix::mm::mmap;

use super::*;

/// Of `asm-generic/mman-common.h`, since Linux 6.13.
const MADV_GUARD_INSTALL: libc::c_int = 102;

/// Whether a page can be read: the kernel is asked to, and does not fault.
fn is_readable(page: *const u8) -> bool {
    let (_end, pipe) = rustix::pipe::pipe().unwrap();
    // SAFETY: the kernel reads one byte, or answers that it cannot.
    unsafe { libc::write(pipe.as_raw_fd(), page.cast(), 1) == 1 }
}

fn excluded(report: &PassReport, reason: Excluded) -> u64 {
    let bytes = report.excluded.iter().find(|(other, _)| *other == reason);
    bytes.map_or(0, |&(_, bytes)| bytes)
}

#[test]
fn page_that_was_only_read_is_a_hole() {
    let _turn = in_turn();
    let Some(mut tender) = tender(builder()) else { return };
    let memory = Small::new(4, 1);
    for at in (page_size()..memory.len).step_by(page_size()) {
        memory.at(at).load(Ordering::Relaxed);
    }
    let report = pass(&mut tender);
    assert_eq!(memory.huge(), 0, "{report:?}");
    assert!(report.sparse >= 4 * page_size() as u64, "{report:?}");
}

#[test]
fn guard_pages_stay_and_are_the_reason() {
    let _turn = in_turn();
    let Some(mut tender) = tender(with_density(0.4)) else { return };
    let memory = Small::new(2, pages());
    // SAFETY: a page of the mapping, of which no reference exists.
    let guard = unsafe { memory.start.as_ptr().add(7 * page_size()) };
    // SAFETY: a page of the mapping, of which no reference exists. Only the kernel accesses the page afterwards.
    if unsafe { libc::madvise(guard.cast(), page_size(), MADV_GUARD_INSTALL) } != 0 {
        skipped("the kernel has no guard pages in mappings");
        return;
    }
    let report = pass(&mut tender);
    assert!(!is_readable(guard), "{report:?}");
    for at in (0..memory.len).step_by(page_size()).filter(|&at| at != 7 * page_size()) {
        assert_eq!(memory.at(at).load(Ordering::Relaxed), (at as u64) ^ 0x5a5a);
    }
    let unsuitable = report.refused.iter().find(|(reason, _)| *reason == TendRefusal::Unsuitable);
    assert!(unsuitable.is_some_and(|&(_, count)| count >= 1), "{report:?}");
}

/// Bytes of this memory that the kernel may take.
fn freed(memory: &Small) -> u64 {
    bytes_at(&memory.addresses(), "LazyFree")
}

#[test]
fn memory_that_its_owner_has_freed_lazily_is_left_as_it_is() {
    let _turn = in_turn();
    let Some(mut tender) = tender(with_density(0.1)) else { return };
    let memory = Small::new(4, pages());
    // SAFETY: a part of the mapping, of which no reference exists.
    let third = unsafe { memory.start.as_ptr().add(2 * HUGE_PAGE_BYTES) };
    // SAFETY: memory that only this test knows, and does not read any more.
    if unsafe { libc::madvise(third.cast(), HUGE_PAGE_BYTES, libc::MADV_FREE) } != 0 {
        skipped("the kernel has no MADV_FREE");
        return;
    }
    let before = freed(&memory);
    let report = pass(&mut tender);
    assert!(before > 0 && freed(&memory) >= before, "{report:?}");
    assert!(excluded(&report, Excluded::LazilyFreed) >= HUGE_PAGE_BYTES as u64, "{report:?}");
    if report.refused.is_empty() {
        // Whoever may not see page frames leaves all of the mapping.
        let huge = memory.huge() / HUGE_PAGE_BYTES as u64;
        let sees_frames = rustix::process::geteuid().is_root();
        assert!(huge == 3 || (huge == 0 && !sees_frames), "{huge}: {report:?}");
    }
}

/// A descriptor by which faults of missing pages in this range are served.
fn userfaultfd(memory: &Small) -> Option<OwnedFd> {
    const API: libc::c_ulong = 0xc018_aa3f;
    const REGISTER: libc::c_ulong = 0xc020_aa00;
    const USER_MODE_ONLY: libc::c_int = 1;
    let (mut api, mut register) =
        ([0xaa_u64, 0, 0], [memory.start.addr().get() as u64, memory.len as u64, 1, 0]);
    // SAFETY: the descriptor is new and belongs to nothing else. Both requests read and write the structures of
    // `linux/userfaultfd.h`, of three and of four words.
    unsafe {
        let descriptor = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC | USER_MODE_ONLY);
        let descriptor = (descriptor >= 0).then(|| OwnedFd::from_raw_fd(descriptor as i32))?;
        let is_done =
            |request, words: *mut u64| libc::ioctl(descriptor.as_raw_fd(), request, words) == 0;
        (is_done(API, api.as_mut_ptr()) && is_done(REGISTER, register.as_mut_ptr()))
            .then_some(descriptor)
    }
}

#[test]
fn memory_whose_owner_serves_the_faults_is_left_as_it_is() {
    let _turn = in_turn();
    let Some(mut tender) = tender(with_density(0.1)) else { return };
    let memory = Small::new(2, pages() / 2);
    let Some(_served) = userfaultfd(&memory) else {
        skipped("no userfaultfd");
        return;
    };
    let report = pass(&mut tender);
    assert!(excluded(&report, Excluded::Userfaultfd) >= memory.len as u64 / 2, "{report:?}");
    // A page that is not there would be waited for for ever if it were read.
    assert_eq!(memory.huge(), 0);
    assert_eq!(memory.at(0).load(Ordering::Relaxed), 0x5a5a);
}

#[test]
fn terabytes_that_are_all_but_empty_take_no_time() {
    let _turn = in_turn();
    let Some(mut tender) = tender(builder()) else { return };
    let (flags, access) =
        (MapFlags::PRIVATE | MapFlags::NORESERVE, ProtFlags::READ | ProtFlags::WRITE);
    let len = 8 << 40;
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let Ok(start) = (unsafe { mmap_anonymous(ptr::null_mut(), len, access, flags) }) else {
        skipped("no such address space");
        return;
    };
    // SAFETY: within the mapping, of which no reference exists.
    unsafe { start.cast::<u8>().write(1) };
    let report = pass(&mut tender);
    assert!(excluded(&report, Excluded::TooSparse) >= page_size() as u64, "{report:?}");
    // SAFETY: what was mapped, of which no reference is left.
    unsafe { munmap(start, len) }.unwrap();
}

#[test]
fn names_that_are_no_text_keep_no_process_from_being_tended() {
    let _turn = in_turn();
    let folder = tempfile::tempdir().unwrap();
    let odd = |name: &[u8]| folder.path().join(OsStr::from_bytes(name));
    // A mapped file of this process.
    let file = odd(b"\xff\xfe) mapped\n");
    fs::write(&file, [1; 4096]).unwrap();
    let mapped = File::open(&file).unwrap();
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let mapping = unsafe {
        mmap(ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::PRIVATE, mapped.as_fd(), 0).unwrap()
    };
    let memory = Small::new(2, pages());
    let report = tender(builder()).map(|mut tender| pass(&mut tender));
    // SAFETY: what was mapped, of which no reference exists.
    unsafe { munmap(mapping, 4096) }.unwrap();
    if let Some(report) = report.filter(|report| report.refused.is_empty()) {
        assert_eq!(memory.huge(), memory.len as u64, "{report:?}");
    }
    // The name of a program.
    let sleep = ["/usr/bin/sleep", "/bin/sleep"].into_iter().find(|path| Path::new(path).exists());
    let program = odd(b"\xff) R 1 (\n\xfe!long name");
    symlink(fs::canonicalize(sleep.unwrap()).unwrap(), &program).unwrap();
    let other = Other::new(Command::new(&program).arg("60"));
    let is_named = || hugekit_tend::named(&[program.file_name().unwrap()]) == [other.pid()];
    // The kernel lets the parent go on before it has named the child.
    assert!(happens(is_named));
    match Target::open(other.pid()) {
        Err(error) => assert!(!matches!(error, TendError::Unreadable { .. }), "{error:?}"),
        Ok(target) => assert_eq!(target.name(), "\u{fffd}) R 1 (\n\u{fffd}!long"),
    }
}

#[test]
fn lock_that_any_user_can_take_keeps_no_process_from_being_tended() {
    let _turn = in_turn();
    let other = Other::new(Command::new("sleep").arg("60"));
    let folder = File::open(format!("/proc/{}", other.pid())).unwrap();
    flock(&folder, FlockOperation::NonBlockingLockExclusive).unwrap();
    let opened = Target::open(other.pid());
    assert!(!matches!(opened, Err(TendError::Taken { .. })), "{opened:?}");
    // What is locked instead, another user cannot open.
    if rustix::process::geteuid().is_root() {
        let mut other_user = Command::new("head");
        other_user.args(["-c", "8"]).arg(format!("/proc/{}/pagemap", other.pid())).uid(65534);
        assert!(
            !other_user.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
        );
    }
}

/// A control group with a limit on memory, and a process in it.
struct Limited(PathBuf);

impl Limited {
    fn of(process: &Other, bytes: u64) -> Option<Self> {
        let mount = Path::new("/sys/fs/cgroup");
        let name = format!("hugekit-test-{}", process.pid());
        for (folder, limit) in
            [(mount.join("memory"), "memory.limit_in_bytes"), (mount.into(), "memory.max")]
        {
            let group = Self(folder.join(&name));
            let made = fs::create_dir(&group.0)
                .and_then(|()| fs::write(group.0.join(limit), bytes.to_string()))
                .and_then(|()| fs::write(group.0.join("cgroup.procs"), process.pid().to_string()));
            if made.is_ok() {
                return Some(group);
            }
        }
        skipped("no control group with a limit on memory can be made");
        None
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let processes = fs::read(self.0.join("cgroup.procs")).unwrap_or_default();
        let above = self.0.parent().unwrap().join("cgroup.procs");
        for pid in String::from_utf8_lossy(&processes).lines() {
            let _ = fs::write(&above, pid);
        }
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn limit_of_the_control_group_holds_the_tender_back_in_either_version() {
    let _turn = in_turn();
    let other = Other::new(Command::new("sleep").arg("60"));
    let Some(_group) = Limited::of(&other, 64 << 20) else { return };
    let tender = Tender::builder()
        .options(TendOptions { keep_free: 128 << 20, ..options() })
        .process(other.pid())
        .build();
    let mut tender = match tender {
        Ok(tender) => tender,
        Err(error) => return skipped(error),
    };
    let report = pass(&mut tender);
    match report.hindrance {
        Some(Hindrance::ControlGroup { left }) => assert!(left <= 64 << 20, "{left}"),
        // The machine itself has less than that.
        hindrance => {
            assert!(matches!(hindrance, Some(Hindrance::LittleMemory { .. })), "{report:?}");
        }
    }
}

#[test]
fn process_that_starts_its_own_program_again_is_left() {
    let _turn = in_turn();
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("script");
    fs::write(&script, "echo >> \"$1\"; read _ || sleep 60; exec sh \"$0\" \"$1\"\n").unwrap();
    let (starts, mut command) = (folder.path().join("starts"), Command::new("setarch"));
    // Without random addresses everything lies where it did.
    command.args(["-R", "sh"]).arg(&script).arg(&starts).stdin(Stdio::piped());
    let Ok(mut child) = command.stdout(Stdio::null()).spawn() else { return };
    let mut input = child.stdin.take().unwrap();
    let other = Other(child);
    let wait_for = |count| {
        while fs::read(&starts).map_or(0, |starts| starts.len()) < count {
            thread::sleep(Duration::from_millis(5));
        }
    };
    wait_for(1);
    let Ok(mut tender) = builder().process(other.pid()).build() else { return };
    input.write_all(b"\n").unwrap();
    wait_for(2);
    match tender.pass(&NOT_STOPPED) {
        Err(TendError::Gone { .. }) => {}
        reports => assert_eq!(reports.unwrap()[0].hindrance, Some(Hindrance::Gone)),
    }
}
