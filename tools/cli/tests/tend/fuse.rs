//! A file whose server does not answer when it is closed.
//!
//! A process that starts another program while it has the file open stays within the kernel, which closes it then. Its
//! memory is out of reach for as long, also for root.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};

use hugekit_testing::fuse::{Call, Mounted, Reply};

pub(crate) struct Silent {
    file: Option<Mounted>,
    path: CString,
    /// Told when the file is closed.
    closed: Receiver<()>,
    stuck: Option<i32>,
}

impl Silent {
    /// `None` if it may not be mounted here.
    pub(crate) fn at(path: &Path) -> Option<Self> {
        let (tell, closed) = channel();
        let answer = move |call| {
            if matches!(call, Call::Flush) {
                let _ = tell.send(());
            }
            Reply::Never
        };
        let file = Some(Mounted::at(path, 0, answer)?);
        let path = CString::new(path.as_os_str().as_bytes()).unwrap();
        Some(Self { file, path, closed, stuck: None })
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
        drop(self.file.take());
        if let Some(child) = self.stuck {
            // SAFETY: ends a child of this process that was not waited for.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, std::ptr::null_mut(), 0);
            }
        }
    }
}
