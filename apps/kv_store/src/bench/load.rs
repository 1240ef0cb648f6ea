//! SETs at a rate, and how long each took.

use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::process::setpriority_process;

use super::servers::{ask, info};

const OK: &[u8] = b"+OK\r\n";
const VALUES: std::ops::RangeInclusive<usize> = 256..=1024;

/// Requests that are due come in bursts, so that the load itself does not need a CPU for its clock.
const BURST: Duration = Duration::from_millis(1);

/// Between looks whether a save is over.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) keys: u64,
    pub(crate) rate: u64,
    pub(crate) connections: usize,
    pub(crate) margin: Duration,
}

/// One request: when it was due, since the start, and how long it took from then.
#[derive(Clone, Copy, Debug)]
struct Sample {
    due: Duration,
    took: Duration,
}

#[derive(Debug)]
pub(crate) struct Measured {
    samples: Vec<Sample>,
    began: Duration,
    ended: Duration,
}

impl Measured {
    pub(crate) fn save(&self) -> Duration {
        self.ended - self.began
    }

    /// Latencies in nanoseconds before, during and after the save: during it is whatever overlaps it.
    pub(crate) fn phases(&self) -> Result<[Histogram<u64>; 3]> {
        let mut phases = [Histogram::new(3)?, Histogram::new(3)?, Histogram::new(3)?];
        for sample in &self.samples {
            let phase = if sample.due + sample.took < self.began {
                0
            } else if sample.due <= self.ended {
                1
            } else {
                2
            };
            phases[phase].record(sample.took.as_nanos() as u64)?;
        }
        Ok(phases)
    }
}

/// Values are cut from noise.
struct Requests {
    random: fastrand::Rng,
    noise: Vec<u8>,
    keys: u64,
}

impl Requests {
    fn new(keys: u64, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let noise = std::iter::repeat_with(|| random.u8(..)).take(1 << 20).collect();
        Self { random, noise, keys }
    }

    fn set(&mut self, key: u64, request: &mut Vec<u8>) {
        let len = self.random.usize(VALUES);
        let from = self.random.usize(..self.noise.len() - len);
        let value = &self.noise[from..from + len];
        let key = format!("key:{key:012}");
        request.extend(format!("*3\r\n$3\r\nSET\r\n${}\r\n{key}\r\n${len}\r\n", key.len()).bytes());
        request.extend(value);
        request.extend(b"\r\n");
    }

    fn set_any(&mut self, request: &mut Vec<u8>) {
        let key = self.random.u64(..self.keys);
        self.set(key, request);
    }
}

/// Sets all keys, many at a time.
pub(crate) fn fill(port: u16, keys: u64) -> Result<()> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    let mut requests = Requests::new(keys, 1);
    let (mut bytes, mut replies) = (Vec::new(), Vec::new());
    let all: Vec<u64> = (0..keys).collect();
    for keys in all.chunks(200) {
        bytes.clear();
        keys.iter().for_each(|&key| requests.set(key, &mut bytes));
        stream.write_all(&bytes)?;
        replies.resize(keys.len() * OK.len(), 0);
        stream.read_exact(&mut replies)?;
        ensure!(replies.chunks(OK.len()).all(|reply| reply == OK), "a key could not be set");
    }
    Ok(())
}

struct Connection {
    stream: TcpStream,
    /// When what it waits for was due.
    due: Option<Duration>,
}

impl Load {
    /// Loads a server, and has it save in the middle.
    pub(crate) fn during_a_save(&self, port: u16) -> Result<Measured> {
        let stop = AtomicBool::new(false);
        let start = Instant::now();
        thread::scope(|scope| {
            let load = scope.spawn(|| self.run(port, start, &stop));
            let saved = self.save(port, start);
            stop.store(true, Ordering::Relaxed);
            let samples = load.join().expect("it did not panic")?;
            let (began, ended) = saved?;
            Ok(Measured { samples, began, ended })
        })
    }

    fn save(&self, port: u16, start: Instant) -> Result<(Duration, Duration)> {
        let mut control = BufReader::new(TcpStream::connect(("127.0.0.1", port))?);
        thread::sleep(self.margin);
        let began = start.elapsed();
        let answer = ask(&mut control, "BGSAVE")?;
        ensure!(answer.starts_with('+'), "BGSAVE: {answer}");
        let over = loop {
            let info = ask(&mut control, "INFO persistence")?;
            if info.contains("rdb_bgsave_in_progress:0") {
                break info;
            }
            thread::sleep(LOOK);
        };
        let ended = start.elapsed();
        ensure!(over.contains("rdb_last_bgsave_status:ok"), "the save failed: {}", info(port)?);
        thread::sleep(self.margin);
        Ok((began, ended))
    }

    fn run(&self, port: u16, start: Instant, stop: &AtomicBool) -> Result<Vec<Sample>> {
        // What is measured is the server, as far as this may be had.
        let _ = setpriority_process(None, -10);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut connections = Vec::new();
        for number in 0..self.connections {
            let stream = TcpStream::connect(("127.0.0.1", port))?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(&epoll, &stream, data, epoll::EventFlags::IN)?;
            connections.push(Connection { stream, due: None });
        }
        let mut idle: Vec<usize> = (0..self.connections).collect();
        let mut requests = Requests::new(self.keys, 2);
        let (mut samples, mut events, mut bytes) = (Vec::new(), Vec::with_capacity(64), Vec::new());
        let mut sent = 0;
        while !stop.load(Ordering::Relaxed) || idle.len() < self.connections {
            while let Some(due) = self.due(sent, start.elapsed()) {
                let goes_on = !stop.load(Ordering::Relaxed);
                let Some(number) = goes_on.then(|| idle.pop()).flatten() else { break };
                bytes.clear();
                requests.set_any(&mut bytes);
                connections[number].send(&bytes, due)?;
                sent += 1;
            }
            let due = self.next_due(sent).saturating_sub(start.elapsed());
            let timeout = if due.is_zero() { BURST } else { due };
            let timeout =
                Timespec { tv_sec: 0, tv_nsec: timeout.as_nanos().min(999_999_999) as i64 };
            events.clear();
            epoll::wait(&epoll, spare_capacity(&mut events), Some(&timeout))?;
            for event in events.drain(..) {
                let number = event.data.u64() as usize;
                let due = connections[number].receive()?;
                samples.push(Sample { due, took: start.elapsed() - due });
                idle.push(number);
            }
        }
        Ok(samples)
    }

    /// When the request of that number was due, if it is by now.
    fn due(&self, number: u64, now: Duration) -> Option<Duration> {
        if self.rate == 0 {
            return Some(now);
        }
        Some(self.next_due(number)).filter(|&due| due <= now)
    }

    fn next_due(&self, number: u64) -> Duration {
        if self.rate == 0 {
            return Duration::ZERO;
        }
        let exact = u128::from(number) * 1_000_000_000 / u128::from(self.rate);
        let burst = BURST.as_nanos();
        Duration::from_nanos(((exact / burst + 1) * burst) as u64)
    }
}

impl Connection {
    fn send(&mut self, request: &[u8], due: Duration) -> Result<()> {
        self.due = Some(due);
        // One request always fits the socket's buffer.
        self.stream.write_all(request).context("SET")
    }

    /// Takes the reply that has come.
    fn receive(&mut self) -> Result<Duration> {
        let mut reply = [0; 64];
        let len = match self.stream.read(&mut reply) {
            Ok(len) => len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => bail!("no reply came"),
            Err(error) => return Err(error).context("SET"),
        };
        let reply = reply[..len].escape_ascii();
        ensure!(len == OK.len() && reply.to_string().starts_with("+OK"), "SET: {reply}");
        self.due.take().context("a reply that no request waits for")
    }
}
