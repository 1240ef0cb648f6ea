//! A guest that was restored by a pager, which has left it.

use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use hugekit_guests::{Firecracker, Pages, Request, Snapshot};
use hugekit_vm::pager::{Event, Pager, PagerOptions, Source};

pub(crate) const LONGEST_WAIT: Duration = Duration::from_secs(120);

/// A guest with this many MiB, which has written before it was saved. Its API is `guest.api` in the
/// folder.
pub(crate) fn guest(folder: &Path, memory: u64, written: Request) -> Firecracker {
    let snapshot = Snapshot::in_folder(folder);
    let mut origin = Firecracker::start(folder, "origin").expect("Firecracker starts");
    origin.boot(memory, Pages::Base).expect("it boots");
    origin.serial.ask_within(written, LONGEST_WAIT).expect("it writes");
    origin.save(&snapshot).expect("it is saved");
    drop(origin);
    let socket = folder.join("pager");
    let options = PagerOptions { record: Duration::ZERO, ..PagerOptions::default() };
    let source = Source::open(&snapshot.memory).expect("the memory is there");
    let pager = Pager::start(&socket, options, source).expect("a pager starts");
    let (stop, stopper) = UnixStream::pair().expect("a pair");
    let (sender, events) = mpsc::channel();
    let thread = thread::spawn(move || pager.run(stop.as_fd(), &|event| drop(sender.send(event))));
    let vmm = Firecracker::start(folder, "guest").expect("Firecracker starts");
    vmm.load_by_handler(&snapshot, &socket, true).expect("it is restored");
    while !matches!(events.recv().expect("an event"), Event::Complete(_)) {}
    drop(stopper);
    thread.join().expect("no panic").expect("the pager ends");
    vmm
}
