//! The memory that clients hold: requests that have come in part, requests that wait for EXEC, and
//! replies that were not sent.
//!
//! There is a limit for all clients together. Beyond it, the client that holds most is closed, and
//! others are served on.

use std::collections::BTreeMap;
use std::io;
use std::net::{Shutdown, TcpStream};

use parking_lot::Mutex;

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
    /// No clients, which may hold `most` bytes.
    pub fn new(most: usize) -> Self {
        Self { most, ..Self::default() }
    }

    /// Another client. Returns its number.
    pub fn admit(&mut self, stream: TcpStream) -> u64 {
        self.last += 1;
        self.connected.insert(self.last, (stream, 0));
        self.last
    }

    /// The client holds this many bytes from now on. An error means that it was closed.
    pub fn hold(&mut self, id: u64, bytes: usize) -> io::Result<()> {
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

    /// Closes the connection, so that its thread ends.
    pub fn close(&mut self, id: u64) {
        if let Some((stream, held)) = self.connected.remove(&id) {
            let _ = stream.shutdown(Shutdown::Both);
            self.held -= held;
        }
    }
}

pub type Budget = Mutex<Clients>;
