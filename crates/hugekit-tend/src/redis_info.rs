//! How long its last fork took, of a server that can be asked: Redis, and what is descended of it.
//!
//! It is asked over its own socket, without a password; one that wants one, or is in a container, is not asked. The
//! answer may be anything: so many bytes of it are read, for so long.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use procfs::net::TcpState;
use procfs::process::{FDTarget, Process};

use crate::target::Target;

/// Parts of the names of such servers.
const NAMES: [&str; 3] = ["redis", "valkey", "keydb"];

const REQUEST: &[u8] = b"INFO stats\r\n";
const FIGURE: &str = "latest_fork_usec:";

/// The answer has some 3 KiB.
const MOST: usize = 64 << 10;

const PATIENCE: Duration = Duration::from_millis(300);

/// `None` of a process that is no such server, or does not say.
pub(crate) fn last_fork(target: &Target) -> Option<Duration> {
    if !NAMES.iter().any(|name| target.name().contains(name)) {
        return None;
    }
    let process = target.process();
    let sockets = sockets(process);
    let by_path = || paths(process, &sockets).into_iter().find_map(|path| ask_at_path(&path));
    let by_address = || addresses(process, &sockets).into_iter().find_map(ask_at_address);
    // In a container, the same name or address is another server's here.
    let told = is_in_own(process, "mnt").then(by_path).flatten();
    told.or_else(|| is_in_own(process, "net").then(by_address).flatten())
}

/// Whether it is in the caller's namespace of this kind.
fn is_in_own(process: &Process, kind: &str) -> bool {
    let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok();
    let own = of("self");
    own.is_some() && own == of(&process.pid().to_string())
}

/// Inodes of the sockets that it has open.
fn sockets(process: &Process) -> HashSet<u64> {
    let Ok(descriptors) = process.fd() else { return HashSet::new() };
    let socket = |target| match target {
        FDTarget::Socket(inode) => Some(inode),
        _ => None,
    };
    descriptors.flatten().filter_map(|descriptor| socket(descriptor.target)).collect()
}

fn paths(process: &Process, sockets: &HashSet<u64>) -> Vec<PathBuf> {
    let all = process.unix().unwrap_or_default();
    let own = all.into_iter().filter(|socket| sockets.contains(&socket.inode));
    own.filter_map(|socket| socket.path).filter(|path| path.is_absolute()).collect()
}

fn addresses(process: &Process, sockets: &HashSet<u64>) -> Vec<SocketAddr> {
    let all = process.tcp().into_iter().chain(process.tcp6()).flatten();
    let own = all.filter(|entry| entry.state == TcpState::Listen && sockets.contains(&entry.inode));
    own.map(|entry| reachable(entry.local_address)).collect()
}

/// One that listens everywhere is asked over the loopback.
fn reachable(address: SocketAddr) -> SocketAddr {
    let loopback: IpAddr = match address {
        SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
        SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
    };
    let ip = if address.ip().is_unspecified() { loopback } else { address.ip() };
    SocketAddr::new(ip, address.port())
}

fn ask_at_path(path: &std::path::Path) -> Option<Duration> {
    let stream = UnixStream::connect(path).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    ask(stream)
}

fn ask_at_address(address: SocketAddr) -> Option<Duration> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.set_write_timeout(Some(PATIENCE)).ok()?;
    ask(stream)
}

fn ask(mut stream: impl Read + Write) -> Option<Duration> {
    stream.write_all(REQUEST).ok()?;
    let (began, mut said, mut part) = (Instant::now(), Vec::new(), [0; 4096]);
    while said.len() < MOST && began.elapsed() < PATIENCE {
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
    use std::io;

    use super::*;

    /// Says so many things, one for each read.
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

    #[test]
    fn own_namespaces_are_known() {
        let own = Process::myself().unwrap();
        assert!(is_in_own(&own, "net") && is_in_own(&own, "mnt") && !is_in_own(&own, "none"));
    }

    #[test]
    fn server_that_listens_everywhere_is_reachable_over_the_loopback() {
        let reachable = |address: &str| reachable(address.parse().unwrap()).to_string();
        assert_eq!(reachable("0.0.0.0:6379"), "127.0.0.1:6379");
        assert_eq!(reachable("[::]:6379"), "[::1]:6379");
        assert_eq!(reachable("10.0.0.1:1"), "10.0.0.1:1");
    }
}
