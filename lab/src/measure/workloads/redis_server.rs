//! A real `redis-server`, started for an experiment: filled, written to, and asked to save.

use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use redis::{Client, Cmd, Connection, InfoDict, Pipeline, RedisError};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::measure::workloads::forking::end_with_this_process;
use crate::measure::{LabError, Observer};

const NAME: &str = "redis-server";

/// The longest wait for the first answer of a server, or for any other.
const PATIENCE: Duration = Duration::from_secs(30);

/// A save of the largest state, on a machine that does something else.
const LONGEST_SAVE: Duration = Duration::from_secs(300);

const PAUSE: Duration = Duration::from_millis(20);

/// Bytes of a value.
const VALUE: usize = 1000;

/// Requests that are sent together where it has to be fast.
const TOGETHER: usize = 256;

/// Killed when dropped, and its files are removed.
#[derive(Debug)]
pub struct RedisServer {
    process: Child,
    folder: TempDir,
    keys: usize,
}

impl RedisServer {
    /// The version that would be started; why none is, otherwise.
    pub fn version() -> io::Result<String> {
        // Reading two pipes at once needs ioctl(2), which std takes for granted.
        let said = Command::new(NAME).arg("--version").stderr(Stdio::null()).output()?;
        Ok(hugekit_machine::plain(String::from_utf8_lossy(&said.stdout).trim()))
    }

    /// Without data, with these options beside those that keep it from doing anything unasked.
    pub fn start(options: &[&str]) -> Result<Self, LabError> {
        Self::start_with(options, &[])
    }

    /// Like [`start`](Self::start), with these variables of the environment.
    pub fn start_with(options: &[&str], environment: &[(&str, &str)]) -> Result<Self, LabError> {
        let folder = tempfile::tempdir().map_err(failed)?;
        let mut command = Command::new(NAME);
        command.envs(environment.iter().copied());
        command.args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"]);
        command.arg(folder.path().join("socket")).arg("--dir").arg(folder.path()).args(options);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        end_with_this_process(&mut command, Signal::KILL);
        let process = command.spawn().map_err(failed)?;
        let server = Self { process, folder, keys: 0 };
        let since = Instant::now();
        while let Err(error) = server.connect() {
            if since.elapsed() > PATIENCE {
                return Err(error);
            }
            sleep(PAUSE);
        }
        Ok(server)
    }

    /// Starts a replica of a server that was started with this port, and waits until it has all data.
    pub fn start_replica(port: u16, observer: &dyn Observer) -> Result<Self, LabError> {
        let replica = Self::start(&["--replicaof", "127.0.0.1", &port.to_string()])?;
        let since = Instant::now();
        loop {
            observer.check()?;
            let info = info(&mut replica.connect()?, "replication")?;
            let status: Option<String> = info.get("master_link_status");
            if status.as_deref() == Some("up") {
                return Ok(replica);
            }
            if since.elapsed() > LONGEST_SAVE {
                return Err(failed(io::ErrorKind::TimedOut.into()));
            }
            sleep(PAUSE);
        }
    }

    /// Its number.
    pub fn pid(&self) -> i32 {
        self.process.id() as i32
    }

    /// The number of keys.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// Another client of it. No answer is waited for without end.
    pub fn connect(&self) -> Result<Connection, LabError> {
        let socket: PathBuf = self.folder.path().join("socket");
        let client = Client::open(format!("unix://{}", socket.display())).map_err(refused)?;
        let connection = client.get_connection_with_timeout(PATIENCE).map_err(refused)?;
        connection.set_read_timeout(Some(PATIENCE)).map_err(refused)?;
        connection.set_write_timeout(Some(PATIENCE)).map_err(refused)?;
        Ok(connection)
    }

    /// Sets keys until it says that it uses so much memory.
    pub fn fill(&mut self, bytes: usize, observer: &dyn Observer) -> Result<(), LabError> {
        let mut connection = self.connect()?;
        while figure(&mut connection, "memory", "used_memory")? < bytes as u64 {
            observer.check()?;
            // Asked once for each 16 MiB or so.
            for _ in 0..64 {
                set_many(&mut connection, (self.keys..).take(TOGETHER))?;
                self.keys += TOGETHER;
            }
        }
        Ok(())
    }

    /// Forks a child that saves, and waits for its end.
    pub fn save(&self) -> Result<(), LabError> {
        let mut connection = self.connect()?;
        redis::cmd("BGSAVE").query::<String>(&mut connection).map_err(refused)?;
        let since = Instant::now();
        while figure(&mut connection, "persistence", "rdb_bgsave_in_progress")? > 0 {
            if since.elapsed() > LONGEST_SAVE {
                return Err(failed(io::ErrorKind::TimedOut.into()));
            }
            sleep(PAUSE);
        }
        Ok(())
    }

    /// Deletes all keys, and waits for it.
    pub fn flush(&self) -> Result<(), LabError> {
        redis::cmd("FLUSHALL").arg("SYNC").exec(&mut self.connect()?).map_err(refused)
    }

    /// Bytes that the server counts as used by its data.
    pub fn used_memory(&self) -> Result<u64, LabError> {
        figure(&mut self.connect()?, "memory", "used_memory")
    }

    /// Bytes that the server's allocator takes for resident.
    pub fn allocator_resident(&self) -> Result<u64, LabError> {
        figure(&mut self.connect()?, "memory", "allocator_resident")
    }

    /// The time of the server's last fork, which the server itself measured.
    pub fn last_fork(&self) -> Result<Duration, LabError> {
        let micros = figure(&mut self.connect()?, "stats", "latest_fork_usec")?;
        Ok(Duration::from_micros(micros))
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sets one key, and waits for the answer.
pub fn set(connection: &mut Connection, key: usize) -> Result<(), LabError> {
    set_command(key).exec(connection).map_err(refused)
}

/// Sets keys, the requests sent together; how many.
pub fn set_many(
    connection: &mut Connection,
    keys: impl Iterator<Item = usize>,
) -> Result<usize, LabError> {
    let mut requests = Pipeline::with_capacity(TOGETHER);
    keys.for_each(|key| {
        requests.add_command(set_command(key)).ignore();
    });
    requests.exec(connection).map_err(refused)?;
    Ok(requests.len())
}

/// Random keys of a server, as many as are sent together.
pub fn some_keys(keys: usize, random: &mut fastrand::Rng) -> impl Iterator<Item = usize> + '_ {
    std::iter::repeat_with(move || random.usize(..keys)).take(TOGETHER)
}

/// The value compresses well: what a save writes does not wait for a disk.
fn set_command(key: usize) -> Cmd {
    let mut command = redis::cmd("SET");
    command.arg(format!("key:{key}")).arg(&[b'v'; VALUE]);
    command
}

/// A number of `INFO`.
fn figure(connection: &mut Connection, section: &str, name: &'static str) -> Result<u64, LabError> {
    info(connection, section)?
        .get(name)
        .ok_or_else(|| failed(io::Error::other(format!("INFO has no {name}"))))
}

fn info(connection: &mut Connection, section: &str) -> Result<InfoDict, LabError> {
    redis::cmd("INFO").arg(section).query(connection).map_err(refused)
}

pub(super) fn refused(error: RedisError) -> LabError {
    failed(io::Error::other(error))
}

fn failed(source: io::Error) -> LabError {
    LabError::Program { name: NAME, source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hugekit_machine::size::MIB;

    #[test]
    fn server_is_filled_saves_and_tells_its_fork() {
        // Nothing to start without one.
        if RedisServer::version().is_err() {
            return;
        }
        let mut server = RedisServer::start(&[]).unwrap();
        server.fill(8 * MIB, &crate::measure::Quiet).unwrap();
        assert!(server.keys() * VALUE > 4 * MIB && server.keys() * VALUE < 24 * MIB);
        let mut connection = server.connect().unwrap();
        set(&mut connection, 0).unwrap();
        let keys = figure(&mut connection, "stats", "total_commands_processed").unwrap();
        assert!(keys as usize > server.keys());
        server.save().unwrap();
        assert!(server.last_fork().unwrap() > Duration::ZERO);
        assert!(server.folder.path().join("dump.rdb").exists());
    }
}
