//! Commands as clients send them, against a map.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::store::lend_store;
use kv_store::commands::{self, Clients, Database};
use kv_store::folder::Folder;
use kv_store::resp::{Input, Limits, Reply};
use kv_store::save::{Policy, Saver};

const LIMITS: Limits = Limits { bulk: 1 << 20, arguments: 1000, request: 1 << 20 };

/// Bytes of one reply's strings.
const ROOM: usize = 2 << 20;

/// No time passes, so that nothing expires.
const NOW: u64 = 1_000_000;

/// Requests that a client may not make on the machine of a fuzzer: writing files, and ending the server.
const LEFT_OUT: [&[u8]; 3] = [b"save", b"bgsave", b"shutdown"];

const NEVER: Policy = Policy { every: 0, deltas: 0, percent: 0 };

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Each request is answered once, and what is kept is what a map would keep.
pub(crate) fn run(bytes: &[u8]) {
    lend_store(|store| {
        let database = database(store);
        let mut session =
            Session { database, model: Model::new(), is_known: true, reply: Reply::default() };
        session.serve(bytes);
        if session.is_known {
            session.compare();
        }
        (session.database.store, ())
    });
}

fn database(store: kv_store::store::Store) -> Database {
    let saver = Saver::new(folder(), 0, NEVER, store.changes(), NOW);
    let mut clients = Clients::new(usize::MAX);
    clients.current = clients.admit(None);
    let (port, commands, started) = (0, 0, Instant::now());
    let most_value = LIMITS.bulk;
    Database { store, saver, now: NOW, clients, port, started, commands, most_value }
}

/// A folder that nothing is written to.
fn folder() -> Folder {
    let folder = tempfile::tempdir().expect("a folder");
    Folder::open(folder.path()).expect("a lock in it")
}

struct Session {
    database: Database,
    model: Model,
    /// Until a MULTI: what it has done is not followed.
    is_known: bool,
    /// Replies are in one protocol until HELLO changes it.
    reply: Reply,
}

impl Session {
    fn serve(&mut self, bytes: &[u8]) {
        let mut input = Input::default();
        input.push(bytes);
        while let Ok(true) = input.next(&LIMITS) {
            let words = input.arguments();
            let name = words[0].to_ascii_lowercase();
            if !LEFT_OUT.contains(&name.as_slice()) {
                let reply = self.ask(&words);
                self.is_known &= name != b"multi";
                if self.is_known {
                    self.model_takes(&name, &words[1..], &reply);
                }
            }
            input.done();
        }
    }

    fn ask(&mut self, words: &[&[u8]]) -> Vec<u8> {
        self.reply.begin(ROOM);
        commands::run(&mut self.database, words, &mut self.reply);
        let bytes = std::mem::take(&mut self.reply.bytes);
        assert_eq!(replies(&bytes), 1, "{:?}", bytes.escape_ascii().to_string());
        bytes
    }

    /// The change that a successful request makes, or the answer that one must give that only reads.
    fn model_takes(&mut self, name: &[u8], arguments: &[&[u8]], reply: &[u8]) {
        let is_done = reply == b"+OK\r\n";
        match name {
            b"set" if is_done => self.keep(arguments[0], arguments[1]),
            b"mset" if is_done => {
                arguments.as_chunks::<2>().0.iter().for_each(|[key, value]| self.keep(key, value));
            }
            b"incr" | b"incrby" | b"decr" | b"decrby" if reply[0] == b':' => {
                self.keep(arguments[0], &reply[1..reply.len() - 2]);
            }
            b"append" if reply[0] == b':' => {
                let value = self.model.entry(arguments[0].to_vec()).or_default();
                value.extend(arguments[1]);
                assert_eq!(reply, format!(":{}\r\n", value.len()).as_bytes());
            }
            b"strlen" if reply[0] == b':' => {
                let len = self.model.get(arguments[0]).map_or(0, Vec::len);
                assert_eq!(reply, format!(":{len}\r\n").as_bytes());
            }
            // No time passes: it goes at once, or stays.
            b"expire" | b"pexpire"
                if reply == b":1\r\n"
                    && kv_store::resp::number(arguments[1]).is_some_and(|time| time <= 0) =>
            {
                assert!(self.model.remove(arguments[0]).is_some());
            }
            b"keys" if reply[0] == b'*' && arguments[0] == b"*" => {
                assert!(reply.starts_with(format!("*{}\r\n", self.model.len()).as_bytes()));
            }
            b"del" | b"unlink" if reply[0] == b':' => {
                let gone =
                    arguments.iter().filter(|key| self.model.remove(**key).is_some()).count();
                assert_eq!(reply, format!(":{gone}\r\n").as_bytes());
            }
            b"flushall" | b"flushdb" if is_done => self.model.clear(),
            b"exists" if reply[0] == b':' => {
                let there = arguments.iter().filter(|key| self.model.contains_key(**key)).count();
                assert_eq!(reply, format!(":{there}\r\n").as_bytes());
            }
            _ => {}
        }
    }

    fn keep(&mut self, key: &[u8], value: &[u8]) {
        self.model.insert(key.to_vec(), value.to_vec());
    }

    fn compare(&mut self) {
        assert_eq!(self.ask(&[b"DBSIZE"]), format!(":{}\r\n", self.model.len()).as_bytes());
        for (key, value) in std::mem::take(&mut self.model) {
            let expected = [format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
            assert!(self.ask(&[b"GET", &key]) == expected);
        }
    }
}

/// How many whole replies these bytes are.
fn replies(mut bytes: &[u8]) -> usize {
    let mut count = 0;
    while !bytes.is_empty() {
        bytes = behind_one(bytes).expect("a reply is whole");
        count += 1;
    }
    count
}

/// The bytes behind the first reply.
fn behind_one(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.windows(2).position(|two| two == b"\r\n")?;
    let (line, mut rest) = (&bytes[1..end], &bytes[end + 2..]);
    let number = || std::str::from_utf8(line).ok()?.parse::<i64>().ok();
    match bytes[0] {
        b'+' | b'-' | b':' | b'_' => {}
        b'$' | b'=' => match usize::try_from(number()?) {
            Ok(len) => rest = rest.get(len..)?.strip_prefix(b"\r\n")?,
            Err(_) => assert_eq!(line, b"-1"),
        },
        b'*' | b'~' | b'%' => {
            let each = if bytes[0] == b'%' { 2 } else { 1 };
            for _ in 0..number()? * each {
                rest = behind_one(rest)?;
            }
        }
        _ => return None,
    }
    Some(rest)
}
