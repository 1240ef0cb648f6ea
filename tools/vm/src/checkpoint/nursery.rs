//! Children are restored and served while their memory is copied.
//!
//! One thread for each child sends the request that restores it, and one thread serves its memory.
//! All report to the thread that copies. If one child fails, all end.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::Scope;
use std::time::{Duration, Instant};

use crate::pager::handler::Handler;
use crate::pager::{Completed, Event};
use crate::vmm::Arriving;
use crate::vmm::Load;
use hugekit_sys::poll::readable;
use hugekit_sys::thread::spawn_scoped;

use crate::checkpoint::children::{Child, Children};
use crate::checkpoint::error::CheckpointError;
use crate::checkpoint::fork_error::ForkError;
use crate::checkpoint::preserved::Preserved;
use crate::checkpoint::room::Room;
use crate::checkpoint::saving::Saved;
use crate::checkpoint::vm::Vm;

/// The longest wait for a connection until the next look whether one can still come.
const LOOK: Duration = Duration::from_millis(20);

/// The longest time from the answer of a child's VMM until it asks for memory.
const LONGEST_CONNECT: Duration = Duration::from_secs(60);

/// The longest wait for the answer of a VMM whose child is lost.
const LONGEST_ANSWER: Duration = Duration::from_secs(2);

/// The children of a fork, from the start of their VMMs until they are complete VMs.
#[derive(Debug)]
pub(crate) struct Nursery<'a> {
    pub(crate) preserved: Arc<Preserved>,
    handler: Handler,
    room: &'a Room,
    /// True if children run as soon as they are restored.
    resume: bool,
}

/// A child that needs this process no more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Grown {
    pub(crate) restored: Instant,
    pub(crate) completed: Completed,
}

/// A report of a thread.
enum News {
    /// The child with this number is restored.
    Restored(usize, Instant),
    /// A VMM asks for memory.
    Connected,
    Served(Event),
    Failed(ForkError),
}

impl<'a> Nursery<'a> {
    /// Allocates all that is needed before the pause.
    pub(crate) fn new(vm: &Vm, room: &'a Room, resume: bool) -> Result<Self, ForkError> {
        let preserved = Arc::new(Preserved::new(vm)?);
        let handler = Handler::new(Arc::clone(&preserved) as Arc<dyn Arriving>)?;
        Ok(Self { preserved, handler, room, resume })
    }

    /// Has the children restored while `save` copies. Returns when they are complete.
    pub(crate) fn raise(
        &self,
        children: &Children<'_>,
        save: impl FnOnce() -> Result<Saved, CheckpointError>,
    ) -> Result<(Saved, Vec<Grown>), ForkError> {
        let (sender, news) = channel();
        std::thread::scope(|scope| {
            // Other threads wait for this one, also if it panics.
            let alarm = Alarm(self, children);
            self.start(scope, children, sender)?;
            let saved = save()?;
            let grown = await_all(children, &news)?;
            std::mem::forget(alarm);
            Ok((saved, grown))
        })
    }

    fn start<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        children: &'scope Children<'_>,
        sender: Sender<News>,
    ) -> Result<(), ForkError> {
        let count = children.all().len();
        self.preserved.await_children(count);
        for child in children.all() {
            let sender = sender.clone();
            let restore = move || self.restore(child, &sender);
            spawn_scoped(scope, "hugekit-restore", restore)?;
        }
        let accept = move || {
            if let Err(error) = self.accept_all(scope, count, &sender) {
                let _ = sender.send(News::Failed(error));
            }
        };
        spawn_scoped(scope, "hugekit-accept", accept)?;
        Ok(())
    }

    fn restore(&self, child: &Child<'_>, sender: &Sender<News>) {
        let Some(state) = self.preserved.await_state() else { return };
        let memory = self.room.socket();
        let others = &child.options.load;
        let load = Load { state, memory, resume: self.resume, others };
        let news = match child.control.load(&load) {
            Ok(()) => News::Restored(child.number, Instant::now()),
            Err(source) => News::Failed(ForkError::Restore { number: child.number, source }),
        };
        self.preserved.restored();
        let _ = sender.send(news);
    }

    fn accept_all<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        mut left: usize,
        sender: &Sender<News>,
    ) -> Result<(), ForkError> {
        while left > 0 && !self.preserved.has_failed() {
            let _ = readable([self.room.listener().as_fd()], Some(LOOK));
            let Ok((connection, _)) = self.room.listener().accept() else { continue };
            connection.set_nonblocking(false)?;
            let _ = sender.send(News::Connected);
            let sender = sender.clone();
            spawn_scoped(scope, "hugekit-vm", move || self.serve(&connection, &sender))?;
            left -= 1;
        }
        Ok(())
    }

    fn serve(&self, connection: &UnixStream, sender: &Sender<News>) {
        self.handler.serve(connection, &|event| drop(sender.send(News::Served(event))));
    }
}

/// Waits until all children are complete, or one has failed.
fn await_all(children: &Children<'_>, news: &Receiver<News>) -> Result<Vec<Grown>, ForkError> {
    let count = children.all().len();
    let (mut restored, mut completed) = (vec![None; count], vec![None; count]);
    let mut connected = 0;
    loop {
        let pairs = restored.iter().zip(&completed);
        let grown = pairs.map(|(&restored, &completed)| {
            Some(Grown { restored: restored?, completed: completed? })
        });
        if let Some(grown) = grown.collect() {
            return Ok(grown);
        }
        // Threads end when they have reported.
        let next = match news.recv_timeout(LOOK) {
            Ok(next) => next,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(ForkError::Memory("no VM has connected".to_owned()));
            }
            Err(RecvTimeoutError::Timeout) => {
                check_connected(&restored, connected)?;
                continue;
            }
        };
        match next {
            News::Connected => connected += 1,
            News::Restored(number, at) => restored[number - 1] = Some(at),
            News::Served(Event::Complete(done)) => {
                let number = children.number_of(done.pid);
                let stranger = || ForkError::Memory(format!("process {} is no child", done.pid));
                completed[number.ok_or_else(stranger)? - 1] = Some(done);
            }
            // The VMM says why in its answer, which comes a moment later.
            News::Served(event) => {
                refuse_failure(&event).map_err(|lost| answer_of_vmm(news).unwrap_or(lost))?;
            }
            News::Failed(error) => return Err(error),
        }
    }
}

/// A VMM connects before it answers that the VM is restored.
fn check_connected(restored: &[Option<Instant>], connected: usize) -> Result<(), ForkError> {
    let late = restored.iter().position(|at| at.is_some_and(|at| at.elapsed() > LONGEST_CONNECT));
    match late {
        Some(index) if connected < restored.iter().flatten().count() => {
            let (number, seconds) = (index + 1, LONGEST_CONNECT.as_secs());
            Err(ForkError::NotConnected { number, seconds })
        }
        _ => Ok(()),
    }
}

/// Waits for the answer of a VMM that could not restore a child.
fn answer_of_vmm(news: &Receiver<News>) -> Option<ForkError> {
    let until = Instant::now() + LONGEST_ANSWER;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if let News::Failed(error @ ForkError::Restore { .. }) = news.recv_timeout(left).ok()? {
            return Some(error);
        }
    }
}

fn refuse_failure(event: &Event) -> Result<(), ForkError> {
    match event {
        Event::Refused { .. } | Event::Failed { .. } | Event::Ended { .. } => {
            Err(ForkError::Memory(event.to_string()))
        }
        _ => Ok(()),
    }
}

/// When this is dropped, ends all that the threads of a nursery wait for.
struct Alarm<'a>(&'a Nursery<'a>, &'a Children<'a>);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.0.preserved.fail();
        self.1.kill();
        self.0.handler.stop();
    }
}
