//! Both servers, and clients that ask both the same.

use std::io::{BufReader, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use kv_store::redis;
use tempfile::TempDir;

use super::reply::{Reply, all_same, same};
use super::requests::{CLIENTS, Step, Words, encoded, shown};
use crate::server::{Server, folder};

/// A server that does not answer for so long never does.
const PATIENCE: Duration = Duration::from_secs(60);

/// What differed, in words.
type Outcome = Result<(), String>;

pub(super) struct Pair {
    ours: Server,
    theirs: Real,
    _folder: TempDir,
}

/// The real server, which listens at a socket in a folder of its own.
struct Real {
    child: Child,
    socket: PathBuf,
    _folder: TempDir,
}

impl Real {
    fn start() -> Self {
        let folder = folder();
        let socket = folder.path().join("socket");
        let mut command = redis::program("redis-server").unwrap();
        command.args(["--port", "0", "--save", "", "--databases", "1", "--dir"]);
        command.arg(folder.path()).arg("--unixsocket").arg(&socket).stdout(Stdio::null());
        let mut real = Self { child: command.spawn().unwrap(), socket, _folder: folder };
        let began = Instant::now();
        while real.connect().is_err() {
            let ended = real.child.try_wait().unwrap();
            assert!(ended.is_none() && began.elapsed() < PATIENCE, "{command:?}: {ended:?}");
            thread::sleep(Duration::from_millis(5));
        }
        real
    }

    fn connect(&self) -> std::io::Result<UnixStream> {
        UnixStream::connect(&self.socket)
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Pair {
    pub(super) fn start() -> Self {
        let folder = folder();
        Self { ours: Server::start(folder.path()), theirs: Real::start(), _folder: folder }
    }

    fn client(&self) -> Client {
        let ours = TcpStream::connect(("127.0.0.1", self.ours.port)).unwrap();
        ours.set_nodelay(true).unwrap();
        // Reading, writing and shutting down are the same for every kind of socket.
        let theirs = TcpStream::from(OwnedFd::from(self.theirs.connect().unwrap()));
        let streams = [ours, theirs].map(|stream| {
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            BufReader::new(stream)
        });
        Client { streams, queue: Vec::new() }
    }

    /// Sends bytes that may be no requests, and nothing more. This server may refuse what the real one takes or waits
    /// for more of; until then, and otherwise, replies are the same.
    pub(super) fn refuse_alike(&self, bytes: &[u8]) -> Outcome {
        let mut client = self.client();
        client.send(&encoded(&vec![b"FLUSHALL".to_vec()]), 1);
        client.replies()?;
        client.send(bytes, 1);
        let [ours, theirs] = client.rest()?;
        let until = ours.iter().position(Reply::is_refusal);
        let (before, until) = (&ours[..until.unwrap_or(ours.len())], until.unwrap_or(theirs.len()));
        let theirs_before = theirs.get(..until).unwrap_or(&theirs);
        let equal = |(ours, theirs): (&Reply, &Reply)| same(&[Vec::new()], ours, theirs);
        if before.len() == theirs_before.len() && before.iter().zip(theirs_before).all(equal) {
            return Ok(());
        }
        Err(format!("{}\n  ours:   {ours:?}\n  theirs: {theirs:?}", bytes.escape_ascii()))
    }
}

/// One client of each server.
struct Client {
    streams: [BufReader<TcpStream>; 2],
    /// Requests since a MULTI.
    queue: Vec<Words>,
}

impl Client {
    fn send(&mut self, bytes: &[u8], pieces: usize) {
        for stream in &mut self.streams {
            for piece in bytes.chunks(bytes.len() / pieces + 1) {
                // It may have been closed by what was sent before.
                let _ = stream.get_mut().write_all(piece);
            }
        }
    }

    /// The next reply of each.
    fn replies(&mut self) -> Result<[Option<Reply>; 2], String> {
        let [ours, theirs] = &mut self.streams;
        let ours = Reply::read(ours).map_err(|error| format!("ours: {error}"))?;
        let theirs = Reply::read(theirs).map_err(|error| format!("theirs: {error}"))?;
        Ok([ours, theirs])
    }

    /// All replies until the end.
    fn rest(&mut self) -> Result<[Vec<Reply>; 2], String> {
        let mut rest = [Vec::new(), Vec::new()];
        for (stream, rest) in self.streams.iter_mut().zip(&mut rest) {
            let _ = stream.get_ref().shutdown(Shutdown::Write);
            while let Some(reply) = Reply::read(stream).map_err(|error| error.to_string())? {
                rest.push(reply);
            }
        }
        Ok(rest)
    }

    /// Compares the replies to these requests. Returns whether the connection is still there.
    fn compare(&mut self, requests: &[Words]) -> Result<bool, String> {
        for words in requests {
            let (ours, theirs) = match self.replies()? {
                [Some(ours), Some(theirs)] => (ours, theirs),
                [None, None] => return Ok(false),
                replies => return Err(format!("{}: one left: {replies:?}", shown(words))),
            };
            let queue = self.follow(words, &theirs);
            let is_same = match &queue {
                Some(queue) => all_same(queue, &ours, &theirs),
                None => same(words, &ours, &theirs),
            };
            if !is_same {
                return Err(format!("{}\n  ours:   {ours:?}\n  theirs: {theirs:?}", shown(words)));
            }
        }
        Ok(true)
    }

    /// Notes what is kept for EXEC. Returns what it carried out.
    fn follow(&mut self, words: &Words, reply: &Reply) -> Option<Vec<Words>> {
        if reply.is_queued() {
            self.queue.push(words.clone());
            return None;
        }
        let name = words[0].to_ascii_lowercase();
        let ends = name == b"exec" || (name == b"discard" && !reply.is_error());
        let queue = ends.then(|| std::mem::take(&mut self.queue))?;
        (name == b"exec" && !reply.is_error()).then_some(queue)
    }

    fn scan(&mut self, filter: &Words) -> Outcome {
        let mut found = [Vec::new(), Vec::new()];
        for (stream, found) in self.streams.iter_mut().zip(&mut found) {
            let mut cursor = b"0".to_vec();
            loop {
                let words = [&[b"SCAN".to_vec(), cursor], &filter[..]].concat();
                stream.get_mut().write_all(&encoded(&words)).map_err(|error| error.to_string())?;
                let reply = Reply::read(stream).map_err(|error| error.to_string())?;
                let reply = reply.ok_or("closed")?;
                found.extend(reply.parts[1].parts.clone());
                cursor = reply.parts[0].bytes().to_vec();
                if cursor == b"0" {
                    break;
                }
            }
            found.sort();
            found.dedup();
        }
        let [ours, theirs] = found;
        if ours == theirs {
            return Ok(());
        }
        Err(format!("SCAN {}\n  ours:   {ours:?}\n  theirs: {theirs:?}", shown(filter)))
    }
}

/// Clients of a sequence, on servers without any key.
pub(super) struct Session<'a> {
    pair: &'a Pair,
    clients: Vec<Client>,
}

impl<'a> Session<'a> {
    pub(super) fn new(pair: &'a Pair) -> Self {
        let clients = (0..CLIENTS).map(|_| pair.client()).collect();
        let mut session = Self { pair, clients };
        let flush = Step::Line { client: 0, line: "FLUSHALL\r\n".to_owned() };
        session.step(&flush).expect("an empty start");
        session
    }

    pub(super) fn step(&mut self, step: &Step) -> Outcome {
        match step {
            Step::Ask { client, requests, pieces } => {
                let bytes: Vec<u8> = requests.iter().flat_map(encoded).collect();
                self.ask(*client, &bytes, *pieces, requests)
            }
            Step::Line { client, line } => {
                let words = line.split_whitespace().map(|word| word.as_bytes().to_vec());
                self.ask(*client, line.as_bytes(), 1, &[words.collect()])
            }
            // A transaction would keep it.
            Step::Scan { filter } => self.pair.client().scan(filter),
            Step::Leave { client } => {
                self.clients[*client] = self.pair.client();
                Ok(())
            }
        }
    }

    fn ask(&mut self, client: usize, bytes: &[u8], pieces: usize, requests: &[Words]) -> Outcome {
        self.clients[client].send(bytes, pieces);
        if !self.clients[client].compare(requests)? {
            self.clients[client] = self.pair.client();
        }
        Ok(())
    }
}
