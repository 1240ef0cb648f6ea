//! The pager: VMs that connect, VMs that an earlier pager has left, and a thread for each VM.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::Scope;
use std::time::{Duration, Instant};

use hugekit_daemon::{ListenError, Listener, SocketLock, raise_descriptor_limit};
use hugekit_sys::poll::readable;
use hugekit_sys::private_folder::PrivateFolder;
use hugekit_sys::thread;
use rustix::io::Errno;
use rustix::net::{SocketFlags, SocketType};

use crate::pager::error::{PagerError, Refusal};
use crate::pager::event::Event;
use crate::pager::options::{LONGEST_AROUND, PagerOptions};
use crate::pager::orphans::{self, Orphan};
use crate::pager::pager_record::{self, PagerRecord};
use crate::pager::source::{MemoryIdentity, Source};
use crate::pager::state::{self, Record, State};
use crate::pager::vm::{self, Bell, ServedVm};
use crate::pager::waiting::{Admitted, Ending, Waiting};
use crate::pager::working_set::WorkingSets;
use crate::vmm::process::Process;
use crate::vmm::{Layout, base_page};

/// The highest number of VMs and of connections without a message yet.
const MOST: usize = 1024;

/// Descriptors of one VM: connection, process, its memory in `/proc`, userfaultfd, state, bell, and
/// a temporary descriptor.
const DESCRIPTORS_OF_VM: u64 = 7;

/// Descriptors of the pager itself, and of a VM that is refused.
const DESCRIPTORS: u64 = 32;

/// The longest wait for the message of a VMM that is refused because there are too many VMs. Other
/// VMMs wait for this.
const LONGEST_REFUSAL: Duration = Duration::from_secs(1);

/// The longest wait for a VM that another process has claimed.
const LONGEST_CLAIM: Duration = Duration::from_secs(60);

/// A pager: a handler of page faults for all VMs that are restored from one memory file.
#[derive(Debug)]
pub struct Pager {
    pub(crate) options: PagerOptions,
    pub(crate) source: Arc<Source>,
    pub(crate) folder: Arc<PrivateFolder>,
    sets: WorkingSets,
    listener: Listener,
    /// The record of this pager for the next pager.
    pub(crate) record: Mutex<PagerRecord>,
    /// Earlier pagers at this socket, and the VMs that they had not recorded.
    pub(crate) earlier: Vec<Arc<PagerRecord>>,
    pub(crate) orphans: Mutex<Vec<Orphan>>,
    /// Rung once, when the pager must end.
    pub(crate) stop: Bell,
    served: AtomicUsize,
    /// The number of VMs and connections for which there are descriptors.
    most: usize,
}

/// A callback that receives the pager's events. Any thread may call it.
pub(crate) type Tell<'a> = &'a (dyn Fn(Event) + Sync);

impl Pager {
    /// Listens at a socket. [`run`](Self::run) then serves VMs. The call raises the process's limit
    /// of open files as far as permitted.
    ///
    /// # Errors
    /// [`PagerError`] if the options are invalid, if another pager listens at the socket, or if the
    /// system refuses a call.
    pub fn start(socket: &Path, options: PagerOptions, source: Source) -> Result<Self, PagerError> {
        let around = options.around;
        if !around.is_power_of_two() || !(base_page()..=LONGEST_AROUND).contains(&around) {
            return Err(PagerError::Around(around));
        }
        // The lock comes first: who has it is the only one that reads the records.
        let lock = lock(socket)?;
        let path = options.state_folder(socket);
        let refused = |source| PagerError::State { folder: path.clone(), source };
        let folder = Arc::new(PrivateFolder::open(&path).map_err(refused)?);
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
        let named = options.working_set.as_deref();
        let sets = match source.working_set().filter(|_| named.is_none()) {
            Some(set) => WorkingSets::known(set),
            None => WorkingSets::new(named, source.path(), &folder),
        };
        let descriptors = raise_descriptor_limit().saturating_sub(DESCRIPTORS);
        let most =
            usize::try_from(descriptors / DESCRIPTORS_OF_VM).map_or(MOST, |most| most.min(MOST));
        Ok(Self {
            options,
            sets,
            most,
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

    /// Writes a record of this pager, before a VMM can connect.
    fn record(
        folder: &PrivateFolder,
        lock: &SocketLock,
        source: &Source,
        earlier: &[Arc<PagerRecord>],
    ) -> io::Result<PagerRecord> {
        let mut record = PagerRecord::of_this_process(lock.socket(), source.identity())?;
        for pager in earlier.iter().filter(|pager| pager.source.has_same_bytes(source.identity())) {
            for layout in pager.layouts() {
                record.learn(layout);
            }
        }
        record.write(folder)?;
        Ok(record)
    }

    /// Serves VMs until `stop` is readable. VMs that are still served then wait for the next pager.
    ///
    /// # Errors
    /// [`PagerError`] if the system refuses to continue listening.
    pub fn run(&self, stop: BorrowedFd<'_>, tell: Tell<'_>) -> Result<(), PagerError> {
        std::thread::scope(|scope| {
            self.take_over(scope, tell);
            self.start_adopting(scope, tell);
            let done = self.accept_until(stop, scope, tell);
            self.stop.ring();
            done
        })
    }

    /// Returns the number of VMs that are served at this moment.
    #[must_use]
    pub fn served(&self) -> usize {
        self.served.load(Ordering::Relaxed)
    }

    fn take_over<'scope>(&'scope self, scope: &'scope Scope<'scope, '_>, tell: Tell<'scope>) {
        for left in state::find(&self.folder).unwrap_or_default() {
            let pid = left.1.pid;
            let serve =
                move |(name, record): (OsString, Record)| match self.open_left(&name, &record) {
                    Ok(Some(vm)) => {
                        tell(Event::TakenOver { pid });
                        self.serve(vm, tell);
                    }
                    Ok(None) => {}
                    Err(refused) => tell(refused),
                };
            if let Err(((name, record), why)) = self.spawn(scope, left, serve) {
                tell(self.refuse_left(&name, &record, why));
            }
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
            let Some(connection) = self.accept()? else { continue };
            let meet = move |connection| self.meet(&connection, tell);
            if let Err((connection, why)) = self.spawn(scope, connection, meet) {
                let (waiting, _) = Waiting::receive(&connection, LONGEST_REFUSAL);
                tell(waiting.refuse(why));
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

    /// Starts the thread of a VM, if there is room for one more VM.
    ///
    /// # Errors
    /// There is no room. `of` is returned, so that the caller can end the VM's wait.
    pub(crate) fn spawn<'scope, T: Send + 'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        of: T,
        life: impl FnOnce(T) + Send + 'scope,
    ) -> Result<(), (T, Refusal)> {
        if self.served.fetch_add(1, Ordering::Relaxed) >= self.most {
            self.served.fetch_sub(1, Ordering::Relaxed);
            return Err((of, Refusal::TooMany(self.most)));
        }
        let given = Arc::new(Mutex::new(Some(of)));
        let take =
            |given: &Mutex<Option<T>>| given.lock().unwrap_or_else(PoisonError::into_inner).take();
        let taken = Arc::clone(&given);
        let counted = move || {
            if let Some(of) = take(&taken) {
                life(of);
            }
            self.served.fetch_sub(1, Ordering::Relaxed);
        };
        let Err(error) = thread::spawn_scoped(scope, "hugekit-vm", counted) else { return Ok(()) };
        self.served.fetch_sub(1, Ordering::Relaxed);
        take(&given).map_or(Ok(()), |of| Err((of, Refusal::Thread(error))))
    }

    /// Handles a new connection of a VMM.
    fn meet(&self, connection: &UnixStream, tell: Tell<'_>) {
        match Waiting::meet(connection, self.options.around, |waiting| self.admit(waiting)) {
            Ok(vm) => {
                tell(Event::Connected { pid: vm.pid(), bytes: vm.bytes() });
                self.serve(vm, tell);
            }
            Err(refused) => tell(refused),
        }
    }

    fn admit(&self, waiting: &mut Waiting) -> Result<Admitted, Refusal> {
        self.check_user(waiting.process()?)?;
        let layout = waiting.layout_within(self.source.len())?;
        self.source.check_current()?;
        ServedVm::register(waiting.userfaultfd()?, &layout)?;
        self.learn(&layout).map_err(Refusal::State)?;
        let process = waiting.process()?;
        claim(process)?;
        let state = State::create(&self.folder, process, &layout, self.source.identity());
        Admitted::new(layout, Arc::clone(&self.source), state.map_err(Refusal::State)?)
    }

    /// Stores the layout of a VM as an example, for VMs whose message is lost.
    fn learn(&self, layout: &Layout) -> io::Result<()> {
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        if record.learn(layout) { record.write(&self.folder) } else { Ok(()) }
    }

    /// Opens a VM that an earlier pager has left; `None` if the VM needs no pager.
    fn open_left(&self, name: &OsStr, record: &Record) -> Result<Option<ServedVm>, Event> {
        let mut process = match Process::find(record.pid, record.started) {
            Ok(process) => process,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                state::forget(&self.folder, name);
                return Ok(None);
            }
            Err(error) => {
                let (pid, why) = (Some(record.pid), Refusal::Process(error));
                let ending = Ending::Waits(io::ErrorKind::PermissionDenied.into());
                return Err(Event::Refused { pid, why, ending });
            }
        };
        let state = match State::take_over(&self.folder, name, &record.layout) {
            Ok(state) => state,
            // Another pager serves it.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(self.refuse_left(name, record, Refusal::State(error))),
        };
        let readmit = |process: &mut Process| -> Result<_, Refusal> {
            self.check_user(process)?;
            claim(process)?;
            if state.is_leaving() {
                // Nothing is read any more.
                Ok((Arc::clone(&self.source), ServedVm::find_left(process, &record.layout)?))
            } else {
                let source = self.source_of(&record.source)?;
                Ok((source, ServedVm::find_userfaultfd(process, &record.layout)?))
            }
        };
        let layout = record.layout.clone();
        let admitted = readmit(&mut process)
            .and_then(|(source, faults)| Ok((Admitted::new(layout, source, state)?, faults)));
        match admitted {
            Ok((admitted, faults)) => {
                let vm = ServedVm::new(process, faults, admitted, self.options.around);
                vm.replay();
                vm.wake_all();
                Ok(Some(vm))
            }
            Err(why) => Err(self.refuse_left(name, record, why)),
        }
    }

    /// Ends the wait of a VM that an earlier pager has left. Its record is not needed any more.
    fn refuse_left(&self, name: &OsStr, record: &Record, why: Refusal) -> Event {
        state::forget(&self.folder, name);
        match Process::find(record.pid, record.started) {
            Ok(process) => Waiting::left(process, Some(record.layout.clone())).refuse(why),
            Err(_) => Event::Refused { pid: Some(record.pid), why, ending: Ending::NoWait },
        }
    }

    /// Returns the memory from which a VM of an earlier pager was restored.
    pub(crate) fn source_of(&self, identity: &MemoryIdentity) -> Result<Arc<Source>, Refusal> {
        if identity.has_same_bytes(self.source.identity()) {
            return Ok(Arc::clone(&self.source));
        }
        Ok(Arc::new(Source::reopen(identity)?))
    }

    fn check_user(&self, process: &Process) -> Result<(), Refusal> {
        let uid = process.uid();
        if is_served(&self.options.users, uid) { Ok(()) } else { Err(Refusal::User { uid }) }
    }

    pub(crate) fn serve(&self, vm: ServedVm, tell: Tell<'_>) {
        vm::serve(vm, &self.stop, &self.options, &self.sets, tell);
    }
}

fn no_socket(socket: &Path, source: io::Error) -> PagerError {
    PagerError::Socket { socket: socket.to_owned(), source }
}

fn lock(socket: &Path) -> Result<SocketLock, PagerError> {
    SocketLock::new(socket).map_err(|error| match error {
        ListenError::Io(source) => no_socket(socket, source),
        ListenError::OtherUser { lock, user } => PagerError::OtherUser { lock, user },
        _ => PagerError::Running { socket: socket.to_owned() },
    })
}

/// Returns the next connection; `None` if there is none.
fn accept(listener: &Listener) -> io::Result<Option<UnixStream>> {
    match rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
        Ok(connection) => Ok(Some(connection.into())),
        Err(Errno::WOULDBLOCK | Errno::INTR | Errno::CONNABORTED) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Returns true if VMs of a user are served, because it is this user or one of `users`.
fn is_served(users: &[u32], uid: u32) -> bool {
    uid == rustix::process::geteuid().as_raw() || uid == 0 || users.contains(&uid)
}

/// Claims a VM. A checkpoint also claims a VM, until it has seen that a pager serves the VM, or
/// until all memory is copied. A pager without the right to claim a VM serves the VM nevertheless.
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
