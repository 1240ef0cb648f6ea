//! The memory that clients hold: requests that have come in part, requests that wait for EXEC, and
//! replies that were not sent.
//!
//! There is a limit for all clients together. Beyond it, the client that holds most is closed, and
//! others are served on.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that each client counts for at least. Below that, no thread waits for the budget.
const LEAST: usize = 16 << 10;

/// The clients, and what they hold.
#[derive(Debug, Default)]
pub struct Clients {
    /// The connections, and the bytes that each holds.
    pub connected: BTreeMap<u64, (TcpStream, usize)>,
    last: u64,
    pub held: usize,
    pub most: usize,
    /// How many were closed because they held most.
    pub evicted: u64,
}

impl Clients {
    fn hold(&mut self, id: u64, bytes: usize) -> io::Result<()> {
        if let Some((_, held)) = self.connected.get_mut(&id) {
            self.held = self.held - *held + bytes;
            *held = bytes;
        }
        while self.held > self.most {
            let largest = self.connected.iter().max_by_key(|(_, (_, held))| *held);
            let Some((&largest, _)) = largest else { break };
            self.close(largest);
            self.evicted += 1;
        }
        let is_open = self.connected.contains_key(&id);
        if is_open { Ok(()) } else { Err(io::ErrorKind::ConnectionAborted.into()) }
    }

    fn close(&mut self, id: u64) {
        if let Some((stream, held)) = self.connected.remove(&id) {
            // Its thread waits for the client, and ends then.
            let _ = stream.shutdown(Shutdown::Both);
            self.held -= held;
        }
    }
}

#[derive(Debug)]
pub struct Budget(Mutex<Clients>);

impl Budget {
    /// Of `most` bytes.
    pub fn new(most: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Clients { most, ..Clients::default() })))
    }

    pub fn lock(&self) -> MutexGuard<'_, Clients> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another client.
    pub fn admit(self: &Arc<Self>, stream: TcpStream) -> Share {
        let mut clients = self.lock();
        clients.last += 1;
        let id = clients.last;
        clients.connected.insert(id, (stream, 0));
        Share { budget: Arc::clone(self), id, held: 0 }
    }
}

/// One client's part of the budget. Dropped, it is free, and the client is closed.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    id: u64,
    held: usize,
}

impl Share {
    /// The client holds so many bytes from now on. An error means that it was closed.
    pub fn hold(&mut self, bytes: usize) -> io::Result<()> {
        let before = std::mem::replace(&mut self.held, bytes.max(LEAST));
        if before == self.held { Ok(()) } else { self.budget.lock().hold(self.id, self.held) }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.lock().close(self.id);
    }
}
