//! How long its last fork took, of a server that can be asked: Redis, and what is descended of it.
//!
//! A server is asked over TCP on the loopback, without a password. The tender may be root, and the server may be
//! anything that calls itself Redis. So no name that the server chose is followed, as a path of a socket would be: such a
//! name may lead to a socket that only root may use. And nothing is written before the other end of the connection is
//! a descriptor of that server. All of it together has one deadline, and the answer has a limit of bytes.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hugekit_machine::processes::ProcessFolder;

/// Parts of the names of such servers.
const NAMES: [&str; 3] = ["redis", "valkey", "keydb"];

const REQUEST: &[u8] = b"INFO stats\r\n";
const FIGURE: &str = "latest_fork_usec:";

/// The answer has some 3 KiB.
const MOST: usize = 64 << 10;

/// For everything: servers that answer at all do so within a millisecond.
const PATIENCE: Duration = Duration::from_millis(300);

/// Between two looks whether the server has accepted.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// Returns whether a program of this name may be such a server.
pub(crate) fn is_server(name: &str) -> bool {
    NAMES.iter().any(|part| name.contains(part))
}

/// `None` of a process that does not say.
pub(crate) fn last_fork(server: &ProcessFolder) -> Option<Duration> {
    let deadline = Instant::now() + PATIENCE;
    // In another namespace, the same address is another server's here.
    if !is_in_own_network(server) {
        return None;
    }
    let own = sockets(server);
    let listening = table(server, |row| row.is_listening && own.contains(&row.inode));
    let addresses = listening.into_iter().filter_map(|row| on_the_loopback(row.local));
    addresses
        .take_while(|_| Instant::now() < deadline)
        .find_map(|address| ask_at(server, address, deadline))
}

fn is_in_own_network(server: &ProcessFolder) -> bool {
    let own = std::fs::read_link("/proc/self/ns/net").ok();
    own.is_some() && own == server.link("ns/net").ok().map(Into::into)
}

/// Inodes of the sockets that it has open.
fn sockets(server: &ProcessFolder) -> HashSet<u64> {
    let descriptors = server.numbers("fd").unwrap_or_default();
    let links = descriptors.iter().filter_map(|number| server.link(&format!("fd/{number}")).ok());
    links.filter_map(|link| socket(&link)).collect()
}

/// `socket:[INODE]`
fn socket(link: &OsStr) -> Option<u64> {
    let inode = link.as_bytes().strip_prefix(b"socket:[")?.strip_suffix(b"]")?;
    std::str::from_utf8(inode).ok()?.parse().ok()
}

/// A socket, in a line of `/proc/PID/net/tcp`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Row {
    local: SocketAddr,
    remote: SocketAddr,
    is_listening: bool,
    /// 0 of a connection that was not accepted yet.
    inode: u64,
}

impl Row {
    /// `NUMBER: LOCAL REMOTE STATE QUEUES TIMER RETRANSMITTED UID TIMEOUT INODE ...`
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace().skip(1);
        let (local, remote) = (address(words.next()?)?, address(words.next()?)?);
        let is_listening = words.next()? == "0A";
        Some(Self { local, remote, is_listening, inode: words.nth(5)?.parse().ok()? })
    }
}

/// Words of 32 bits in the order of this machine's bytes, each in hexadecimal digits, and the port.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.split_once(':')?;
    let word =
        |at: usize| u32::from_str_radix(ip.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    let ip: IpAddr = match ip.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?].concat();
            Ipv6Addr::from(<[u8; 16]>::try_from(words).ok()?).into()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

/// The sockets of its network that are wanted.
fn table(server: &ProcessFolder, is_wanted: impl Fn(&Row) -> bool) -> Vec<Row> {
    let files = ["net/tcp", "net/tcp6"].into_iter().filter_map(|name| server.file(name).ok());
    let lines = files.flat_map(|file| BufReader::new(file).lines().map_while(Result::ok));
    lines.filter_map(|line| Row::parse(&line)).filter(is_wanted).collect()
}

/// Returns the loopback address of a server that listens at this address.
fn on_the_loopback(address: SocketAddr) -> Option<SocketAddr> {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip if ip.is_loopback() => ip,
        _ => return None,
    };
    Some(SocketAddr::new(ip, address.port()))
}

fn ask_at(server: &ProcessFolder, address: SocketAddr, deadline: Instant) -> Option<Duration> {
    let stream = TcpStream::connect_timeout(&address, left(deadline).ok()?).ok()?;
    let own = stream.local_addr().ok()?;
    while !has_accepted(server, address, own) {
        sleep(LOOK_AGAIN.min(left(deadline).ok()?));
    }
    ask(Bounded { stream, deadline })
}

/// Returns whether the other end of a connection is a descriptor of the server.
fn has_accepted(server: &ProcessFolder, address: SocketAddr, from: SocketAddr) -> bool {
    let end = table(server, |row| (row.local, row.remote) == (address, from)).pop();
    end.is_some_and(|end| end.inode != 0 && sockets(server).contains(&end.inode))
}

/// Time until a deadline, more than none.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// A connection on which nothing waits past a deadline.
struct Bounded {
    stream: TcpStream,
    deadline: Instant,
}

impl Read for Bounded {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(left(self.deadline)?))?;
        self.stream.read(to)
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(left(self.deadline)?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

fn ask(mut stream: impl Read + Write) -> Option<Duration> {
    stream.write_all(REQUEST).ok()?;
    let (mut said, mut part) = (Vec::new(), [0; 4096]);
    while said.len() < MOST {
        let count = stream.read(&mut part).ok().filter(|&count| count > 0)?;
        said.extend_from_slice(&part[..count]);
        if let Some(figure) = figure(&said) {
            return Some(figure);
        }
    }
    None
}

/// The figure, once its line is whole.
fn figure(said: &[u8]) -> Option<Duration> {
    let said = String::from_utf8_lossy(said);
    let (_, behind) = said.split_once(FIGURE)?;
    let (micros, _) = behind.split_once('\r')?;
    micros.parse().ok().map(Duration::from_micros)
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::net::TcpListener;
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;

    use super::*;

    /// Says one part after the other, and then nothing more.
    struct Server(VecDeque<Vec<u8>>);

    impl Read for Server {
        fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
            let Some(said) = self.0.pop_front() else { return Ok(0) };
            to[..said.len()].copy_from_slice(&said);
            Ok(said.len())
        }
    }

    impl Write for Server {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            assert_eq!(bytes, REQUEST);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn told(parts: &[&[u8]]) -> Option<Duration> {
        ask(Server(parts.iter().map(|part| part.to_vec()).collect()))
    }

    #[test]
    fn figure_is_found_in_an_answer_in_pieces_and_in_no_other() {
        let whole = [&b"$99\r\n# Stats\r\nlatest_fork_u"[..], b"sec:12", b"34\r\nmore:1\r\n"];
        assert_eq!(told(&whole), Some(Duration::from_micros(1234)));
        assert_eq!(told(&whole[..2]), None);
        assert_eq!(told(&[b"-NOAUTH Authentication required.\r\n"]), None);
        assert_eq!(told(&[b"latest_fork_usec:a lot\r\n"]), None);
        assert_eq!(told(&[b"latest_fork_usec:99999999999999999999999\r\n"]), None);
    }

    #[test]
    fn answer_without_end_is_not_read_to_its_end() {
        let many = vec![b'x'; 4096];
        let mut server = Server(std::iter::repeat_n(many, 100).collect());
        assert_eq!(ask(&mut server), None);
        assert!(server.0.len() >= 84, "{}", server.0.len());
    }

    /// A server's way to serve the only connection that it gets.
    type Serve = fn(&mut TcpStream) -> io::Result<()>;

    /// A server of this process, and its address. It tells what it read before it was left alone.
    fn serving(serve: Serve) -> (SocketAddr, Receiver<usize>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let (read, told) = channel();
        thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut request = [0; 64];
            let count = stream.read(&mut request).unwrap_or(0);
            while serve(&mut stream).is_ok() {}
            let _ = read.send(count);
        });
        (address, told)
    }

    fn rest(_: &mut TcpStream) -> io::Result<()> {
        thread::sleep(PATIENCE * 3);
        Err(io::ErrorKind::TimedOut.into())
    }

    /// The server answers as it likes; the question ends at its deadline, give or take a busy machine.
    #[test]
    fn server_that_freezes_at_any_step_is_left_alone() {
        let own = ProcessFolder::open(std::process::id() as i32).unwrap();
        let ask = |address| {
            let began = Instant::now();
            let told = ask_at(&own, address, began + PATIENCE);
            assert!(began.elapsed() < PATIENCE * 20, "{:?}", began.elapsed());
            told
        };
        let steps: [(Serve, Option<u64>); 5] = [
            (rest, None),
            (
                |stream| {
                    stream.write_all(b"$99\r\nlatest_fork_usec:12")?;
                    rest(stream)
                },
                None,
            ),
            (
                |stream| {
                    thread::sleep(Duration::from_millis(10));
                    stream.write_all(b"x")
                },
                None,
            ),
            (|stream| stream.write_all(&[b'x'; 4096]), None),
            (
                |stream| {
                    stream.write_all(b"latest_fork_usec:12\r\n")?;
                    rest(stream)
                },
                Some(12),
            ),
        ];
        for (serve, expected) in steps {
            let (address, read) = serving(serve);
            assert_eq!(ask(address), expected.map(Duration::from_micros));
            assert_eq!(read.recv().unwrap(), REQUEST.len());
        }
        // One that accepts no connection is sent nothing, however many wait: the first ones in its queue, the others for
        // a place in it.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let address = listener.local_addr().unwrap();
        for _ in 0..4 {
            assert_eq!(ask(address), None);
        }
        let (mut first, _) = listener.accept().unwrap();
        assert_eq!(first.read(&mut [0; 64]).unwrap(), 0, "not a byte was written");
    }

    #[test]
    fn other_process_that_accepts_is_sent_nothing() {
        let mut other = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let folder = ProcessFolder::open(other.id() as i32).unwrap();
        let (address, read) = serving(|_| Err(io::ErrorKind::Other.into()));
        assert_eq!(ask_at(&folder, address, Instant::now() + PATIENCE), None);
        assert_eq!(read.recv().unwrap(), 0);
        other.kill().unwrap();
        other.wait().unwrap();
    }

    #[test]
    fn own_network_and_own_sockets_are_known() {
        let own = ProcessFolder::open(std::process::id() as i32).unwrap();
        assert!(is_in_own_network(&own));
        let listener = TcpListener::bind((Ipv6Addr::LOCALHOST, 0))
            .or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))
            .unwrap();
        let sockets = sockets(&own);
        let local = listener.local_addr().unwrap();
        let found = table(&own, |row| row.local == local);
        assert!(found.len() == 1 && found[0].is_listening, "{found:?}");
        assert!(sockets.contains(&found[0].inode));
        assert_eq!(socket(OsStr::from_bytes(b"/tmp/\xff")), None);
        assert_eq!(Row::parse("  sl  local_address rem_address   st tx_queue"), None);
    }

    #[test]
    fn server_that_listens_everywhere_is_reachable_over_the_loopback_and_no_other_address_is() {
        let reachable = |address: &str| {
            on_the_loopback(address.parse().unwrap()).map(|address| address.to_string())
        };
        assert_eq!(reachable("0.0.0.0:6379").as_deref(), Some("127.0.0.1:6379"));
        assert_eq!(reachable("[::]:6379").as_deref(), Some("[::1]:6379"));
        assert_eq!(reachable("127.3.2.1:7").as_deref(), Some("127.3.2.1:7"));
        assert_eq!(reachable("10.0.0.1:1"), None);
    }
}
