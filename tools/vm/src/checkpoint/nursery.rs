//! The nursery: children are restored, and threads of this process handle their faults until they
//! have all of their memory.
//!
//! One thread for each child sends the request that restores the child, and another thread handles
//! its faults. All threads report to the thread that has started them. If one child fails, all end.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::Scope;
use std::time::Duration;

use hugekit_sys::poll::readable;
use hugekit_sys::thread::spawn_scoped;

use crate::checkpoint::children::{Child, Children};
use crate::checkpoint::fork_error::ForkError;
use crate::checkpoint::growing::{ChildNews, Grown, await_all};
use crate::checkpoint::room::Room;
use crate::pager::handler::Handler;
use crate::vmm::LoadMemory;
use crate::vmm::process::Process;

/// The longest wait for a connection until the next check if one can still come.
const LOOK: Duration = Duration::from_millis(20);

/// The children of a fork, or clones, from the start of their VMMs until they are complete.
#[derive(Debug)]
pub(crate) struct Nursery<'a> {
    handler: Handler,
    room: &'a Room,
    has_failed: AtomicBool,
}

/// The parent's part in the restore of its children.
pub(crate) trait Parent: Sync {
    /// Restores a child; `None` if another child has failed before.
    fn restore(&self, child: &Child<'_>, memory: LoadMemory<'_>) -> Option<ChildNews>;

    /// Makes all calls of [`restore`](Self::restore) end soon, and everything that the handler
    /// waits for.
    fn give_up(&self);
}

impl<'a> Nursery<'a> {
    pub(crate) fn new(handler: Handler, room: &'a Room) -> Self {
        Self { handler, room, has_failed: AtomicBool::new(false) }
    }

    /// Restores the children while `meanwhile` runs. Returns when the children are complete.
    pub(crate) fn raise<T>(
        &self,
        children: &Children<'_>,
        parent: &dyn Parent,
        meanwhile: impl FnOnce() -> Result<T, ForkError>,
    ) -> Result<(T, Vec<Grown>), ForkError> {
        let (sender, news) = channel();
        std::thread::scope(|scope| {
            // Other threads wait for this one, also if it panics.
            let alarm = Alarm { nursery: self, children, parent };
            self.start(scope, children, parent, sender)?;
            let done = meanwhile()?;
            let grown = await_all(children, &news)?;
            std::mem::forget(alarm);
            Ok((done, grown))
        })
    }

    fn start<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        children: &'scope Children<'_>,
        parent: &'scope dyn Parent,
        sender: Sender<ChildNews>,
    ) -> Result<(), ForkError> {
        for child in children.all() {
            let sender = sender.clone();
            let restore = move || {
                if let Some(news) = parent.restore(child, LoadMemory::Supplied(self.room.socket()))
                {
                    let _ = sender.send(news);
                }
            };
            spawn_scoped(scope, "hugekit-restore", restore)?;
        }
        let count = children.all().len();
        let accept = move || {
            if let Err(error) = self.accept_all(scope, count, &sender) {
                let _ = sender.send(ChildNews::Failed(error));
            }
        };
        spawn_scoped(scope, "hugekit-accept", accept)?;
        Ok(())
    }

    fn accept_all<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        mut left: usize,
        sender: &Sender<ChildNews>,
    ) -> Result<(), ForkError> {
        while left > 0 && !self.has_failed.load(Ordering::Relaxed) {
            let _ = readable([self.room.listener().as_fd()], Some(LOOK));
            let Ok((connection, _)) = self.room.listener().accept() else { continue };
            connection.set_nonblocking(false)?;
            if let Ok(peer) = Process::peer(&connection) {
                let _ = sender.send(ChildNews::Connected(peer.pid()));
            }
            let sender = sender.clone();
            spawn_scoped(scope, "hugekit-vm", move || self.serve(&connection, &sender))?;
            left -= 1;
        }
        Ok(())
    }

    fn serve(&self, connection: &UnixStream, sender: &Sender<ChildNews>) {
        self.handler.serve(connection, &|event| drop(sender.send(ChildNews::Served(event))));
    }
}

/// A drop of this value ends everything that the threads of a nursery wait for.
struct Alarm<'a> {
    nursery: &'a Nursery<'a>,
    children: &'a Children<'a>,
    parent: &'a dyn Parent,
}

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.nursery.has_failed.store(true, Ordering::Relaxed);
        self.parent.give_up();
        self.children.kill();
        self.nursery.handler.stop();
    }
}
