//! A file whose server does not answer when it is closed.
//!
//! A process that starts another program while it has the file open stays within the kernel, which closes it then. Its
//! memory is out of reach for as long, also for root.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// Requests that are answered, by the numbers of `linux/fuse.h`.
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const FLUSH: u32 = 25;
const INIT: u32 = 26;

const REGULAR_FILE: u32 = 0o100_644;

pub(crate) struct Silent {
    path: CString,
    /// Told when the file is closed.
    closed: Receiver<()>,
    stuck: Option<i32>,
}

impl Silent {
    /// `None` if it may not be mounted here.
    pub(crate) fn at(path: &Path) -> Option<Self> {
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
        let (tell, closed) = channel();
        thread::spawn(move || serve(device, &tell));
        (mounted == 0).then_some(Self { path, closed, stuck: None })
    }

    /// The number of a process that stays within `exec` until this value is dropped.
    pub(crate) fn stuck(&mut self) -> i32 {
        let program = c"/bin/sleep";
        let arguments = [program.as_ptr(), c"60".as_ptr(), std::ptr::null()];
        // SAFETY: the child makes system calls alone, with strings that the parent made. It closes what it has inherited,
        // because it would keep pipes of other tests open.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: system calls alone, with strings that the parent made and that end with a zero byte.
            unsafe {
                libc::close_range(3, u32::MAX, 0);
                libc::open(self.path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC);
                libc::execv(program.as_ptr(), arguments.as_ptr());
                libc::_exit(1);
            }
        }
        assert!(child > 0);
        self.stuck = Some(child);
        self.closed.recv().expect("the file is served");
        child
    }
}

/// The server ends, and with it all that waits for it.
impl Drop for Silent {
    fn drop(&mut self) {
        let path: &CStr = &self.path;
        // SAFETY: unmounts what this value has mounted, and ends a child of this process that was not waited for.
        unsafe {
            libc::umount2(path.as_ptr(), libc::MNT_FORCE);
            libc::umount2(path.as_ptr(), libc::MNT_DETACH);
            if let Some(child) = self.stuck {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, std::ptr::null_mut(), 0);
            }
        }
    }
}

/// Until the file is unmounted.
fn serve(mut device: File, closed: &Sender<()>) {
    let mut request = vec![0; 1 << 16];
    while let Ok(count) = device.read(&mut request) {
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let answer = match (count, word(4)) {
            (_, INIT) => words(&[7, 31, 0, 0, 0, 4096, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
            (_, GETATTR) => attributes(),
            (_, OPEN) => words(&[1, 0, 0, 0]),
            (_, FLUSH) => {
                let _ = closed.send(());
                continue;
            }
            _ => continue,
        };
        let head = words(&[16 + answer.len() as u32, 0]);
        let whole = [&head[..], &request[8..16], &answer].concat();
        if device.write_all(&whole).is_err() {
            return;
        }
    }
}

/// `struct fuse_attr_out` of a regular file, which is valid for ever.
fn attributes() -> Vec<u8> {
    let mut words32 = [0; 26];
    (words32[0], words32[4]) = (u32::MAX, 1);
    (words32[19], words32[20]) = (REGULAR_FILE, 1);
    words(&words32)
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
