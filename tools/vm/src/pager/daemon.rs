//! The pager: VMs that connect, VMs that an earlier pager has left, and a thread for each.

use std::fs::DirBuilder;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Scope;
use std::time::{Duration, Instant};

use hugekit_daemon::{ListenError, Listener, SocketLock};
use hugekit_sys::poll::readable;
use hugekit_sys::thread;
use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType};

use crate::firecracker::handshake;
use crate::firecracker::layout::{Layout, base_page};
use crate::pager::error::{PagerError, Refusal};
use crate::pager::event::Event;
use crate::pager::options::{LONGEST_AROUND, PagerOptions};
use crate::pager::orphans::{self, Orphan};
use crate::pager::pager_record::{self, PagerRecord};
use crate::pager::source::{Identity, Source};
use crate::pager::state::{self, Record, State};
use crate::pager::vm::{self, Bell, Vm};
use crate::vmm::process::Process;
use crate::vmm::userfaultfd::Userfaultfd;

/// VMs, and connections that have yet to say what they are.
const MOST: usize = 1024;

/// The longest wait for a VM that another process claims.
const LONGEST_CLAIM: Duration = Duration::from_secs(60);

/// A handler of page faults, for all VMs that are restored from one memory file.
#[derive(Debug)]
pub struct Pager {
    pub(crate) options: PagerOptions,
    pub(crate) source: Arc<Source>,
    pub(crate) folder: PathBuf,
    listener: Listener,
    /// All that the next pager must know of this one.
    pub(crate) record: Mutex<PagerRecord>,
    /// Earlier pagers at this socket, and VMs that they had not recorded.
    pub(crate) earlier: Vec<Arc<PagerRecord>>,
    pub(crate) orphans: Mutex<Vec<Orphan>>,
    /// Rung once, at the end.
    pub(crate) stop: Bell,
    served: AtomicUsize,
}

/// Gives the pager's user events, from any thread.
pub(crate) type Tell<'a> = &'a (dyn Fn(Event) + Sync);

impl Pager {
    /// Listens. VMs are served by [`run`](Self::run).
    ///
    /// # Errors
    /// The options are wrong, another pager listens at the socket, or the system refuses.
    pub fn start(socket: &Path, options: PagerOptions, source: Source) -> Result<Self, PagerError> {
        let around = options.around;
        if !around.is_power_of_two() || !(base_page()..=LONGEST_AROUND).contains(&around) {
            return Err(PagerError::Around(around));
        }
        let folder = options.state_folder(socket);
        let refused = |source| PagerError::State { folder: folder.clone(), source };
        make_private(&folder).map_err(refused)?;
        let lock = lock(socket)?;
        let earlier = pager_record::find(&folder, lock.socket()).map_err(refused)?;
        let earlier: Vec<_> = earlier.into_iter().map(Arc::new).collect();
        orphans::await_end(&earlier);
        let is_served = |uid| is_served(&options.users, uid);
        let is_recorded = |process: &Process| state::is_recorded(&folder, process);
        let orphans = orphans::find(&earlier, is_served, is_recorded);
        let record = Self::record(&folder, &lock, &source, &earlier).map_err(refused)?;
        // With other users any user can connect, and is told apart then.
        let mode = if options.users.is_empty() { 0o600 } else { 0o666 };
        let listener = Listener::new(lock, SocketType::STREAM, mode);
        let listener = listener.map_err(|source| no_socket(socket, source))?;
        let stop = Bell::new().map_err(io::Error::from)?;
        Ok(Self {
            options,
            source: Arc::new(source),
            folder,
            listener,
            record: Mutex::new(record),
            earlier,
            orphans: Mutex::new(orphans),
            stop,
            served: AtomicUsize::new(0),
        })
    }

    /// Leaves a record of this pager, before any VMM can connect.
    fn record(
        folder: &Path,
        lock: &SocketLock,
        source: &Source,
        earlier: &[Arc<PagerRecord>],
    ) -> io::Result<PagerRecord> {
        let mut record = PagerRecord::of_this_process(lock.socket(), source.identity())?;
        for pager in earlier.iter().filter(|pager| pager.source == *source.identity()) {
            for layout in pager.layouts() {
                record.learn(layout);
            }
        }
        record.write(folder)?;
        Ok(record)
    }

    /// Serves until `stop` is readable. VMs that are still served then wait for the next pager.
    ///
    /// # Errors
    /// The system refuses to listen any more.
    pub fn run(&self, stop: BorrowedFd<'_>, tell: Tell<'_>) -> Result<(), PagerError> {
        std::thread::scope(|scope| {
            self.take_over(scope, tell);
            self.start_adopting(scope, tell);
            let done = self.accept_until(stop, scope, tell);
            self.stop.ring();
            done
        })
    }

    /// VMs that are served at this moment.
    #[must_use]
    pub fn served(&self) -> usize {
        self.served.load(Ordering::Relaxed)
    }

    fn take_over<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, tell: Tell<'scope>) {
        for (path, record) in state::find(&self.folder).unwrap_or_default() {
            let pid = record.pid;
            let serve = move || match self.open_left(&path, &record) {
                Ok(Some(vm)) => {
                    tell(Event::TakenOver { pid });
                    self.serve(vm, tell);
                }
                Ok(None) => {}
                Err(why) => tell(Event::Refused { pid: Some(pid), why }),
            };
            self.spawn(scope, Some(pid), serve, tell);
        }
    }

    fn accept_until<'scope>(
        &'scope self,
        stop: BorrowedFd<'_>,
        scope: &'scope Scope<'scope, '_>,
        tell: Tell<'scope>,
    ) -> Result<(), PagerError> {
        loop {
            let waited = readable([stop, self.listener.as_fd()], None);
            let [is_stopped, _] = waited.map_err(|errno| PagerError::System(errno.into()))?;
            if is_stopped {
                return Ok(());
            }
            if let Some(connection) = self.accept()? {
                let meet = move || self.meet(&connection, tell);
                self.spawn(scope, None, meet, tell);
            }
        }
    }

    fn accept(&self) -> Result<Option<UnixStream>, PagerError> {
        match accept(&self.listener) {
            // One of the descriptors that are open now will be closed.
            Err(error) if error.raw_os_error().is_some_and(is_shortage) => {
                std::thread::sleep(Duration::from_millis(10));
                Ok(None)
            }
            accepted => Ok(accepted?),
        }
    }

    pub(crate) fn spawn<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        pid: Option<i32>,
        life: impl FnOnce() + Send + 'scope,
        tell: Tell<'scope>,
    ) {
        let refuse = |why| tell(Event::Refused { pid, why });
        if self.served.fetch_add(1, Ordering::Relaxed) >= MOST {
            self.served.fetch_sub(1, Ordering::Relaxed);
            return refuse(Refusal::TooMany(MOST));
        }
        let counted = move || {
            life();
            self.served.fetch_sub(1, Ordering::Relaxed);
        };
        if let Err(error) = thread::spawn_scoped(scope, "hugekit-vm", counted) {
            self.served.fetch_sub(1, Ordering::Relaxed);
            refuse(Refusal::Process(error));
        }
    }

    /// A VMM has connected.
    fn meet(&self, connection: &UnixStream, tell: Tell<'_>) {
        let process = match Process::peer(connection) {
            Ok(process) => process,
            Err(error) => return tell(Event::Refused { pid: None, why: Refusal::Process(error) }),
        };
        let pid = process.pid();
        match self.admit(connection, process) {
            Ok(vm) => {
                tell(Event::Connected { pid, bytes: vm.bytes() });
                self.serve(vm, tell);
            }
            Err(why) => tell(Event::Refused { pid: Some(pid), why }),
        }
    }

    fn admit(&self, connection: &UnixStream, mut process: Process) -> Result<Vm, Refusal> {
        self.check_user(&process)?;
        let (message, descriptor) = handshake::receive(connection)?;
        let faults = Userfaultfd::new(descriptor)?;
        let layout = Layout::of_message(&message, self.source.len())?;
        Vm::register(&faults, &layout)?;
        self.learn(&layout).map_err(Refusal::State)?;
        claim(&mut process)?;
        let state = State::create(&self.folder, &process, &layout, self.source.identity())
            .map_err(Refusal::State)?;
        let source = Arc::clone(&self.source);
        Ok(Vm::new(process, faults, layout, source, state, self.options.around))
    }

    /// Remembers the kind of a VM's layout, for VMs whose message is lost.
    fn learn(&self, layout: &Layout) -> io::Result<()> {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        if record.learn(layout) { record.write(&self.folder) } else { Ok(()) }
    }

    /// A VM that an earlier pager has left; `None` if it needs none.
    fn open_left(&self, path: &Path, record: &Record) -> Result<Option<Vm>, Refusal> {
        let mut process = match Process::find(record.pid, record.started) {
            Ok(process) => process,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                state::forget(path);
                return Ok(None);
            }
            Err(error) => return Err(Refusal::Process(error)),
        };
        self.check_user(&process)?;
        let state = match State::take_over(path, &record.layout) {
            Ok(state) => state,
            // Another pager serves it.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(Refusal::State(error)),
        };
        claim(&mut process)?;
        let (source, faults) = if state.is_leaving() {
            // Nothing is read any more.
            (Arc::clone(&self.source), Vm::find_left(&process, &record.layout)?)
        } else {
            (self.source_of(&record.source)?, Vm::find_userfaultfd(&process, &record.layout)?)
        };
        let vm =
            Vm::new(process, faults, record.layout.clone(), source, state, self.options.around);
        vm.replay();
        vm.wake_all();
        Ok(Some(vm))
    }

    /// The memory that a VM of an earlier pager was restored from.
    pub(crate) fn source_of(&self, identity: &Identity) -> Result<Arc<Source>, Refusal> {
        if *identity == *self.source.identity() {
            return Ok(Arc::clone(&self.source));
        }
        Ok(Arc::new(Source::reopen(identity)?))
    }

    fn check_user(&self, process: &Process) -> Result<(), Refusal> {
        let uid = process.uid();
        if is_served(&self.options.users, uid) { Ok(()) } else { Err(Refusal::User { uid }) }
    }

    pub(crate) fn serve(&self, vm: Vm, tell: Tell<'_>) {
        let pid = Some(vm.pid());
        if let Err(why) = vm::serve(vm, &self.stop, &self.options, tell) {
            tell(Event::Refused { pid, why });
        }
    }
}

/// Returns whether VMs of a user are served, besides those of `users`.
fn no_socket(socket: &Path, source: io::Error) -> PagerError {
    PagerError::Socket { socket: socket.to_owned(), source }
}

fn lock(socket: &Path) -> Result<SocketLock, PagerError> {
    SocketLock::new(socket).map_err(|error| match error {
        ListenError::Io(source) => no_socket(socket, source),
        _ => PagerError::Running { socket: socket.to_owned() },
    })
}

/// The next connection; `None` if there is none.
fn accept(listener: &Listener) -> io::Result<Option<UnixStream>> {
    match rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
        Ok(connection) => Ok(Some(connection.into())),
        Err(Errno::WOULDBLOCK | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn is_served(users: &[u32], uid: u32) -> bool {
    uid == rustix::process::geteuid().as_raw() || uid == 0 || users.contains(&uid)
}

/// A checkpoint claims a VM, too, until it has seen that a pager serves the VM, or until all memory
/// is copied. A pager without the right to claim a VM serves it nevertheless.
pub(crate) fn claim(process: &mut Process) -> Result<(), Refusal> {
    let until = Instant::now() + LONGEST_CLAIM;
    loop {
        match process.claim() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            _ => return Ok(()),
        }
        if process.has_ended() || Instant::now() > until {
            return Err(Refusal::InUse);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn is_shortage(error: i32) -> bool {
    [libc::EMFILE, libc::ENFILE, libc::ENOMEM, libc::ENOBUFS].contains(&error)
}

/// A folder that only this user enters.
fn make_private(folder: &Path) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt;
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return made,
    }
    let found = std::fs::symlink_metadata(folder)?;
    let is_private = found.is_dir()
        && found.uid() == rustix::process::geteuid().as_raw()
        && found.mode() & 0o077 == 0;
    if is_private {
        Ok(())
    } else {
        Err(io::Error::other("it is not a folder of this user's alone"))
    }
}
