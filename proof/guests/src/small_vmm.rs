//! A VMM without a guest: memory restored by the handshake of Firecracker, and a process that
//! answers requests about it. It needs no virtualization.
//!
//! The process is this program again, started with an argument: a program that starts a
//! [`SmallVmm`] calls [`run_if_asked`] first in its `main`.
#![allow(unsafe_code)]

use std::ffi::OsString;
use std::io::{self, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use hugekit_sys::userfaultfd;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::firecracker::Pages;
use crate::request::{BYTES, CLUSTER, Request, pattern_at};
use crate::serial::Serial;

const ARGUMENT: &str = "hugekit-small-vmm";

/// `UFFD_FEATURE_EVENT_REMOVE`, the only feature that Firecracker asks for.
const EVENT_REMOVE: u64 = 1 << 3;

/// A page of small pages, to touch.
const PAGE: usize = 4096;

const HUGE_PAGE: usize = 2 << 20;

/// A process, which is killed when this is dropped.
#[derive(Debug)]
pub struct SmallVmm {
    child: Child,
    pub serial: Serial,
}

impl SmallVmm {
    /// Starts one whose memory is these regions, one after the other, and has the handler at a
    /// socket serve it.
    pub fn start(socket: &Path, regions: &[u64], pages: Pages) -> io::Result<Self> {
        Self::spawn(Command::new(std::env::current_exe()?), socket, regions, pages)
    }

    /// Does the same as [`start`](Self::start), as another user, for whom this program is copied into a folder. Only
    /// root may do this.
    pub fn start_as(user: u32, folder: &Path, socket: &Path, regions: &[u64]) -> io::Result<Self> {
        let program = folder.join("small-vmm");
        std::fs::copy(std::env::current_exe()?, &program)?;
        let mut command = Command::new(program);
        command.uid(user);
        Self::spawn(command, socket, regions, Pages::Base)
    }

    fn spawn(
        mut command: Command,
        socket: &Path,
        regions: &[u64],
        pages: Pages,
    ) -> io::Result<Self> {
        let sizes = regions.iter().map(|size| OsString::from(size.to_string()));
        let of_pages = if pages == Pages::Base { "base" } else { "hugetlb" };
        command.arg(ARGUMENT).arg(socket).arg(of_pages).args(sizes);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let serial = Serial::of(&mut child);
        Ok(Self { child, serial })
    }

    #[must_use]
    pub fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    pub fn is_running(&mut self) -> io::Result<bool> {
        Ok(self.child.try_wait()?.is_none())
    }

    /// Stops it, as SIGSTOP does.
    pub fn freeze(&self) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::STOP)?)
    }

    /// Lets it go on.
    pub fn thaw(&self) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), Signal::CONT)?)
    }

    /// Waits until it has ended; `None` if it has not within this time.
    pub fn ending_within(&mut self, wait: Duration) -> io::Result<Option<ExitStatus>> {
        let until = Instant::now() + wait;
        loop {
            match self.child.try_wait()? {
                None if Instant::now() < until => sleep(Duration::from_millis(1)),
                ended => return Ok(ended),
            }
        }
    }
}

impl Drop for SmallVmm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the VMM and ends the process, if the process was started for that.
pub fn run_if_asked() {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_none_or(|argument| argument != ARGUMENT) {
        return;
    }
    let socket = PathBuf::from(arguments.next().expect("a socket"));
    let pages = arguments.next().expect("a kind of pages");
    let size = |text: OsString| text.to_str()?.parse().ok();
    let sizes: Vec<u64> = arguments.map(|text| size(text).expect("a size")).collect();
    let code = match run(&socket, pages == "hugetlb", &sizes) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("small VMM: {error}");
            1
        }
    };
    std::process::exit(code);
}

fn run(socket: &Path, is_huge: bool, sizes: &[u64]) -> io::Result<()> {
    let memory = MissingMemory::map(sizes, is_huge)?;
    let faults = open_userfaultfd()?;
    for region in &memory.regions {
        userfaultfd::register_untouched(faults.as_fd(), &region.addresses())?;
    }
    let connection = UnixStream::connect(socket)?;
    let page_bytes = if is_huge { HUGE_PAGE } else { PAGE };
    send_handshake(&connection, &memory.to_json(page_bytes), Some(faults.as_fd()))?;
    answer_requests(&memory)
}

/// Opens a userfaultfd that serves faults of the kernel too, as Firecracker's does. Without privilege, it serves only
/// faults of this process's code.
fn open_userfaultfd() -> io::Result<OwnedFd> {
    let faults = userfaultfd::new_whole().or_else(|_| userfaultfd::new_user_mode_only())?;
    userfaultfd::enable(&faults, EVENT_REMOVE)?;
    Ok(faults)
}

/// Sends Firecracker's message: the regions, with a descriptor.
pub fn send_handshake(
    connection: &UnixStream,
    regions: &Value,
    descriptor: Option<std::os::fd::BorrowedFd<'_>>,
) -> io::Result<()> {
    let descriptors: Vec<_> = descriptor.into_iter().collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut carried = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(carried.push(SendAncillaryMessage::ScmRights(&descriptors)), "there is room");
    }
    let text = regions.to_string();
    let sent =
        sendmsg(connection, &[IoSlice::new(text.as_bytes())], &mut carried, SendFlags::NOSIGNAL)?;
    if sent == text.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

fn answer_requests(memory: &MissingMemory) -> io::Result<()> {
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    let mut bytes = [0; BYTES];
    loop {
        match input.read_exact(&mut bytes) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            read => read?,
        }
        let request = Request::from_bytes(&bytes);
        let request = request.ok_or_else(|| io::Error::other("not a request"))?;
        writeln!(output, "~{:016x}", memory.answer(request)?)?;
        output.flush()?;
    }
}

/// Memory of the guest that is not there: regions, one after the other.
#[derive(Debug)]
struct MissingMemory {
    regions: Vec<Region>,
}

// SAFETY: `answer` has several threads at once only for `TouchAtOnce`, and all of them only read.
unsafe impl Sync for MissingMemory {}

#[derive(Debug)]
struct Region {
    /// In the guest's memory.
    offset: u64,
    start: *mut u8,
    len: usize,
}

impl Region {
    fn addresses(&self) -> Range<usize> {
        self.start.addr()..self.start.addr() + self.len
    }
}

impl MissingMemory {
    fn map(sizes: &[u64], is_huge: bool) -> io::Result<Self> {
        let mut offset = 0;
        let mut regions = Vec::new();
        for &size in sizes {
            let start = map_region(size as usize, is_huge)?;
            regions.push(Region { offset, start, len: size as usize });
            offset += size;
        }
        Ok(Self { regions })
    }

    fn to_json(&self, page_bytes: usize) -> Value {
        let region = |region: &Region| {
            json!({
                "base_host_virt_addr": region.start.addr(), "size": region.len,
                "offset": region.offset, "page_size": page_bytes, "page_size_kib": page_bytes,
            })
        };
        self.regions.iter().map(region).collect()
    }

    fn answer(&self, request: Request) -> io::Result<u64> {
        Ok(match request {
            Request::Reply => 0,
            Request::Touch { start, len } => {
                self.touch(start..start + len);
                0
            }
            Request::TouchAtOnce { start, len } => {
                std::thread::scope(|scope| {
                    for _ in 0..2 {
                        scope.spawn(|| self.touch(start..start + len));
                    }
                    let pages = (1..=len / PAGE as u64).rev().map(|page| page * PAGE as u64);
                    pages.for_each(|end| self.touch(start + end - PAGE as u64..start + end));
                });
                0
            }
            Request::Sum { start, len } => self
                .words(start, len, 8)
                .fold(0, |sum: u64, (_, word)| sum.rotate_left(1) ^ read(word)),
            Request::Write { start, len, seed } => {
                for (address, word) in self.words(start, len, 8) {
                    // SAFETY: `words` gives aligned words of mapped regions, which only this thread
                    // uses.
                    unsafe { word.write_volatile(pattern_at(address, seed)) };
                }
                0
            }
            Request::Verify { start, len, seed } => self
                .words(start, len, 8)
                .filter(|&(address, word)| read(word) != pattern_at(address, seed))
                .count() as u64,
            Request::NotZero { start, len } => {
                self.words(start, len, 8).filter(|&(_, word)| read(word) != 0).count() as u64
            }
            Request::Dirty { start, len, every } => {
                let clusters = (start..start + len).step_by(every as usize);
                clusters.for_each(|cluster| self.dirty(cluster));
                0
            }
            Request::Remove { start, len } => self.remove(start, len).map(|()| 0)?,
            Request::Inflate { .. }
            | Request::Deflate { .. }
            | Request::Events
            | Request::ReadSector { .. }
            | Request::WriteSector { .. }
            | Request::WriteUntilAsked { .. } => {
                return Err(io::Error::other(
                    "the small VMM has neither devices nor writes without an end",
                ));
            }
        })
    }

    fn touch(&self, addresses: Range<u64>) {
        for (_, word) in self.words(addresses.start, addresses.end - addresses.start, PAGE) {
            read(word);
        }
    }

    fn dirty(&self, cluster: u64) {
        for (_, word) in self.words(cluster, CLUSTER, PAGE) {
            // SAFETY: `words` gives aligned words of mapped regions, which only this thread uses.
            unsafe { word.write_volatile(read(word).wrapping_add(1)) };
        }
    }

    fn remove(&self, start: u64, len: u64) -> io::Result<()> {
        let at = self.word(start).cast();
        assert!(self.word(start + len - 8).addr() - self.word(start).addr() == len as usize - 8);
        // SAFETY: a part of one mapped region, which only this thread uses and no reference points
        // into.
        unsafe { madvise(at, len as usize, Advice::LinuxDontNeed) }?;
        Ok(())
    }

    /// Words of guest memory with their guest-physical addresses.
    fn words(&self, start: u64, len: u64, step: usize) -> impl Iterator<Item = (u64, *mut u64)> {
        (start..start + len).step_by(step).map(|address| (address, self.word(address)))
    }

    fn word(&self, address: u64) -> *mut u64 {
        let holds = |region: &&Region| {
            address.checked_sub(region.offset).is_some_and(|at| at + 8 <= region.len as u64)
        };
        let region = self.regions.iter().find(holds).expect("an address of the guest");
        assert!(address.is_multiple_of(8), "words are aligned");
        region.start.wrapping_add((address - region.offset) as usize).cast()
    }
}

fn read(word: *mut u64) -> u64 {
    // SAFETY: `MissingMemory::word` gives aligned words of mapped regions, which no other thread writes.
    unsafe { word.read_volatile() }
}

/// Aligned to 2 MiB, as Firecracker's memory usually is.
fn map_region(len: usize, is_huge: bool) -> io::Result<*mut u8> {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let how = MapFlags::PRIVATE | MapFlags::NORESERVE;
    if is_huge {
        let huge = how | MapFlags::HUGETLB | MapFlags::HUGE_2MB;
        // SAFETY: a new mapping at an address of the kernel's choice replaces none.
        return Ok(unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, huge) }?.cast());
    }
    // SAFETY: a new mapping at an address of the kernel's choice replaces none.
    let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len + HUGE_PAGE, access, how) }?;
    let start = start.cast::<u8>();
    let before = start.addr().next_multiple_of(HUGE_PAGE) - start.addr();
    let aligned = start.wrapping_add(before);
    // SAFETY: both ranges are parts of the mapping that was just made, and no pointer to them is
    // kept. They have whole pages, because `len` and the alignment do.
    unsafe {
        unmap(start, before)?;
        unmap(aligned.wrapping_add(len), HUGE_PAGE - before)?;
    }
    Ok(aligned)
}

/// # Safety
/// The addresses are mapped by this program, and not used any more.
unsafe fn unmap(start: *mut u8, len: usize) -> io::Result<()> {
    // SAFETY: by contract, nothing uses these addresses.
    if len > 0 { Ok(unsafe { munmap(start.cast(), len) }?) } else { Ok(()) }
}
