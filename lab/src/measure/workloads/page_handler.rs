//! The handlers of page faults to compare with: one copies the page of each fault, the other all
//! memory at the first fault. They do what the two examples that Firecracker ships do, and nothing
//! else: the memory file is mapped, and the kernel copies from there.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread::{self, JoinHandle};

use hugekit_sys::{seqpacket, userfaultfd};
use memmap2::Mmap;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::Deserialize;

use crate::measure::LabError;

const EVENT_PAGEFAULT: u8 = 0x12;

/// Bytes of a `struct uffd_msg`, and where the address of a fault is in it.
const MESSAGE: usize = 32;
const ADDRESS: usize = 16;

/// Longer handshakes are not Firecracker's.
const HANDSHAKE: usize = 64 << 10;

/// The memory that a fault brings in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Strategy {
    /// Its page.
    OnDemand,
    /// All memory, the first time.
    FullCopy,
}

/// A handler for one VM. It ends with this value.
#[derive(Debug)]
pub struct PageHandler {
    socket: PathBuf,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl PageHandler {
    pub fn start(socket: &Path, memory: &Path, strategy: Strategy) -> Result<Self, LabError> {
        let _ = std::fs::remove_file(socket);
        let (stop, stopped) = UnixStream::pair().map_err(failed)?;
        let file = File::open(memory).map_err(failed)?;
        // SAFETY: the file is the lab's own, and is neither written nor cut off while it is mapped.
        let memory = unsafe { Mmap::map(&file) }.map_err(failed)?;
        let listener = UnixListener::bind(socket).map_err(failed)?;
        let server = PageServer { listener, stopped, memory, strategy };
        let thread = thread::Builder::new().name("handler".to_owned()).spawn(move || server.run());
        let thread = Some(thread.map_err(LabError::Thread)?);
        Ok(Self { socket: socket.to_owned(), stop: Some(stop), thread })
    }

    /// The socket to which the VMM connects.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Ends it, and returns the error that it met.
    pub fn end(mut self) -> Result<(), LabError> {
        self.join().map_err(failed)
    }

    fn join(&mut self) -> io::Result<()> {
        // The other end is readable from now on.
        self.stop = None;
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err(io::Error::other("it panicked")))
    }
}

impl Drop for PageHandler {
    fn drop(&mut self) {
        let _ = self.join();
    }
}

/// A part of the VM's memory, as Firecracker describes it.
#[derive(Clone, Debug, Deserialize)]
struct Region {
    base_host_virt_addr: u64,
    size: u64,
    offset: u64,
}

/// The thread that serves the faults of one guest.
struct PageServer {
    listener: UnixListener,
    stopped: UnixStream,
    memory: Mmap,
    strategy: Strategy,
}

impl PageServer {
    fn run(&self) -> io::Result<()> {
        if !self.wait(&self.listener)? {
            return Ok(());
        }
        let (connection, _) = self.listener.accept()?;
        let Some((regions, faults)) = self.receive(&connection)? else { return Ok(()) };
        while self.wait(&faults)? {
            let mut message = [0; MESSAGE];
            match rustix::io::read(&faults, &mut message) {
                Ok(MESSAGE) if message[0] == EVENT_PAGEFAULT => {}
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => continue,
                Err(errno) => return Err(errno.into()),
            }
            let address = message[ADDRESS..ADDRESS + 8].try_into().expect("eight bytes");
            if !self.serve(&regions, &faults, u64::from_ne_bytes(address))? {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Waits until there is something to read; false if the handler is to end.
    fn wait(&self, of: impl AsFd) -> io::Result<bool> {
        let mut waited =
            [PollFd::new(&of, PollFlags::IN), PollFd::new(&self.stopped, PollFlags::IN)];
        rustix::io::retry_on_intr(|| poll(&mut waited, None))?;
        Ok(waited[1].revents().is_empty())
    }

    /// The handshake: the regions, and the descriptor a moment later.
    fn receive(&self, connection: &UnixStream) -> io::Result<Option<(Vec<Region>, OwnedFd)>> {
        let (mut text, mut descriptors) = (Vec::new(), Vec::new());
        let mut room = vec![0; HANDSHAKE];
        loop {
            if !self.wait(connection)? {
                return Ok(None);
            }
            let received = seqpacket::receive(connection, &mut room)?;
            if received.len == 0 && received.descriptors.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            text.extend(&room[..received.len]);
            descriptors.extend(received.descriptors);
            let Ok(regions) = serde_json::from_slice(&text) else { continue };
            if let Some(faults) = descriptors.pop() {
                return Ok(Some((regions, faults)));
            }
        }
    }

    /// Answers a fault; false if no other one is to be answered.
    fn serve(&self, regions: &[Region], faults: &OwnedFd, address: u64) -> io::Result<bool> {
        let page = rustix::param::page_size() as u64;
        if self.strategy == Strategy::FullCopy {
            for region in regions {
                self.copy(faults, region, 0, region.size)?;
            }
            return Ok(false);
        }
        let start = address / page * page;
        let holds = |region: &&Region| {
            (region.base_host_virt_addr..region.base_host_virt_addr + region.size).contains(&start)
        };
        let region = regions.iter().find(holds);
        let region = region.ok_or_else(|| io::Error::other("a fault outside of all regions"))?;
        self.copy(faults, region, start - region.base_host_virt_addr, page)?;
        Ok(true)
    }

    /// Copies bytes of a region, and wakes who waits for them. Pages that are there stay.
    fn copy(&self, faults: &OwnedFd, region: &Region, at: u64, len: u64) -> io::Result<()> {
        let page = rustix::param::page_size();
        let from = (region.offset + at) as usize;
        let bytes = self.memory.get(from..from + len as usize);
        let bytes = bytes.ok_or(io::ErrorKind::UnexpectedEof)?;
        let (mut done, to) = (0, (region.base_host_virt_addr + at) as usize);
        while done < bytes.len() {
            match userfaultfd::copy(faults.as_fd(), to + done, &bytes[done..]) {
                Ok(()) => return Ok(()),
                Err((count, Errno::AGAIN)) => done += count,
                Err((count, Errno::EXIST)) => {
                    done += count;
                    userfaultfd::wake(faults.as_fd(), &(to + done..to + done + page))?;
                    done += page;
                }
                // The VMM has ended.
                Err((_, Errno::SRCH)) => return Ok(()),
                Err((_, errno)) => return Err(errno.into()),
            }
        }
        Ok(())
    }
}

fn failed(source: io::Error) -> LabError {
    LabError::Program { name: "the handler of page faults", source }
}
