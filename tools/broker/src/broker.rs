//! The broker's one thread. It waits for the next event, and for nothing else.
//!
//! In each turn, the thread counts ended leases and processes, answers clients, reads the free
//! memory, and begins missing units. Then `poll(2)` waits for a client, the end of a process or of
//! a lease, a signal, or the next time limit. No work that lasts longer than an answer stands
//! between a client's request and a ready unit.

mod room;

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use hugekit::pool::Backing;
use hugekit_daemon::{EndingSignals, Listener, Notices, raise_descriptor_limit};
use hugekit_image::{FileIdentity, Image};
use hugekit_lease::protocol::{
    Answer, ImageFacts, ImageName, Load, MOST_IMAGES, MOST_ROWS, Malformed, Refusal, Request,
    Status, VERSION,
};
use hugekit_lease::{LeaseError, MemoryFile};
use hugekit_machine::Root;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Gid, Mode, Uid};
use rustix::io::Errno;

use crate::accounts::Accounts;
use crate::connection::{ClientMessage, Connection};
use crate::error::BrokerError;
use crate::fill::Fill;
use crate::filler::{FillCommand, Filler};
use crate::group::Charged;
use crate::images::{HeldImage, Images, Viewer};
use crate::ledger::{Claim, Ledger};
use crate::listen::listen_at;
use crate::load::LoadOrder;
use crate::loading::{Loaded, Loading};
use crate::memory_state::{self, MemoryState};
use crate::options::{BrokerOptions, Charge, Limits};
use crate::priority;
use crate::seats::{Seat, displaced};
use crate::unit::{ClientId, EndingProcesses, FillingUnit, Outcome, Ready, not_populated, refused};
use crate::watch::{self, Watched, Watches};

/// The highest number of clients that are accepted in one turn. Other clients are answered between
/// turns.
const ACCEPTED_AT_ONCE: usize = 32;

/// The interval of reads of the free memory, while it is short or ended leases have not returned.
const LOOK: Duration = Duration::from_millis(100);

/// The pause before the next accept, after a connection could not be accepted because no descriptor
/// was free.
const NO_DESCRIPTOR: Duration = Duration::from_millis(100);

/// The longest and the first pause after populating failed. The pause doubles each time.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// The time without a new unit after a unit was leased. The client starts its program now, and a
/// filler would use memory bandwidth that the program needs. QEMU needs 20 ms.
const SETTLING: Duration = Duration::from_millis(25);

/// The highest number of its own leases that a user sees.
const ROWS_OF_USER: usize = 64;

/// Descriptors that the broker needs besides those of units, images and clients.
const DESCRIPTORS: u64 = 64;

/// Descriptors of a load: the connection, the file, the process and its pipe.
const OF_LOAD: u64 = 4;

/// An accepted client.
#[derive(Debug)]
struct Client {
    connection: Connection,
    /// The account that the client counts for.
    account: u32,
    /// The request for which the client waits.
    request: Option<LeaseRequest>,
}

#[derive(Debug)]
struct LeaseRequest {
    claim: Claim,
    since: Instant,
    wait: Duration,
}

/// A listening broker.
#[derive(Debug)]
pub struct Broker {
    options: BrokerOptions,
    filler: FillCommand,
    root: Root,
    listener: Listener,
    watches: Watches,
    signals: EndingSignals,
    notices: Notices,
    accounts: Accounts,
    may_raise: bool,
    clients: BTreeMap<ClientId, Client>,
    next_client: ClientId,
    /// The turn at which each account last got a unit or an image. Among waiting accounts, the
    /// account with the oldest turn is next.
    served: BTreeMap<u32, u64>,
    ready: VecDeque<Ready>,
    filling: Vec<FillingUnit>,
    ending: Vec<EndingProcesses>,
    images: Images,
    loading: Vec<Loading>,
    ledger: Ledger,
    /// Free and used pages at the last turn.
    memory: MemoryState,
    given: u64,
    failures: u64,
    last_failure: Option<Refusal>,
    pause: Duration,
    fill_from: Instant,
    /// The time from which units may be begun ahead again, while no client waits.
    settled_from: Instant,
    accept_from: Instant,
    /// True if the log already reports that memory is too short for a unit, since the last unit was
    /// begun.
    has_warned: bool,
}

impl Broker {
    /// Listens at a socket. [`run`](Self::run) then populates units.
    ///
    /// # Errors
    /// [`BrokerError`] if another broker listens at the socket, if the socket cannot be made, or if
    /// the options are invalid.
    pub fn start(
        socket: &Path,
        mut options: BrokerOptions,
        filler: FillCommand,
    ) -> Result<Self, BrokerError> {
        check(&options)?;
        options.limits = fitting(&options);
        let listener = listen_at(socket)?;
        let quotas = options.quotas();
        let root = Root::default();
        let now = Instant::now();
        let signals = EndingSignals::new()
            .map_err(|source| BrokerError::Kernel { call: "sigaction", source })?;
        Ok(Self {
            memory: MemoryState::default().next(&root, options.backing, options.payer()),
            notices: Notices::new(),
            accounts: Accounts::new(quotas.users().collect()),
            ledger: Ledger::new(quotas),
            watches: Watches::new().map_err(BrokerError::of("inotify_init1"))?,
            signals,
            may_raise: priority::may_raise(),
            clients: BTreeMap::new(),
            next_client: 0,
            served: BTreeMap::new(),
            ready: VecDeque::new(),
            filling: Vec::new(),
            ending: Vec::new(),
            images: Images::default(),
            loading: Vec::new(),
            given: 0,
            failures: 0,
            last_failure: None,
            pause: FIRST_PAUSE,
            fill_from: now,
            settled_from: now,
            accept_from: now,
            has_warned: false,
            listener,
            root,
            options,
            filler,
        })
    }

    /// Serves until SIGTERM, SIGINT or SIGHUP. The broker then notifies waiting clients, and
    /// returns units without a client to the kernel. Leases continue.
    ///
    /// # Errors
    /// [`BrokerError::Kernel`] if a system call fails for lack of memory.
    pub fn run(mut self) -> Result<(), BrokerError> {
        self.notices.send("READY=1");
        loop {
            self.notices.retry();
            self.advance();
            self.serve();
            self.look();
            self.expire();
            self.fill();
            if self.wait()? {
                self.notices.send("STOPPING=1");
                let clients = std::mem::take(&mut self.clients);
                let loading = std::mem::take(&mut self.loading).into_iter();
                let connections = clients.into_values().map(|client| client.connection);
                for connection in connections.chain(loading.map(Loading::into_connection)) {
                    let _ = connection.answer(&Answer::Refused(Refusal::Ending), None);
                }
                return Ok(());
            }
        }
    }

    /// Returns the size of a unit; 0 if there are no units.
    fn unit_bytes(&self) -> u64 {
        self.options.unit_bytes()
    }

    fn backing(&self) -> Backing {
        self.options.backing
    }

    /// Records units that are populated, or that cannot be populated.
    fn advance(&mut self) {
        for filling in std::mem::take(&mut self.filling) {
            match filling.step() {
                Err(still) => self.filling.push(still),
                Ok((outcome, superfluous)) => {
                    self.ending.push(superfluous);
                    self.filled(outcome);
                }
            }
        }
        self.ending.retain_mut(|ending| !ending.reap());
        for mut loading in std::mem::take(&mut self.loading) {
            match loading.outcome() {
                None => self.loading.push(loading),
                Some(outcome) => self.loaded(loading.finish(outcome)),
            }
        }
    }

    /// Records leases that have ended, and the memory that they returned. This happens before a
    /// request is read, because a user may have ended a lease for this request.
    fn note_ended(&mut self) {
        let before = self.memory.elsewhere(self.known());
        for watched in self.watches.gone().unwrap_or_default() {
            match self.images.record_end(watched) {
                Some(claim) => self.ledger.withdraw(claim),
                None => self.ledger.record_end(watched, before),
            }
        }
        self.look();
    }

    fn look(&mut self) {
        self.memory = self.memory.next(&self.root, self.backing(), self.options.payer());
        for watched in self.watches.punched().unwrap_or_default() {
            self.ledger.punched(watched);
        }
        self.ledger.reconcile(self.memory.elsewhere(self.known()), Instant::now());
    }

    /// Returns the used memory that the broker has accounted for.
    fn known(&self) -> u64 {
        let ending = self.ending.iter().filter(|ending| ending.memory.is_some()).count();
        let units = self.ready.len() + self.filling.len() + ending;
        units as u64 * self.unit_bytes() + self.ledger.leased()
    }

    fn filled(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Ready(unit) => {
                self.ready.push_back(unit);
                self.pause = FIRST_PAUSE;
            }
            Outcome::Failed(refusal, client) => self.failed(refusal, client),
        }
    }

    /// Answers waiting clients at once, because their unit may never come. If the unit was for one
    /// client, for example because its own group has too little memory, only that client is
    /// answered.
    fn failed(&mut self, refusal: Refusal, client: Option<ClientId>) {
        tracing::warn!("{refusal}");
        self.failures += 1;
        self.last_failure = Some(refusal);
        if let Some(id) = client {
            return self.refuse(id, refusal);
        }
        self.fill_from = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        for id in self.waiting() {
            self.refuse(id, refusal);
        }
    }

    /// Returns the waiting clients, in the order in which they are served.
    fn waiting(&self) -> Vec<ClientId> {
        let waits = |(&id, client): (&ClientId, &Client)| {
            client.request.as_ref()?;
            Some((self.served.get(&client.account).copied().unwrap_or(0), id))
        };
        let mut waiting: Vec<_> = self.clients.iter().filter_map(waits).collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(_, id)| id).collect()
    }

    /// Leases ready units to waiting clients.
    fn serve(&mut self) {
        while let Some(unit) = self.ready.front() {
            let next = unit.client.or_else(|| self.waiting().first().copied());
            let Some(id) = next else { return };
            let unit = self.ready.pop_front().expect("one is ready");
            // The one whose group paid may have gone: its unit is no other client's.
            if self.clients.contains_key(&id) {
                self.lease_out(id, unit);
            }
        }
    }

    /// Leases a unit. The unit belongs to the client from the moment at which the message is sent.
    /// If the message cannot be sent, no client ever had the unit.
    fn lease_out(&mut self, id: ClientId, unit: Ready) {
        let client = self.clients.remove(&id).expect("it waits");
        let request = client.request.expect("it waits");
        let connection = client.connection;
        let (watched, file) = match self.prepare(&unit.memory, &connection) {
            Ok(prepared) => prepared,
            Err(errno) => return self.not_given(errno, request.claim, &connection, unit),
        };
        let answer = Answer::Leased {
            bytes: self.unit_bytes(),
            page_size: self.backing().page_size() as u64,
            payer: unit.payer,
            huge: unit.huge,
        };
        match connection.answer(&answer, Some(file.as_fd())) {
            Ok(()) => {
                let who = (connection.uid(), connection.pid());
                self.ledger.record_lease(request.claim, who, watched, unit.payer);
                self.given += 1;
                self.settled_from = self.settled_from.max(Instant::now() + SETTLING);
                self.served.insert(client.account, self.given);
            }
            Err(errno) => {
                tracing::debug!("user {} could not be answered: {errno}", connection.uid());
                self.watches.remove(watched);
                // The notice that this watch is gone is one of no lease.
                self.ledger.withdraw(request.claim);
                self.keep(unit);
            }
        }
    }

    /// Prepares a unit for its client: watches its file, and makes the client's descriptor.
    fn prepare(
        &mut self,
        memory: &MemoryFile,
        connection: &Connection,
    ) -> rustix::io::Result<(Watched, OwnedFd)> {
        give_ownership(memory.as_fd(), connection)?;
        let file = watch::open_again(memory)?;
        Ok((self.watches.add(memory)?, file))
    }

    /// Notifies a client that its unit cannot be prepared.
    fn not_given(&mut self, errno: Errno, claim: Claim, connection: &Connection, unit: Ready) {
        self.ledger.withdraw(claim);
        let refusal = refused(&errno.into());
        let _ = connection.answer(&Answer::Refused(refusal), None);
        self.keep(unit);
    }

    /// Takes back a unit that no client got.
    fn keep(&mut self, unit: Ready) {
        if unit.client.is_none() {
            self.ready.push_front(unit);
        }
    }

    fn refuse(&mut self, id: ClientId, refusal: Refusal) {
        let Some(client) = self.clients.remove(&id) else { return };
        if let Some(request) = client.request {
            self.ledger.withdraw(request.claim);
        }
        self.abandon(id);
        let _ = client.connection.answer(&Answer::Refused(refusal), None);
    }

    /// Answers clients whose time is over.
    fn expire(&mut self) {
        for (before, id) in self.waiting().into_iter().enumerate() {
            let request = self.clients[&id].request.as_ref().expect("it waits");
            let waited = request.since.elapsed();
            if waited >= request.wait {
                let refusal = self.shortage().unwrap_or_else(|| Refusal::NoneReady {
                    waited_ms: waited.as_millis() as u64,
                    present: self.present(),
                    unit: self.unit_bytes(),
                    before: before as u64,
                });
                self.refuse(id, refusal);
            }
        }
        let within = self.options.limits.request_within;
        self.clients.retain(|_, client| {
            client.request.is_some() || client.connection.since.elapsed() < within
        });
    }

    /// Returns the populated bytes of the units that are not ready.
    fn present(&self) -> u64 {
        let present = |filling: &FillingUnit| filling.memory.present().unwrap_or(0);
        self.filling.iter().map(present).max().unwrap_or(0)
    }

    /// Returns the reason why no unit can be begun; `None` if one can.
    fn shortage(&self) -> Option<Refusal> {
        self.no_pages().filter(|_| self.filling.is_empty())
    }

    /// Returns a refusal if memory is too short for one more unit.
    fn no_pages(&self) -> Option<Refusal> {
        let unit = self.unit_bytes();
        let (free, keep_free) = (self.memory.free, self.options.keep_free);
        let is_short = free < unit.saturating_add(keep_free);
        is_short.then(|| Refusal::NoPages {
            unit,
            page_size: self.backing().page_size() as u64,
            free,
            keep_free,
        })
    }

    /// Begins missing units, and speeds up units for which clients wait.
    fn fill(&mut self) {
        let waiting = self.waiting();
        match self.options.charge {
            Charge::Client => waiting.into_iter().for_each(|id| self.fill_for(id)),
            Charge::Broker | Charge::Group(_) => {
                let wanted = self.options.units_ahead() + waiting.len();
                let may_begin = !waiting.is_empty() || self.settled_from <= Instant::now();
                if may_begin && self.filling.is_empty() && self.ready.len() < wanted {
                    self.start_unit(None, self.charged(), !waiting.is_empty());
                }
                if !waiting.is_empty() {
                    self.hurry();
                }
            }
        }
    }

    /// Begins a unit for this client only, charged to its own group.
    fn fill_for(&mut self, id: ClientId) {
        let Client { account, connection, .. } = &self.clients[&id];
        let account = *account;
        let filling = self.filling.iter().filter(|f| f.client.is_some_and(|(_, of)| of == account));
        let ending = self.ending.iter().filter(|ending| ending.account == Some(account));
        let is_begun = self.filling.iter().any(|f| f.client.is_some_and(|(of, _)| of == id));
        if is_begun || filling.count() + ending.count() >= self.options.limits.fillers_of_user {
            return;
        }
        let counts = if self.backing().is_reserved() { "hugetlb" } else { "memory" };
        let charged = Charged::to_client(&self.root, connection, counts);
        self.start_unit(Some((id, account)), charged, true);
    }

    /// Returns the payer of memory that belongs to no single client.
    fn charged(&self) -> Charged {
        match &self.options.charge {
            Charge::Group(group) => Charged::to_group(group.clone()),
            Charge::Broker | Charge::Client => Charged::to_the_broker(),
        }
    }

    /// Begins a unit, if there is memory for it.
    fn start_unit(&mut self, client: Option<(ClientId, u32)>, charged: Charged, hurried: bool) {
        if self.fill_from > Instant::now() {
            return;
        }
        if let Some(shortage) = self.no_pages() {
            if !std::mem::replace(&mut self.has_warned, true) {
                tracing::warn!("no unit can be made now: {shortage}");
            }
            return;
        }
        self.has_warned = false;
        let Charged { groups, payer } = charged;
        match self.make(groups, !hurried) {
            Ok((memory, filler)) => {
                let hurried = hurried.then(Instant::now);
                let fillers = vec![filler];
                let all_joined = true;
                self.filling.push(FillingUnit {
                    memory,
                    fillers,
                    client,
                    payer,
                    all_joined,
                    hurried,
                });
                self.memory = self.memory.next(&self.root, self.backing(), self.options.payer());
            }
            // Taken by others meanwhile: as if it had been seen.
            Err(LeaseError::Pages(_)) => self.look(),
            Err(error) => {
                let errno = hugekit::system_error(&error).unwrap_or(libc::EIO);
                let errno = errno.unsigned_abs().into();
                let client = client.map(|(id, _)| id);
                self.failed(Refusal::NotPopulated { errno, signal: 0 }, client);
            }
        }
    }

    fn make(
        &self,
        groups: Vec<PathBuf>,
        background: bool,
    ) -> Result<(MemoryFile, Filler), LeaseError> {
        let memory = MemoryFile::create("lease", self.unit_bytes() as usize, self.backing())?;
        rustix::fs::fchmod(&memory, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| LeaseError::Kernel { call: "fchmod", source: errno.into() })?;
        memory.reserve()?;
        let thp = self.backing().is_transparent();
        let told = Fill { background, thp, node: self.options.node, groups };
        let filler = Filler::start(&self.filler, &told, &memory, self.may_raise);
        let filler = filler.map_err(|source| LeaseError::Kernel { call: "posix_spawn", source })?;
        Ok((memory, filler))
    }

    /// Speeds up units because a client waits: processes that populate in the background get help,
    /// and the usual priority.
    fn hurry(&mut self) {
        let (command, node, groups) = (&self.filler, self.options.node, self.charged().groups);
        let thp = self.backing().is_transparent();
        for filling in self.filling.iter_mut().filter(|filling| filling.hurried.is_none()) {
            filling.hurried = Some(Instant::now());
            filling.fillers.iter().for_each(Filler::raise);
            let told = Fill { background: false, thp, node, groups: groups.clone() };
            match Filler::start(command, &told, &filling.memory, self.may_raise) {
                Ok(filler) => filling.fillers.push(filler),
                Err(error) => tracing::warn!("what clients wait for gets no help: {error}"),
            }
        }
    }

    /// Returns the time until the next time limit that no descriptor reports.
    fn due(&self) -> Option<Duration> {
        let now = Instant::now();
        let clients = self.clients.values().map(|client| match &client.request {
            Some(request) => request.since + request.wait,
            None => client.connection.since + self.options.limits.request_within,
        });
        let is_wanting = self.filling.is_empty()
            && self.ready.len() < self.options.units_ahead() + self.waiting().len();
        let looks = is_wanting || self.ledger.unreturned() > 0 || self.notices.is_waiting();
        let look = looks.then(|| now + LOOK);
        let accept = (self.accept_from > now).then_some(self.accept_from);
        let later = [self.fill_from, self.settled_from].into_iter();
        let fill = later.filter(|&from| is_wanting && from > now);
        let due = clients.chain(look).chain(accept).chain(fill).min()?;
        Some(due.saturating_duration_since(now))
    }

    /// Waits for the next event and handles it. Returns true if a signal came.
    fn wait(&mut self) -> Result<bool, BrokerError> {
        let ready = self.poll()?;
        let [signal, leases, listener, ..] = ready[..] else { return Ok(false) };
        if leases {
            self.note_ended();
        }
        let ids: Vec<_> = self.clients.keys().copied().collect();
        for (id, _) in ids.into_iter().zip(&ready[3..]).filter(|&(_, &ready)| ready) {
            self.hear(id);
        }
        if listener {
            self.accept();
        }
        Ok(signal)
    }

    /// Returns true for each ready descriptor: signals, leases, the listener, then the clients in
    /// their order. The call also waits for populating processes, which the next turn inspects.
    fn poll(&self) -> Result<Vec<bool>, BrokerError> {
        let accepts = self.accept_from <= Instant::now();
        let heard = |fd| PollFd::from_borrowed_fd(fd, PollFlags::IN);
        let listener = if accepts { PollFlags::IN } else { PollFlags::empty() };
        let mut waited = vec![
            heard(self.signals.as_fd()),
            heard(self.watches.as_fd()),
            PollFd::from_borrowed_fd(self.listener.as_fd(), listener),
        ];
        waited.extend(self.clients.values().map(|client| heard(client.connection.as_fd())));
        let fillers = self.filling.iter().flat_map(|filling| &filling.fillers);
        let fillers = fillers.chain(self.ending.iter().flat_map(|ending| &ending.fillers));
        waited.extend(fillers.map(|filler| heard(filler.as_fd())));
        waited.extend(self.loading.iter().map(|loading| heard(loading.ended())));
        let waiting = self.loading.iter().filter(|loading| !loading.is_abandoned());
        // Their requests may still be in the queue: only that they hang up is waited for.
        let hangs_up = |fd| PollFd::from_borrowed_fd(fd, PollFlags::empty());
        waited.extend(waiting.map(|loading| hangs_up(loading.connection())));
        let timeout = self.due().and_then(|due| {
            // Rounded up: a turn that came too early would only wait again.
            Timespec::try_from(due + Duration::from_micros(100)).ok()
        });
        match poll(&mut waited, timeout.as_ref()) {
            Ok(_) => Ok(waited.iter().map(|fd| !fd.revents().is_empty()).collect()),
            Err(Errno::INTR) => Ok(Vec::new()),
            Err(errno) => Err(BrokerError::of("poll")(errno)),
        }
    }

    fn accept(&mut self) {
        self.accounts.refresh(&self.root);
        for _ in 0..ACCEPTED_AT_ONCE {
            match Connection::accept(self.listener.as_fd()) {
                Ok(Some(connection)) => self.admit(connection),
                Ok(None) => return,
                Err(errno) => {
                    tracing::warn!("a client could not be accepted: {errno}");
                    if !self.spare_descriptor() {
                        self.accept_from = Instant::now() + NO_DESCRIPTOR;
                        return;
                    }
                }
            }
        }
    }

    /// Closes a connection without a request, if there is one, to free its descriptor.
    fn spare_descriptor(&mut self) -> bool {
        let silent: Vec<_> =
            self.seats(|_| true).into_iter().filter(|seat| seat.is_silent).collect();
        let oldest = silent.first().and_then(|seat| displaced(&silent, seat.account));
        oldest.inspect(|&id| self.forget(id)).is_some()
    }

    fn admit(&mut self, connection: Connection) {
        let (uid, limits) = (connection.uid(), self.options.limits);
        let own = rustix::process::geteuid();
        let account = self.accounts.account_of(uid);
        let refusal = if !own.is_root() && uid != own.as_raw() {
            Refusal::NotServed { uid: uid.into(), served: own.as_raw().into() }
        } else if !self.make_room(account) {
            limits.busy()
        } else {
            let id = self.next_client;
            self.clients.insert(id, Client { connection, account, request: None });
            self.next_client += 1;
            // It asks as soon as it is connected, so that its request is there as a rule.
            return self.hear(id);
        };
        let _ = connection.answer(&Answer::Refused(refusal), None);
    }

    /// Returns true if there is room for one more client of an account. The call may disconnect
    /// another client for it.
    fn make_room(&mut self, account: u32) -> bool {
        let limits = self.options.limits;
        let own = self.seats(|of| of == account);
        let all = self.seats(|of| (of == 0) == (account == 0));
        let goes = if own.len() >= limits.connections_of_user {
            displaced(&own, account)
        } else if all.len() >= limits.connections {
            displaced(&all, account)
        } else {
            return true;
        };
        goes.inspect(|&id| self.refuse(id, limits.busy())).is_some()
    }

    /// Returns the connections of some accounts, the oldest first.
    fn seats(&self, is_of: impl Fn(u32) -> bool) -> Vec<Seat> {
        let clients = self.clients.iter().filter(|(_, client)| is_of(client.account));
        let seat = |(&id, client): (&ClientId, &Client)| Seat {
            id,
            account: client.account,
            is_silent: client.request.is_none(),
        };
        clients.map(seat).collect()
    }

    /// Reads a message of a client, or finds that the client is gone.
    fn hear(&mut self, id: ClientId) {
        let client = &self.clients[&id];
        match (client.connection.receive(), &client.request) {
            (ClientMessage::Nothing, _) => {}
            (ClientMessage::Request(Request::Lease { bytes, wait_ms }), None) => {
                self.request_lease(id, bytes, Duration::from_millis(wait_ms));
            }
            (ClientMessage::Request(Request::Status), None) => {
                let answer = Answer::Status(Box::new(self.status_for(id)));
                self.answer(id, &answer, None);
            }
            (ClientMessage::Request(Request::GiveBack { bytes, page_size }), None) => {
                self.give_back(id, bytes, page_size);
            }
            (ClientMessage::Request(Request::Load(load)), None) => self.request_load(id, &load),
            (ClientMessage::Request(Request::Get(name)), None) => self.send_image(id, name),
            (ClientMessage::Request(Request::Drop(name)), None) => self.drop_image(id, name),
            (ClientMessage::Request(Request::Images), None) => {
                let mut rows = self.images.rows(self.viewer(id));
                rows.truncate(MOST_IMAGES);
                self.answer(id, &Answer::Images(rows), None);
            }
            (ClientMessage::Nonsense(Malformed::Version { .. }), None) => {
                self.refuse(id, Refusal::NotUnderstood { newest: VERSION.into() });
            }
            (ClientMessage::Nonsense(malformed), None) => {
                tracing::debug!("a client sent {malformed}");
                self.refuse(id, Refusal::NotUnderstood { newest: VERSION.into() });
            }
            // Gone; or a second request, of which there is none.
            (ClientMessage::Gone | ClientMessage::Request(_) | ClientMessage::Nonsense(_), _) => {
                self.forget(id);
            }
        }
    }

    /// Answers a client whose request needs no waiting.
    fn answer(&mut self, id: ClientId, answer: &Answer, file: Option<BorrowedFd<'_>>) {
        let client = self.clients.remove(&id).expect("it spoke");
        if let Err(errno) = client.connection.answer(answer, file) {
            tracing::debug!("user {} could not be answered: {errno}", client.connection.uid());
        }
    }

    fn viewer(&self, id: ClientId) -> Viewer {
        let Client { account, connection, .. } = &self.clients[&id];
        Viewer { account: *account, sees_all: sees_all(connection.uid()) }
    }

    fn send_image(&mut self, id: ClientId, name: ImageName) {
        match self.images.open(self.clients[&id].account, name) {
            None => self.refuse(id, Refusal::NoImage),
            Some(Ok((file, facts))) => self.answer(id, &Answer::Image(facts), Some(file.as_fd())),
            Some(Err(error)) => self.refuse(id, not_populated(&error)),
        }
    }

    fn drop_image(&mut self, id: ClientId, name: ImageName) {
        if self.images.drop(self.viewer(id), name) {
            // Its memory counts no longer if no process has it.
            self.note_ended();
            self.answer(id, &Answer::Dropped, None);
        } else {
            self.refuse(id, Refusal::NoImage);
        }
    }

    /// Starts a process that loads an image, if the client may load one more.
    fn request_load(&mut self, id: ClientId, load: &Load) {
        // Its user may have ended what has an image that was dropped, since the last look.
        self.note_ended();
        match self.claim_load(id, load) {
            Ok(claim) => self.start_load(id, load, claim),
            Err(refusal) => {
                self.clients[&id].connection.discard();
                self.refuse(id, refusal);
            }
        }
    }

    fn claim_load(&mut self, id: ClientId, load: &Load) -> Result<Claim, Refusal> {
        let Client { account, connection, .. } = &self.clients[&id];
        let (account, uid) = (*account, connection.uid());
        if load.is_for_all && !sees_all(uid) {
            let served = rustix::process::geteuid().as_raw().into();
            return Err(Refusal::NotForAll { uid: uid.into(), served });
        }
        let loading = self.loading.iter().map(|loading| (loading.account(), loading.name_to_be()));
        if let Some(refusal) = self.images.refusal(account, load.name, loading) {
            return Err(refusal);
        }
        let count = |is_of: &dyn Fn(u32) -> bool| {
            self.loading.iter().filter(|loading| is_of(loading.account())).count()
        };
        let limits = self.options.limits;
        let is_busy = account != 0 && count(&|of| of != 0) >= limits.loads;
        if is_busy || count(&|of| of == account) >= limits.fillers_of_user {
            let (most, most_of_user) = (limits.loads as u64, limits.fillers_of_user as u64);
            return Err(Refusal::TooManyLoads { most, most_of_user });
        }
        let payer = match self.options.charge {
            Charge::Client => Some(connection.pid()),
            _ => self.options.payer(),
        };
        self.check_memory(load.most, payer)?;
        self.ledger.claim(account, load.most)
    }

    /// Checks that there is memory for an image besides the images that are being loaded.
    fn check_memory(&self, asked: u64, payer: Option<u32>) -> Result<(), Refusal> {
        let available = memory_state::available(&self.root, payer);
        let claimed = self.loading.iter().map(Loading::claimed).sum();
        let (free, keep_free) = (available.saturating_sub(claimed), self.options.keep_free);
        let is_short = asked.saturating_add(keep_free) > free;
        if is_short { Err(Refusal::NoMemory { asked, free, keep_free }) } else { Ok(()) }
    }

    fn start_load(&mut self, id: ClientId, load: &Load, claim: Claim) {
        let Client { connection, .. } = self.clients.remove(&id).expect("it spoke");
        let charged = match self.options.charge {
            // An image is shared memory, on huge pages or not.
            Charge::Client => Charged::to_client(&self.root, &connection, "memory"),
            _ => self.charged(),
        };
        let order = LoadOrder { groups: charged.groups, ..LoadOrder::default() };
        match Loading::start(&self.filler, order, connection, load, claim) {
            Ok(loading) => self.loading.push(loading),
            Err((connection, claim, refusal)) => {
                self.ledger.withdraw(claim);
                connection.discard();
                let _ = connection.answer(&Answer::Refused(refusal), None);
            }
        }
    }

    /// Records an image that is loaded, or that cannot be loaded.
    fn loaded(&mut self, loaded: Loaded) {
        let Loaded { connection, name, is_for_all, claim, outcome, .. } = loaded;
        let kept = outcome.and_then(|(image, huge)| {
            let (watched, identity, facts) = self.watch_image(&image, huge)?;
            Ok((image, watched, identity, facts))
        });
        let answer = match kept {
            Ok((image, watched, identity, facts)) => {
                let claim = self.ledger.reduce(claim, facts.present);
                let (uid, since) = (connection.uid(), Instant::now());
                let held = HeldImage { name, uid, is_for_all, facts, identity, claim, since };
                self.images.insert(watched, held, image);
                Answer::Loaded(facts)
            }
            Err(refusal) => {
                self.ledger.withdraw(claim);
                Answer::Refused(refusal)
            }
        };
        let _ = connection.answer(&answer, None);
    }

    /// Watches for the end of an image's file, and inspects the file.
    fn watch_image(
        &mut self,
        image: &Image,
        huge: u64,
    ) -> Result<(Watched, FileIdentity, ImageFacts), Refusal> {
        let present = image.present().map_err(|error| not_populated(&error))?;
        let identity = image.identity().map_err(|error| not_populated(&error))?;
        let watched = self.watches.add(image).map_err(|errno| refused(&errno.into()))?;
        Ok((watched, identity, ImageFacts { bytes: image.bytes() as u64, present, huge }))
    }

    /// Drops a client without an answer.
    fn forget(&mut self, id: ClientId) {
        let Some(client) = self.clients.remove(&id) else { return };
        if let Some(request) = client.request {
            self.ledger.withdraw(request.claim);
        }
        self.abandon(id);
    }

    /// Ends work that was begun for one client only.
    fn abandon(&mut self, id: ClientId) {
        let is_its = |filling: &mut FillingUnit| filling.client.is_some_and(|(of, _)| of == id);
        self.ending.extend(self.filling.extract_if(.., is_its).map(FillingUnit::abandon));
    }

    fn request_lease(&mut self, id: ClientId, asked: u64, wait: Duration) {
        let unit = self.unit_bytes();
        let account = self.clients[&id].account;
        let claimed = match asked {
            _ if unit == 0 => Err(Refusal::NoUnits),
            asked if asked != unit => Err(Refusal::WrongSize { asked, unit }),
            _ if self.ledger.count() + self.clients.len() > self.options.limits.leases => {
                let most = self.options.limits.leases as u64;
                Err(Refusal::Busy { most, most_of_user: most })
            }
            asked => self.ledger.claim(account, asked),
        };
        match claimed {
            Ok(claim) => {
                let wait = wait.min(self.options.limits.longest_wait);
                let client = self.clients.get_mut(&id).expect("it spoke");
                client.request = Some(LeaseRequest { claim, since: Instant::now(), wait });
            }
            Err(refusal) => self.refuse(id, refusal),
        }
    }

    /// Returns the status, with the leases that a client may see. Root and the broker's own user
    /// see all leases; other users see the oldest of their own. If the client does not read the
    /// answer, the kernel keeps the answer, charged to the broker's group.
    fn status_for(&self, id: ClientId) -> Status {
        let Client { account, connection, .. } = &self.clients[&id];
        let sees_all = sees_all(connection.uid());
        let mut status = self.status();
        status.rows = self.ledger.rows(|of| sees_all || of == *account);
        status.rows.truncate(if sees_all { MOST_ROWS } else { ROWS_OF_USER });
        status
    }

    fn status(&self) -> Status {
        let options = &self.options;
        let ahead = options.units_ahead() as u64;
        let mut status = Status::new(self.backing(), self.unit_bytes(), ahead);
        status.node = options.node;
        status.ready = self.ready.len() as u64;
        status.filling = self.filling.len() as u64;
        status.filled = self.filling.iter().map(|f| f.memory.present().unwrap_or(0)).sum();
        status.leases = self.ledger.count() as u64;
        status.unreturned = self.ledger.unreturned();
        status.waiting = self.waiting().len() as u64;
        status.keep_free = options.keep_free;
        status.free = self.memory.free;
        status.given = self.given;
        status.failures = self.failures;
        status.last_failure = self.last_failure;
        status.huge = self.ready.iter().map(|unit| unit.huge).sum();
        status
    }
}

/// Returns true if a user sees the leases of all users. Only root and the broker's own user do.
fn sees_all(uid: u32) -> bool {
    [0, rustix::process::geteuid().as_raw()].contains(&uid)
}

/// Checks that the options are valid on this machine.
fn check(options: &BrokerOptions) -> Result<(), BrokerError> {
    if let Some(unit) = options.unit {
        let made = MemoryFile::create("lease", unit as usize, options.backing);
        made.map_err(BrokerError::Unit)?;
    }
    match &options.charge {
        Charge::Group(group) => {
            let opened = std::fs::File::options().write(true).open(group.join("cgroup.procs"));
            let refused = |source| BrokerError::Group { group: group.clone(), source };
            opened.map(drop).map_err(refused)
        }
        _ => Ok(()),
    }
}

/// Returns the limits. The number of connections is reduced to the descriptors that this process
/// may have, after it raised this limit.
fn fitting(options: &BrokerOptions) -> Limits {
    let most = raise_descriptor_limit();
    // The connection, and where a unit is populated for it alone, the file, the process and the pipe from that.
    let each = if options.charge == Charge::Client { 4 } else { 1 };
    let own = DESCRIPTORS + options.units_ahead() as u64 + options.limits.loads as u64 * OF_LOAD;
    let limits = options.limits.within(most.saturating_sub(own), each);
    if limits.connections < options.limits.connections {
        let (fewer, wanted) = (limits.connections, options.limits.connections);
        tracing::warn!("{most} descriptors suffice for {fewer} connections, not for {wanted}");
    }
    limits
}

/// Makes the client's user the owner of the file. Then this user may open the file again, by its
/// own `/proc/self/fd`, and no other user may. The mode was set before, because a process that has
/// given a file away needs a further capability to change its mode.
fn give_ownership(file: BorrowedFd<'_>, connection: &Connection) -> rustix::io::Result<()> {
    let peer = &connection.peer;
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let (user, group) = (Uid::from_raw(peer.uid), Gid::from_raw(peer.gid));
    rustix::fs::fchown(file, Some(user), Some(group))
}
