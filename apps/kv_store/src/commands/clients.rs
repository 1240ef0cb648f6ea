//! Who is connected.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use super::transaction::Queue;

/// Who is connected, and what requests that are not whole and replies that are not sent take of memory.
#[derive(Debug)]
pub struct Clients {
    /// By their numbers, which are never given again.
    pub sessions: BTreeMap<u64, Session>,
    next: u64,
    /// The one whose request is answered.
    pub current: u64,
    /// Bytes that all of them hold.
    pub held: usize,
    /// Bytes that they may hold.
    pub most_held: usize,
    /// How many were turned away because they held too many.
    pub evicted: u64,
}

/// What is known of a client.
#[derive(Debug)]
pub struct Session {
    pub address: Option<SocketAddr>,
    pub began: Instant,
    /// As it calls itself, its library and that library's version: without blanks.
    pub name: String,
    pub library: String,
    pub library_version: String,
    /// Of the protocol.
    pub protocol: u8,
    /// Requests that wait for EXEC.
    pub queue: Option<Queue>,
}

impl Clients {
    /// Of at most so many bytes.
    pub fn new(most_held: usize) -> Self {
        let sessions = BTreeMap::new();
        Self { sessions, next: 1, current: 0, held: 0, most_held, evicted: 0 }
    }

    /// Another client. Returns its number.
    pub fn admit(&mut self, address: Option<SocketAddr>) -> u64 {
        let id = self.next;
        self.next += 1;
        let [name, library, library_version] = [(); 3].map(|()| String::new());
        let began = Instant::now();
        let session =
            Session { address, began, name, library, library_version, protocol: 2, queue: None };
        self.sessions.insert(id, session);
        id
    }

    /// The one whose request is answered.
    pub fn session(&mut self) -> &mut Session {
        self.sessions.get_mut(&self.current).expect("a client is connected while it is answered")
    }

    /// Bytes of the requests of a client that wait for EXEC.
    pub fn queued(&self, id: u64) -> usize {
        let queue = self.sessions.get(&id).and_then(|session| session.queue.as_ref());
        queue.map_or(0, Queue::held)
    }

    /// Bytes that they may still take.
    pub fn left(&self) -> usize {
        self.most_held.saturating_sub(self.held)
    }
}
