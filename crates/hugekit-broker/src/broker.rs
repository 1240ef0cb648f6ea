//! The one thread that serves: it waits for what comes next, and for nothing else.
//!
//! Each turn: what ended is counted, clients are answered, free memory is looked at, units are begun that are wanting,
//! and then `poll(2)` waits for a client, the end of a process or of a lease, a signal, or the next moment at which
//! something is due. Nothing that takes longer than the answer itself stands between a client's request and a unit that
//! is ready.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hugekit::lease::protocol::{Answer, Malformed, Payer, Refusal, Request, Status, VERSION};
use hugekit::lease::{LeaseError, MemoryFile};
use hugekit::machine::Root;
use hugekit::pool::Backing;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Gid, Mode, Uid};
use rustix::io::Errno;
use sd_notify::NotifyState;

use crate::config::{Charge, Config};
use crate::connection::{Connection, Said};
use crate::error::BrokerError;
use crate::fill::Fill;
use crate::filler::Filler;
use crate::ledger::{Claim, Ledger};
use crate::listener::Listener;
use crate::pages::Pages;
use crate::signals::Signals;
use crate::unit::{ClientId, Filling, Outcome, Ready, refused};
use crate::watch::Watches;
use crate::{group, priority};

/// Clients that are accepted in one turn: others are answered in between.
const ACCEPTED_AT_ONCE: usize = 32;

/// How often free memory is looked at while it is short or ended leases are not back.
const LOOK: Duration = Duration::from_millis(100);

/// How long no connection is accepted after one could not be, for want of descriptors.
const NO_DESCRIPTOR: Duration = Duration::from_millis(100);

/// How long nothing is populated after that failed: twice as long each time, up to this.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
const FIRST_PAUSE: Duration = Duration::from_millis(500);

/// How long no unit is begun ahead after one was given: the client starts its program now, and what populates would take
/// memory bandwidth from it. QEMU takes 20 ms.
const SETTLING: Duration = Duration::from_millis(25);

/// A client that was accepted.
#[derive(Debug)]
struct Client {
    connection: Connection,
    /// What it waits for.
    wish: Option<Wish>,
}

#[derive(Debug)]
struct Wish {
    claim: Claim,
    since: Instant,
    wait: Duration,
}

/// A broker that listens.
#[derive(Debug)]
pub struct Broker {
    config: Config,
    root: Root,
    listener: Listener,
    watches: Watches,
    signals: Signals,
    may_raise: bool,
    clients: BTreeMap<ClientId, Client>,
    next_client: ClientId,
    /// When each user was given something last, in turns: of those who wait, the longest ago is next.
    served: BTreeMap<u32, u64>,
    ready: VecDeque<Ready>,
    filling: Vec<Filling>,
    ledger: Ledger,
    /// What is free and taken, as it was in the last turn.
    pages: Pages,
    given: u64,
    failures: u64,
    last_failure: Option<Refusal>,
    pause: Duration,
    fill_from: Instant,
    /// When units may be begun ahead again, while no client waits.
    settled_from: Instant,
    accept_from: Instant,
}

impl Broker {
    /// Listens. Units are populated from here on, as [`run`](Self::run) gets to it.
    ///
    /// # Errors
    /// [`BrokerError`]: another broker listens there, the socket cannot be made, or the configuration makes no sense.
    pub fn start(config: Config) -> Result<Self, BrokerError> {
        check(&config)?;
        let listener = Listener::new(&config.socket)?;
        let root = Root::default();
        let now = Instant::now();
        let signals =
            Signals::new().map_err(|source| BrokerError::Kernel { call: "sigaction", source })?;
        Ok(Self {
            pages: Pages::now(&root, config.backing),
            ledger: Ledger::new(config.quotas.clone()),
            watches: Watches::new().map_err(BrokerError::of("inotify_init1"))?,
            signals,
            may_raise: priority::may_raise(),
            clients: BTreeMap::new(),
            next_client: 0,
            served: BTreeMap::new(),
            ready: VecDeque::new(),
            filling: Vec::new(),
            given: 0,
            failures: 0,
            last_failure: None,
            pause: FIRST_PAUSE,
            fill_from: now,
            settled_from: now,
            accept_from: now,
            listener,
            root,
            config,
        })
    }

    /// Serves until SIGTERM, SIGINT or SIGHUP comes. Clients that wait are told then, units that no client has go back
    /// to the kernel, and leases go on.
    ///
    /// # Errors
    /// The kernel refuses what can only be refused for want of memory.
    pub fn run(mut self) -> Result<(), BrokerError> {
        let _ = sd_notify::notify(false, &[NotifyState::Ready]);
        loop {
            self.advance();
            self.serve();
            self.look();
            self.expire();
            self.fill();
            if self.wait()? {
                let _ = sd_notify::notify(false, &[NotifyState::Stopping]);
                let clients = std::mem::take(&mut self.clients);
                for client in clients.into_values() {
                    let _ = client.connection.answer(&Answer::Refused(Refusal::Ending), None);
                }
                return Ok(());
            }
        }
    }

    /// Takes note of units that are populated, or cannot be.
    fn advance(&mut self) {
        for filling in std::mem::take(&mut self.filling) {
            match filling.step() {
                Err(still) => self.filling.push(still),
                Ok(outcome) => self.filled(outcome),
            }
        }
    }

    /// Takes note of leases that have come to an end, and of what that has given back, before a request is heard: its
    /// user may have ended one of its own for it.
    fn note_ended(&mut self) {
        let before = self.pages.elsewhere(self.known());
        for watched in self.watches.gone().unwrap_or_default() {
            self.ledger.end(watched, before);
        }
        self.look();
    }

    fn look(&mut self) {
        self.pages = Pages::now(&self.root, self.config.backing);
        self.ledger.reconcile(self.pages.elsewhere(self.known()));
    }

    /// Memory that is taken and that the broker knows of.
    fn known(&self) -> u64 {
        let units = self.ready.len() + self.filling.len();
        units as u64 * self.config.unit as u64 + self.ledger.leased()
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

    /// Those who wait are told at once: what they wait for may never be. Of what was one client's alone, as where its
    /// own group has too little memory, no other one hears.
    fn failed(&mut self, refusal: Refusal, client: Option<ClientId>) {
        tracing::warn!("a unit could not be populated: {refusal}");
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

    /// Clients that wait, in the order in which they are served.
    fn waiting(&self) -> Vec<ClientId> {
        let waits = |(&id, client): (&ClientId, &Client)| {
            let uid = client.wish.as_ref()?.claim.uid;
            Some((self.served.get(&uid).copied().unwrap_or(0), id))
        };
        let mut waiting: Vec<_> = self.clients.iter().filter_map(waits).collect();
        waiting.sort_unstable();
        waiting.into_iter().map(|(_, id)| id).collect()
    }

    /// Gives what is ready to those who wait.
    fn serve(&mut self) {
        while let Some(unit) = self.ready.front() {
            let next = unit.client.or_else(|| self.waiting().first().copied());
            let Some(id) = next else { return };
            let unit = self.ready.pop_front().expect("one is ready");
            // The one whose group paid may have gone: its unit is no other client's.
            if self.clients.contains_key(&id) {
                self.give(id, unit);
            }
        }
    }

    /// Gives a unit away. It is the client's from the moment at which the message is sent; what cannot be sent was
    /// never any client's.
    fn give(&mut self, id: ClientId, unit: Ready) {
        let client = self.clients.remove(&id).expect("it waits");
        let wish = client.wish.expect("it waits");
        let (uid, connection) = (wish.claim.uid, client.connection);
        let owned = own(unit.memory.as_fd(), &connection);
        let watched = match owned.and_then(|()| self.watches.add(&unit.memory)) {
            Ok(watched) => watched,
            Err(errno) => return self.not_given(errno, wish.claim, &connection, unit),
        };
        let answer = Answer::Leased {
            bytes: self.config.unit as u64,
            page_size: self.config.backing.page_size() as u64,
            payer: unit.payer,
            huge: unit.huge,
        };
        match connection.answer(&answer, Some(unit.memory.as_fd())) {
            Ok(()) => {
                self.ledger.give(wish.claim, connection.pid(), watched, unit.payer);
                self.given += 1;
                self.settled_from = Instant::now() + SETTLING;
                self.served.insert(uid, self.given);
            }
            Err(errno) => {
                tracing::debug!("user {uid} could not be answered: {errno}");
                self.watches.remove(watched);
                // The notice that this watch is gone is one of no lease.
                self.ledger.withdraw(wish.claim);
                self.keep(unit);
            }
        }
    }

    /// Tells a client that its unit cannot be made its own.
    fn not_given(&mut self, errno: Errno, claim: Claim, connection: &Connection, unit: Ready) {
        self.ledger.withdraw(claim);
        let refusal = refused(&errno.into());
        let _ = connection.answer(&Answer::Refused(refusal), None);
        self.keep(unit);
    }

    /// Takes back what no client has got.
    fn keep(&mut self, unit: Ready) {
        if unit.client.is_none() {
            self.ready.push_front(unit);
        }
    }

    fn refuse(&mut self, id: ClientId, refusal: Refusal) {
        let Some(client) = self.clients.remove(&id) else { return };
        if let Some(wish) = client.wish {
            self.ledger.withdraw(wish.claim);
        }
        self.filling.retain(|filling| filling.client.is_none_or(|(of, _)| of != id));
        let _ = client.connection.answer(&Answer::Refused(refusal), None);
    }

    /// Answers those whose time is over.
    fn expire(&mut self) {
        for (before, id) in self.waiting().into_iter().enumerate() {
            let wish = self.clients[&id].wish.as_ref().expect("it waits");
            let waited = wish.since.elapsed();
            if waited >= wish.wait {
                let refusal = self.shortage().unwrap_or_else(|| Refusal::NoneReady {
                    waited_ms: waited.as_millis() as u64,
                    present: self.present(),
                    unit: self.config.unit as u64,
                    before: before as u64,
                });
                self.refuse(id, refusal);
            }
        }
        let within = self.config.limits.request_within;
        self.clients.retain(|_, client| {
            client.wish.is_some() || client.connection.since.elapsed() < within
        });
    }

    /// What is populated of the units that are not ready.
    fn present(&self) -> u64 {
        let present = |filling: &Filling| filling.memory.present().unwrap_or(0);
        self.filling.iter().map(present).max().unwrap_or(0)
    }

    /// Why no unit can be begun, if none can.
    fn shortage(&self) -> Option<Refusal> {
        let unit = self.config.unit as u64;
        let (free, keep_free) = (self.pages.free, self.config.keep_free);
        let is_short = self.filling.is_empty() && free < unit.saturating_add(keep_free);
        is_short.then(|| Refusal::NoPages {
            unit,
            page_size: self.config.backing.page_size() as u64,
            free,
            keep_free,
        })
    }

    /// Begins what is wanting, and hurries what clients wait for.
    fn fill(&mut self) {
        let waiting = self.waiting();
        match self.config.charge {
            Charge::Client => waiting.into_iter().for_each(|id| self.fill_for(id)),
            Charge::Broker | Charge::Group(_) => {
                let wanted = self.config.ready + waiting.len();
                let may_begin = !waiting.is_empty() || self.settled_from <= Instant::now();
                if may_begin && self.filling.is_empty() && self.ready.len() < wanted {
                    self.begin(None, self.groups(), !waiting.is_empty());
                }
                if !waiting.is_empty() {
                    self.hurry();
                }
            }
        }
    }

    /// One for this client alone, charged to its own group.
    fn fill_for(&mut self, id: ClientId) {
        let uid = self.clients[&id].connection.uid();
        let of_user = |filling: &&Filling| filling.client.is_some_and(|(_, of)| of == uid);
        let is_begun = self.filling.iter().any(|f| f.client.is_some_and(|(of, _)| of == id));
        let of_user = self.filling.iter().filter(of_user).count();
        if is_begun || of_user >= self.config.limits.fillers_of_user {
            return;
        }
        let pid = self.clients[&id].connection.pid();
        let groups = group::of_process(&self.root, pid, uid).unwrap_or_default();
        self.begin(Some((id, uid)), groups, true);
    }

    fn groups(&self) -> Vec<PathBuf> {
        match &self.config.charge {
            Charge::Group(group) => vec![group.clone()],
            Charge::Broker | Charge::Client => Vec::new(),
        }
    }

    /// Begins a unit, if there is memory for it.
    fn begin(&mut self, client: Option<(ClientId, u32)>, groups: Vec<PathBuf>, hurried: bool) {
        let unit = self.config.unit as u64;
        if self.fill_from > Instant::now()
            || self.pages.free < unit.saturating_add(self.config.keep_free)
        {
            return;
        }
        let payer = match (&self.config.charge, groups.is_empty()) {
            (Charge::Client, false) => Payer::Client,
            (Charge::Group(_), _) => Payer::Group,
            _ => Payer::Broker,
        };
        match self.make(groups, !hurried) {
            Ok((memory, filler)) => {
                let hurried = hurried.then(Instant::now);
                let fillers = vec![filler];
                let all_joined = true;
                self.filling.push(Filling { memory, fillers, client, payer, all_joined, hurried });
                self.pages = Pages::now(&self.root, self.config.backing);
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
        let memory = MemoryFile::create("lease", self.config.unit, self.config.backing)?;
        rustix::fs::fchmod(&memory, Mode::RUSR | Mode::WUSR)
            .map_err(|errno| LeaseError::Kernel { call: "fchmod", source: errno.into() })?;
        memory.reserve()?;
        let thp = self.config.backing == Backing::Thp;
        let told = Fill { background, thp, node: self.config.node, groups };
        let filler = Filler::start(&self.config.filler, &told, &memory, self.may_raise);
        let filler = filler.map_err(|source| LeaseError::Kernel { call: "posix_spawn", source })?;
        Ok((memory, filler))
    }

    /// A client waits: what populates in the background gets help, and its own priority back.
    fn hurry(&mut self) {
        let (command, node, groups) = (&self.config.filler, self.config.node, self.groups());
        let thp = self.config.backing == Backing::Thp;
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

    /// When something is due that no descriptor tells.
    fn due(&self) -> Option<Duration> {
        let now = Instant::now();
        let clients = self.clients.values().map(|client| match &client.wish {
            Some(wish) => wish.since + wish.wait,
            None => client.connection.since + self.config.limits.request_within,
        });
        let is_wanting =
            self.filling.is_empty() && self.ready.len() < self.config.ready + self.waiting().len();
        let look = (is_wanting || self.ledger.unreturned() > 0).then(|| now + LOOK);
        let accept = (self.accept_from > now).then_some(self.accept_from);
        let later = [self.fill_from, self.settled_from].into_iter();
        let fill = later.filter(|&from| is_wanting && from > now);
        let due = clients.chain(look).chain(accept).chain(fill).min()?;
        Some(due.saturating_duration_since(now))
    }

    /// Waits for what comes next and takes it; whether a signal came.
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

    /// Signals, leases, listener, then the clients in their order: whether each is ready. Processes that populate are
    /// waited for too, and asked in the next turn.
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
        waited.extend(fillers.map(|filler| heard(filler.as_fd())));
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
        for _ in 0..ACCEPTED_AT_ONCE {
            match Connection::accept(self.listener.as_fd()) {
                Ok(Some(connection)) => self.admit(connection),
                Ok(None) => return,
                Err(errno) => {
                    tracing::warn!("a client could not be accepted: {errno}");
                    self.accept_from = Instant::now() + NO_DESCRIPTOR;
                    return;
                }
            }
        }
    }

    fn admit(&mut self, connection: Connection) {
        let (uid, limits) = (connection.uid(), self.config.limits);
        let of_user = self.clients.values().filter(|client| client.connection.uid() == uid).count();
        let own = rustix::process::geteuid();
        let refusal = if !own.is_root() && uid != own.as_raw() {
            Refusal::NotServed { uid: uid.into(), served: own.as_raw().into() }
        } else if self.clients.len() >= limits.connections || of_user >= limits.connections_of_user
        {
            let (most, most_of_user) = (limits.connections, limits.connections_of_user);
            Refusal::Busy { most: most as u64, most_of_user: most_of_user as u64 }
        } else {
            let id = self.next_client;
            self.clients.insert(id, Client { connection, wish: None });
            self.next_client += 1;
            // It asks as soon as it is connected, so that its request is there as a rule.
            return self.hear(id);
        };
        let _ = connection.answer(&Answer::Refused(refusal), None);
    }

    /// A client said something, or is gone.
    fn hear(&mut self, id: ClientId) {
        let client = &self.clients[&id];
        match (client.connection.receive(), &client.wish) {
            (Said::Nothing, _) => {}
            (Said::Request(Request::Lease { bytes, wait_ms }), None) => {
                self.wish(id, bytes, Duration::from_millis(wait_ms));
            }
            (Said::Request(Request::Status), None) => {
                let answer = Answer::Status(Box::new(self.status()));
                let client = self.clients.remove(&id).expect("it spoke");
                let _ = client.connection.answer(&answer, None);
            }
            (Said::Nonsense(Malformed::Version { .. }), None) => {
                self.refuse(id, Refusal::NotUnderstood { newest: VERSION.into() });
            }
            (Said::Nonsense(malformed), None) => {
                tracing::debug!("a client sent {malformed}");
                self.refuse(id, Refusal::NotUnderstood { newest: VERSION.into() });
            }
            // Gone; or a second request, of which there is none.
            (Said::Gone | Said::Request(_) | Said::Nonsense(_), _) => self.forget(id),
        }
    }

    /// Drops a client without an answer.
    fn forget(&mut self, id: ClientId) {
        let Some(client) = self.clients.remove(&id) else { return };
        if let Some(wish) = client.wish {
            self.ledger.withdraw(wish.claim);
        }
        self.filling.retain(|filling| filling.client.is_none_or(|(of, _)| of != id));
    }

    fn wish(&mut self, id: ClientId, asked: u64, wait: Duration) {
        let unit = self.config.unit as u64;
        let uid = self.clients[&id].connection.uid();
        let claimed = match asked {
            asked if asked != unit => Err(Refusal::WrongSize { asked, unit }),
            _ if self.ledger.count_all() + self.clients.len() > self.config.limits.leases => {
                let most = self.config.limits.leases as u64;
                Err(Refusal::Busy { most, most_of_user: most })
            }
            asked => self.ledger.claim(uid, asked),
        };
        match claimed {
            Ok(claim) => {
                let wait = wait.min(self.config.limits.longest_wait);
                let client = self.clients.get_mut(&id).expect("it spoke");
                client.wish = Some(Wish { claim, since: Instant::now(), wait });
            }
            Err(refusal) => self.refuse(id, refusal),
        }
    }

    fn status(&self) -> Status {
        let config = &self.config;
        let mut status = Status::new(config.backing, config.unit as u64, config.ready as u64);
        status.node = config.node;
        status.ready = self.ready.len() as u64;
        status.filling = self.filling.len() as u64;
        status.filled = self.filling.iter().map(|f| f.memory.present().unwrap_or(0)).sum();
        status.leases = self.ledger.count();
        status.unreturned = self.ledger.unreturned();
        status.waiting = self.waiting().len() as u64;
        status.keep_free = config.keep_free;
        status.free = self.pages.free;
        status.given = self.given;
        status.failures = self.failures;
        status.last_failure = self.last_failure;
        status.huge = self.ready.iter().map(|unit| unit.huge).sum();
        status.rows = self.ledger.rows();
        status
    }
}

/// Whether the configuration makes sense on this machine.
fn check(config: &Config) -> Result<(), BrokerError> {
    MemoryFile::create("lease", config.unit, config.backing).map_err(BrokerError::Unit)?;
    match &config.charge {
        Charge::Client if config.ready > 0 => {
            Err(BrokerError::ReadyForClients { ready: config.ready })
        }
        Charge::Group(group) => {
            let opened = std::fs::File::options().write(true).open(group.join("cgroup.procs"));
            let refused = |source| BrokerError::Group { group: group.clone(), source };
            opened.map(drop).map_err(refused)
        }
        _ => Ok(()),
    }
}

/// Makes the client's user the owner: it may open the file again, by its own `/proc/self/fd`, and no other user may. The
/// mode was set before: who has given a file away may not change it any more without a further capability.
fn own(file: BorrowedFd<'_>, connection: &Connection) -> rustix::io::Result<()> {
    let peer = &connection.peer;
    if !rustix::process::geteuid().is_root() {
        return Ok(());
    }
    let (user, group) = (Uid::from_raw(peer.uid), Gid::from_raw(peer.gid));
    rustix::fs::fchown(file, Some(user), Some(group))
}
