//! A file whose server is the test: it answers late, with errors, or not at all.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread;

use rustix::process::{Pid, Signal, WaitOptions, set_parent_process_death_signal, waitpid};

/// Requests, by the numbers of `linux/fuse.h`.
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const INTERRUPT: u32 = 36;

/// Reads are not kept in the page cache.
const DIRECT: u32 = 1;

const REGULAR_FILE: u32 = 0o100_644;

/// A request of the kernel to the file.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    /// These bytes.
    Read { offset: u64, len: usize },
    /// A descriptor is closed.
    Flush,
}

/// An answer of the file.
#[derive(Clone, Debug)]
pub enum Reply {
    Bytes(Vec<u8>),
    /// The number of a system error.
    Error(i32),
    /// The caller waits until the file is unmounted.
    Never,
}

/// The file, until this value is dropped. All that waits for it then fails.
pub struct Mounted {
    path: CString,
    /// The process that serves it, if it is not this one.
    server: Option<Pid>,
}

impl Mounted {
    /// Mounts a file of `bytes` bytes. `None` if none may be mounted here.
    pub fn at(
        path: &Path,
        bytes: u64,
        answer: impl FnMut(Call) -> Reply + Send + 'static,
    ) -> Option<Self> {
        let (path, device) = mount(path)?;
        thread::spawn(move || serve(device, DIRECT, bytes, answer));
        Some(Self { path, server: None })
    }

    /// Like [`at`](Self::at), and the page cache keeps the bytes. Another process serves the file, a copy of this one: a page
    /// fault of the file may wait for the answer while the kernel holds a lock of the memory of the process that has it.
    pub fn cached_at(path: &Path, bytes: u64, answer: impl FnMut(Call) -> Reply) -> Option<Self> {
        let (path, device) = mount(path)?;
        // SAFETY: the child allocates, which glibc's allocator bears after a fork, and takes no other lock of this process. It
        // never returns from here.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let _ = set_parent_process_death_signal(Some(Signal::KILL));
            serve(device, 0, bytes, answer);
            // SAFETY: ends the child, without what this process has registered for its end.
            unsafe { libc::_exit(0) };
        }
        Some(Self { path, server: Some(Pid::from_raw(pid).filter(|_| pid > 0).unwrap()) })
    }

    pub fn path(&self) -> &Path {
        Path::new(std::ffi::OsStr::from_bytes(self.path.as_bytes()))
    }
}

/// Mounts an empty file, which the other end of the device serves.
fn mount(path: &Path) -> Option<(CString, File)> {
    File::create(path).unwrap();
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let device = File::options().read(true).write(true).open("/dev/fuse").ok()?;
    let descriptor = device.as_raw_fd();
    let options = format!("fd={descriptor},rootmode={REGULAR_FILE:o},user_id=0,group_id=0");
    let options = CString::new(options).unwrap();
    let flags = libc::MS_NOSUID | libc::MS_NODEV;
    // SAFETY: every pointer is to a string that lives until the call returns.
    let mounted = unsafe {
        let kind = c"fuse".as_ptr();
        libc::mount(kind, path.as_ptr(), kind, flags, options.as_ptr().cast())
    };
    (mounted == 0).then_some((path, device))
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // SAFETY: unmounts what this value has mounted; the path lives until the calls return.
        unsafe {
            libc::umount2(self.path.as_ptr(), libc::MNT_FORCE);
            libc::umount2(self.path.as_ptr(), libc::MNT_DETACH);
        }
        if self.server.is_some() {
            let _ = waitpid(self.server, WaitOptions::empty());
        }
    }
}

/// Until the file is unmounted.
fn serve(mut device: File, open: u32, bytes: u64, mut answer: impl FnMut(Call) -> Reply) {
    let mut request = vec![0; 1 << 16];
    while let Ok(count) = device.read(&mut request) {
        let reply = match number(&request, 4) {
            _ if count < 40 => return,
            FORGET | INTERRUPT => Reply::Never,
            INIT => Reply::Bytes(words(&[7, 31, 0, 0, 0, 4096, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
            GETATTR => Reply::Bytes(attributes(bytes)),
            OPEN => Reply::Bytes(words(&[1, 0, open, 0])),
            READ => answer(read(&request)),
            FLUSH => answer(Call::Flush),
            _ => Reply::Error(libc::ENOSYS),
        };
        if !send(&mut device, &request[8..16], reply) {
            return;
        }
    }
}

/// `struct fuse_read_in`, behind the head of a request.
fn read(request: &[u8]) -> Call {
    let offset = u64::from(number(request, 48)) | u64::from(number(request, 52)) << 32;
    Call::Read { offset, len: number(request, 56) as usize }
}

/// Sends a reply. Returns false if the file is no longer mounted.
fn send(device: &mut File, unique: &[u8], reply: Reply) -> bool {
    let (error, bytes) = match reply {
        Reply::Never => return true,
        Reply::Error(number) => (number.wrapping_neg().cast_unsigned(), vec![]),
        Reply::Bytes(bytes) => (0, bytes),
    };
    let head = words(&[16 + bytes.len() as u32, error]);
    match device.write_all(&[&head[..], unique, &bytes].concat()) {
        Ok(()) => true,
        // The caller was killed meanwhile.
        Err(error) => error.raw_os_error() == Some(libc::ENOENT),
    }
}

/// `struct fuse_attr_out` of a regular file, which is valid for ever.
fn attributes(bytes: u64) -> Vec<u8> {
    let mut words32 = [0; 26];
    (words32[0], words32[4]) = (u32::MAX, 1);
    (words32[6], words32[7]) = (bytes as u32, (bytes >> 32) as u32);
    (words32[19], words32[20]) = (REGULAR_FILE, 1);
    words(&words32)
}

fn number(request: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(request[at..at + 4].try_into().unwrap())
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
