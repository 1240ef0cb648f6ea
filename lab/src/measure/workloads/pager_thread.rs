//! hugekit's pager in this process, with which it ends.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use hugekit_vm::pager::{Event, Pager, PagerError, PagerOptions, Source};

use crate::measure::{LabError, Observer};

/// The longest wait for the pager. It reads ahead at the lowest priority, so that other
/// programs may keep it from the CPUs for long.
const PATIENCE: Duration = Duration::from_secs(300);

/// The time between two questions to the observer during a wait.
const LOOK: Duration = Duration::from_millis(100);

/// A pager that runs. It ends with this value.
#[derive(Debug)]
pub struct PagerThread {
    socket: PathBuf,
    events: Receiver<Event>,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<Result<(), PagerError>>>,
}

impl PagerThread {
    pub fn start(socket: PathBuf, options: PagerOptions, memory: &Path) -> Result<Self, LabError> {
        let source = Source::open(memory).map_err(|error| failed(&error))?;
        let pager = Pager::start(&socket, options, source)?;
        let (stop, stopped) = UnixStream::pair().map_err(LabError::Thread)?;
        let (told, events) = channel();
        let tell = move |event| {
            // No one waits for it any more.
            let _ = told.send(event);
        };
        let run = move || pager.run(stopped.as_fd(), &tell);
        let thread = thread::Builder::new().name("pager".to_owned()).spawn(run);
        let thread = Some(thread.map_err(LabError::Thread)?);
        Ok(Self { socket, events, stop: Some(stop), thread })
    }

    /// The socket to which VMMs connect.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Waits for an event of which `wanted` makes something.
    pub fn wait<T>(
        &self,
        observer: &dyn Observer,
        wanted: impl Fn(&Event) -> Option<T>,
    ) -> Result<T, LabError> {
        let until = Instant::now() + PATIENCE;
        loop {
            observer.check()?;
            match self.events.recv_timeout(LOOK) {
                Ok(event @ (Event::Refused { .. } | Event::Failed { .. })) => {
                    return Err(failed(&event));
                }
                Ok(event) => {
                    if let Some(found) = wanted(&event) {
                        return Ok(found);
                    }
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() < until => {}
                Err(error) => return Err(failed(&error)),
            }
        }
    }

    /// Waits until all memory of a VM is there.
    pub fn until_complete(&self, observer: &dyn Observer) -> Result<(), LabError> {
        self.wait(observer, |event| matches!(event, Event::Complete(_)).then_some(()))
    }
}

impl Drop for PagerThread {
    fn drop(&mut self) {
        // The other end is readable from now on.
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn failed(what: &impl ToString) -> LabError {
    LabError::Program { name: "the pager", source: io::Error::other(what.to_string()) }
}
