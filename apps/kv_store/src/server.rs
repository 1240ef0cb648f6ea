//! A thread for each client. One lock makes every command one step.

use std::io::{self, ErrorKind, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, SystemTime};

use parking_lot::{Mutex, MutexGuard};

use super::budget::Budget;
use super::commands::{Database, Session};
use super::reply::Reply;
use super::request::Requests;

/// Replies to pipelined requests are sent together, up to this many bytes.
const TOGETHER: usize = 64 << 10;

#[derive(Debug)]
pub struct Server {
    database: Mutex<Database>,
    budget: Arc<Budget>,
}

impl Server {
    pub fn new(database: Database) -> Self {
        Self { budget: Arc::clone(&database.budget), database: Mutex::new(database) }
    }

    /// The database, as of now.
    pub fn lock(&self) -> MutexGuard<'_, Database> {
        let mut database = self.database.lock();
        let Database { store, saver, .. } = &mut *database;
        store.now = milliseconds_since_1970();
        saver.look(store);
        database
    }

    /// Accepts clients until the process ends.
    pub fn accept(&'static self, listener: &TcpListener) {
        loop {
            if let Err(error) = listener.accept().and_then(|(stream, _)| self.admit(stream)) {
                eprintln!("a client was turned away: {error}");
                // There may be too many descriptors or threads until a client leaves.
                thread::sleep(Duration::from_millis(10));
            }
        }
    }

    fn admit(&'static self, stream: TcpStream) -> io::Result<()> {
        stream.set_nodelay(true)?;
        let id = self.budget.lock().admit(stream.try_clone()?);
        let serve = move || {
            // An error means that the client is gone.
            let _ = self.serve(stream, id);
            self.budget.lock().close(id);
        };
        thread::Builder::new().spawn(serve).map(drop).inspect_err(|_| self.budget.lock().close(id))
    }

    fn serve(&self, mut stream: TcpStream, id: u64) -> io::Result<()> {
        let mut requests = Requests::new(stream.try_clone()?, self.budget.lock().most);
        let (mut session, mut reply) = (Session::default(), Reply::default());
        let hold = |bytes| self.budget.lock().hold(id, bytes);
        while !reply.closes {
            let held = session.held + reply.bytes.capacity();
            match requests.next(|bytes| hold(held + bytes)) {
                Ok(words) => self.lock().run(&mut session, words, &mut reply),
                Err(error) if error.kind() == ErrorKind::InvalidData => {
                    reply.line('-', format!("ERR Protocol error: {error}"));
                    reply.closes = true;
                }
                Err(error) => return Err(error),
            }
            hold(session.held + reply.bytes.capacity())?;
            if !requests.has_more() || reply.bytes.len() > TOGETHER || reply.closes {
                stream.write_all(&reply.bytes)?;
                reply.bytes.clear();
                reply.bytes.shrink_to(TOGETHER);
                hold(session.held + reply.bytes.capacity())?;
            }
        }
        Ok(())
    }
}

pub fn milliseconds_since_1970() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}
