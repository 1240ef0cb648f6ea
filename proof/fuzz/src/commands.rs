//! Commands as clients send them, against a map.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::store::lend_store;
use kv_store::budget::{Budget, Clients};
use kv_store::commands::{Database, Session};
use kv_store::folder::Folder;
use kv_store::reply::Reply;
use kv_store::request::{Requests, Words, number};
use kv_store::save::{Policy, Saver};

/// Bytes of memory that a request, and all clients, may take.
const LONGEST: usize = 1 << 20;
const MOST: usize = 2 << 20;

/// No time passes, so nothing expires.
const NOW: u64 = 1_000_000;

/// Requests that write files or end the process.
const LEFT_OUT: [&[u8]; 3] = [b"save", b"bgsave", b"shutdown"];

const NEVER: Policy = Policy { save_every: 0, chain_deltas: 0 };

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Each request is answered once, and what is kept is what a map would keep.
pub(crate) fn run(bytes: &[u8]) {
    lend_store(|mut store| {
        let folder = tempfile::tempdir().expect("a folder");
        let folder = Folder::open(folder.path()).expect("a lock in it");
        store.now = NOW;
        let saver = Saver::new(folder, NEVER, &mut store).expect("an empty folder");
        let database = Database { store, saver, budget: Arc::new(Budget::new(Clients::new(MOST))) };
        let (model, session, reply) = (Model::new(), Session::default(), Reply::default());
        let mut asked = Asked { database, session, model, is_known: true, reply };
        asked.serve(bytes);
        if asked.is_known {
            asked.compare();
        }
        (asked.database.store, ())
    });
}

struct Asked {
    database: Database,
    session: Session,
    model: Model,
    /// Until a MULTI, whose effects the model does not have.
    is_known: bool,
    /// Replies are in one protocol until HELLO changes it.
    reply: Reply,
}

impl Asked {
    fn serve(&mut self, bytes: &[u8]) {
        let mut requests = Requests::new(bytes, LONGEST);
        while let Ok(words) = requests.next(|_| Ok(())) {
            let name = words[0].to_ascii_lowercase();
            if LEFT_OUT.contains(&name.as_slice()) {
                continue;
            }
            let reply = self.ask(words.clone());
            self.is_known &= name != b"multi";
            if self.is_known {
                self.model_takes(&name, &words[1..], &reply);
            }
        }
    }

    fn ask(&mut self, words: Words) -> Vec<u8> {
        let asked = words.join(&b' ').escape_ascii().to_string();
        self.database.run(&mut self.session, words, &mut self.reply);
        let bytes = std::mem::take(&mut self.reply.bytes);
        assert_eq!(replies(&bytes), 1, "{asked}: {}", bytes.escape_ascii());
        bytes
    }

    /// The change that a successful request makes, or the answer that one must give that only reads.
    fn model_takes(&mut self, name: &[u8], arguments: &[Vec<u8>], reply: &[u8]) {
        let is_done = reply == b"+OK\r\n";
        match name {
            b"set" if is_done => self.keep(&arguments[0], &arguments[1]),
            b"mset" if is_done => {
                arguments.as_chunks::<2>().0.iter().for_each(|[key, value]| self.keep(key, value));
            }
            b"incr" | b"incrby" | b"decr" | b"decrby" if reply[0] == b':' => {
                self.keep(&arguments[0], &reply[1..reply.len() - 2]);
            }
            // No time passes: it goes at once, or stays.
            b"expire" | b"pexpire"
                if reply == b":1\r\n" && number(&arguments[1]).is_some_and(|time| time <= 0) =>
            {
                assert!(self.model.remove(&arguments[0]).is_some());
            }
            b"keys" if reply[0] == b'*' && arguments[0] == b"*" => {
                assert!(reply.starts_with(format!("*{}\r\n", self.model.len()).as_bytes()));
            }
            b"del" | b"unlink" if reply[0] == b':' => {
                let gone = arguments.iter().filter(|key| self.model.remove(*key).is_some()).count();
                assert_eq!(reply, format!(":{gone}\r\n").as_bytes());
            }
            b"flushall" | b"flushdb" if is_done => self.model.clear(),
            b"exists" if reply[0] == b':' => {
                let there = arguments.iter().filter(|key| self.model.contains_key(*key)).count();
                assert_eq!(reply, format!(":{there}\r\n").as_bytes());
            }
            _ => {}
        }
    }

    fn keep(&mut self, key: &[u8], value: &[u8]) {
        self.model.insert(key.to_vec(), value.to_vec());
    }

    fn compare(&mut self) {
        assert_eq!(
            self.ask(vec![b"DBSIZE".to_vec()]),
            format!(":{}\r\n", self.model.len()).as_bytes()
        );
        for (key, value) in std::mem::take(&mut self.model) {
            let expected = [format!("${}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
            assert!(self.ask(vec![b"GET".to_vec(), key]) == expected);
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
