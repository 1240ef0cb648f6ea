//! One thread that serves all clients, so that every command is one step.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use super::commands::{self, After, Clients, Database};
use super::resp::{Input, Limits, Reply};

const LISTENER: u64 = u64::MAX;

/// Bytes that are read at a time, so that one client does not keep all others waiting.
const READ: usize = 64 << 10;

/// A client that has so many bytes of replies to fetch is not answered further until it does.
const MOST_UNSENT: usize = 1 << 20;

/// How long nothing may happen before saves and signals are looked at.
const TURN: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

#[derive(Debug)]
struct Client {
    id: u64,
    stream: TcpStream,
    input: Input,
    reply: Reply,
    /// Bytes of the reply that have gone.
    sent: usize,
    /// It is closed when all of the reply has gone.
    leaves: bool,
    awaited: epoll::EventFlags,
    /// Bytes of memory that its requests and replies take, as they were counted last.
    held: usize,
}

/// Why a client is served no longer.
enum Gone {
    Closed,
    Shutdown,
}

#[derive(Debug)]
pub struct Server {
    listener: TcpListener,
    epoll: OwnedFd,
    clients: Vec<Option<Client>>,
    most_clients: usize,
    limits: Limits,
    database: Database,
    buffer: Box<[u8]>,
}

impl Server {
    pub fn new(
        listener: TcpListener,
        most_clients: usize,
        limits: Limits,
        database: Database,
    ) -> Result<Self> {
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).context("epoll")?;
        let listening = epoll::EventData::new_u64(LISTENER);
        epoll::add(&epoll, &listener, listening, epoll::EventFlags::IN).context("epoll")?;
        let buffer = vec![0; READ].into_boxed_slice();
        let clients = Vec::new();
        Ok(Self { listener, epoll, clients, most_clients, limits, database, buffer })
    }

    /// Serves until a client or a signal ends it. A signal has it saved first.
    pub fn run(&mut self, asked_to_end: &Arc<AtomicBool>) -> Result<()> {
        let mut events = Vec::with_capacity(1024);
        loop {
            events.clear();
            match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&TURN)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("epoll"),
            }
            self.database.now = milliseconds_since_1970();
            self.database.saver.look(&mut self.database.store, self.database.now);
            if asked_to_end.swap(false, Ordering::Relaxed) {
                match commands::end(&mut self.database, true) {
                    Ok(_) => return Ok(()),
                    Err(_) => eprintln!("not ended: it could not be saved"),
                }
            }
            for event in events.drain(..) {
                match event.data.u64() {
                    LISTENER => self.accept(),
                    client => match self.serve(client as usize) {
                        Ok(()) => {}
                        Err(Gone::Closed) => self.close(client as usize),
                        Err(Gone::Shutdown) => return Ok(()),
                    },
                }
                self.evict();
            }
        }
    }

    fn accept(&mut self) {
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if let Err(error) = self.admit(stream) {
                        eprintln!("a client was turned away: {error}");
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    // Out of descriptors, most likely: it stays in the queue until a client leaves.
                    eprintln!("no client can be accepted: {error}");
                    return std::thread::sleep(Duration::from_millis(1));
                }
            }
        }
    }

    fn admit(&mut self, mut stream: TcpStream) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        if self.database.clients.sessions.len() == self.most_clients {
            return stream.write_all(b"-ERR max number of clients reached\r\n");
        }
        stream.set_nodelay(true)?;
        let free = self.clients.iter().position(Option::is_none);
        let number = free.unwrap_or_else(|| {
            self.clients.push(None);
            self.clients.len() - 1
        });
        let awaited = epoll::EventFlags::IN;
        epoll::add(&self.epoll, &stream, epoll::EventData::new_u64(number as u64), awaited)?;
        let id = self.database.clients.admit(stream.peer_addr().ok());
        self.clients[number] = Some(Client {
            id,
            stream,
            input: Input::default(),
            reply: Reply::default(),
            sent: 0,
            leaves: false,
            awaited,
            held: 0,
        });
        Ok(())
    }

    fn close(&mut self, number: usize) {
        // Closing its socket takes it out of the epoll.
        if let Some(client) = self.clients[number].take() {
            self.database.clients.sessions.remove(&client.id);
            self.database.clients.held -= client.held;
        }
    }

    /// Turns away the client that holds most, until all of them together hold no more than they may.
    fn evict(&mut self) {
        while self.database.clients.held > self.database.clients.most_held {
            let held =
                |number: &usize| self.clients[*number].as_ref().map_or(0, |client| client.held);
            let Some(largest) = (0..self.clients.len()).max_by_key(held) else { return };
            if let Some(client) = &mut self.clients[largest] {
                client.turn_away(&self.database.clients);
            }
            self.database.clients.evicted += 1;
            self.close(largest);
        }
    }

    /// Reads once, answers what is whole, and sends as much as the client takes.
    fn serve(&mut self, number: usize) -> Result<(), Gone> {
        let Some(client) = self.clients.get_mut(number).and_then(Option::as_mut) else {
            return Ok(());
        };
        if client.awaited.contains(epoll::EventFlags::IN) {
            client.receive(&mut self.buffer)?;
        }
        let served = client.serve(&self.limits, &mut self.database);
        client.count(&mut self.database.clients);
        served?;
        client.wait(&self.epoll, number)
    }
}

impl Client {
    fn unsent(&self) -> usize {
        self.reply.bytes.len() - self.sent
    }

    /// Counts what it takes now.
    fn count(&mut self, clients: &mut Clients) {
        let held = self.input.held() + self.reply.held() + clients.queued(self.id);
        clients.held = clients.held - self.held + held;
        self.held = held;
    }

    /// Says why it is closed, if it takes that.
    fn turn_away(&mut self, clients: &Clients) {
        let error = format!(
            "-ERR this client holds {} of {} bytes that all clients may hold together (--client-memory)\r\n",
            self.held, clients.most_held
        );
        if self.unsent() == 0 {
            let _ = self.stream.write(error.as_bytes());
        }
    }

    /// Answers what is whole, and sends as much as it takes.
    fn serve(&mut self, limits: &Limits, database: &mut Database) -> Result<(), Gone> {
        loop {
            self.answer(limits, database)?;
            self.send()?;
            if self.unsent() > 0 {
                return Ok(());
            }
            if self.leaves {
                return Err(Gone::Closed);
            }
            if !self.has_more(limits) {
                return Ok(());
            }
        }
    }

    fn receive(&mut self, buffer: &mut [u8]) -> Result<(), Gone> {
        match self.stream.read(buffer) {
            Ok(0) => Err(Gone::Closed),
            Ok(bytes) => {
                self.input.push(&buffer[..bytes]);
                Ok(())
            }
            Err(error) if is_later(&error) => Ok(()),
            Err(_) => Err(Gone::Closed),
        }
    }

    /// Whether a whole request, or one that is none, is left.
    fn has_more(&mut self, limits: &Limits) -> bool {
        self.input.next(limits).unwrap_or(true)
    }

    fn answer(&mut self, limits: &Limits, database: &mut Database) -> Result<(), Gone> {
        while !self.leaves && self.unsent() < MOST_UNSENT {
            match self.input.next(limits) {
                Ok(false) => break,
                Ok(true) => {
                    self.count(&mut database.clients);
                    self.reply.begin(database.clients.left().max(READ));
                    database.clients.current = self.id;
                    let arguments = self.input.arguments();
                    let after = commands::run(database, &arguments, &mut self.reply);
                    self.input.done();
                    match after {
                        After::Next => {}
                        After::Close => self.leaves = true,
                        After::Shutdown => return Err(Gone::Shutdown),
                    }
                }
                Err(error) => {
                    self.reply.error(&format!("ERR Protocol error: {error}"));
                    self.leaves = true;
                }
            }
        }
        Ok(())
    }

    fn send(&mut self) -> Result<(), Gone> {
        while self.unsent() > 0 {
            match self.stream.write(&self.reply.bytes[self.sent..]) {
                Ok(0) => return Err(Gone::Closed),
                Ok(bytes) => self.sent += bytes,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(_) => return Err(Gone::Closed),
            }
        }
        self.sent = 0;
        self.reply.bytes.clear();
        self.reply.bytes.shrink_to(READ);
        Ok(())
    }

    /// Asks to be told when there is something to do: replies go first.
    fn wait(&mut self, epoll: &OwnedFd, number: usize) -> Result<(), Gone> {
        let awaited =
            if self.unsent() > 0 { epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
        if awaited != self.awaited {
            let data = epoll::EventData::new_u64(number as u64);
            epoll::modify(epoll, &self.stream, data, awaited).map_err(|_| Gone::Closed)?;
            self.awaited = awaited;
        }
        Ok(())
    }
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

pub fn milliseconds_since_1970() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
