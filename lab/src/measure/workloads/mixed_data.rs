//! Data of a Redis as applications fill it: strings of 50 bytes to 20 KiB, hashes and lists. The same at each call.
//!
//! Three keys of four are strings whose lengths are log-uniform, so half of them are shorter than 1 KiB and most bytes are
//! in the longest. 15 % are hashes of 20 fields and 10 % lists of 10 elements.

use std::ops::Range;

use fastrand::Rng;
use redis::{Cmd, Connection, Pipeline};

use crate::measure::workloads::redis_server::{RedisServer, refused};
use crate::measure::{LabError, Observer};
use hugekit_machine::size::MIB;

/// The keys of this much memory of the server (`used_memory`).
const KEYS: (usize, usize) = (541_000, 2236 * MIB);

/// Lengths of a string, in bytes.
const STRING: Range<f64> = 50.0..20_480.0;

/// Lengths of a field of a hash, or of an element of a list.
const ELEMENT: Range<f64> = 20.0..1000.0;

const FIELDS: usize = 20;
const ELEMENTS: usize = 10;

/// The kinds of values repeat after this many keys.
const CYCLE: usize = 20;
/// This many keys of a cycle are strings and hashes. The rest are lists.
const STRINGS: usize = 15;
const HASHES: usize = 3;

/// Requests that are sent together.
const TOGETHER: usize = 64;

const SEED: u64 = 52;

/// Values are cut from here: random bytes, which a save cannot compress.
const POOL: usize = 1 << 20;

/// Makes requests.
#[derive(Debug)]
pub struct MixedData {
    keys: usize,
    pool: Vec<u8>,
}

/// The type of the value of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    String,
    Hash,
    List,
}

impl Kind {
    fn of(key: usize) -> Self {
        match key % CYCLE {
            ..STRINGS => Self::String,
            at if at < STRINGS + HASHES => Self::Hash,
            _ => Self::List,
        }
    }
}

impl MixedData {
    /// Data for which a server needs about this many bytes.
    pub fn new(bytes: usize) -> Self {
        let keys = (bytes as u128 * KEYS.0 as u128 / KEYS.1 as u128) as usize;
        let mut pool = vec![0; POOL];
        Rng::with_seed(SEED).fill(&mut pool);
        Self { keys: keys.next_multiple_of(CYCLE), pool }
    }

    /// The number of keys.
    pub fn keys(&self) -> usize {
        self.keys
    }

    /// Sets all keys.
    pub fn fill(&self, server: &RedisServer, observer: &dyn Observer) -> Result<(), LabError> {
        let mut connection = server.connect()?;
        for first in (0..self.keys).step_by(TOGETHER) {
            observer.check()?;
            let mut requests = Pipeline::with_capacity(TOGETHER);
            for key in first..self.keys.min(first + TOGETHER) {
                requests.add_command(self.set(key)).ignore();
            }
            requests.exec(&mut connection).map_err(refused)?;
        }
        Ok(())
    }

    fn set(&self, key: usize) -> Cmd {
        let mut random = Rng::with_seed(SEED ^ key as u64);
        let mut command = redis::cmd(match Kind::of(key) {
            Kind::String => return self.set_string(key, &mut random),
            Kind::Hash => "HSET",
            Kind::List => "RPUSH",
        });
        command.arg(name(key));
        match Kind::of(key) {
            Kind::Hash => (0..FIELDS).for_each(|field| {
                command.arg(format!("field:{field}")).arg(self.value(&ELEMENT, &mut random));
            }),
            _ => (0..ELEMENTS).for_each(|_| {
                command.arg(self.value(&ELEMENT, &mut random));
            }),
        }
        command
    }

    fn set_string(&self, key: usize, random: &mut Rng) -> Cmd {
        let mut command = redis::cmd("SET");
        command.arg(name(key)).arg(self.value(&STRING, random));
        command
    }

    /// Overwrites a random string by one of another length, and waits for the answer.
    pub fn overwrite(&self, connection: &mut Connection, random: &mut Rng) -> Result<(), LabError> {
        let key = random.usize(..self.keys / CYCLE) * CYCLE + random.usize(..STRINGS);
        self.set_string(key, random).exec(connection).map_err(refused)
    }

    fn value(&self, lengths: &Range<f64>, random: &mut Rng) -> &[u8] {
        let share = random.f64();
        let len = (lengths.start * (lengths.end / lengths.start).powf(share)) as usize;
        let at = random.usize(..POOL - len);
        &self.pool[at..at + len]
    }
}

fn name(key: usize) -> String {
    format!("key:{key}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_the_same_at_each_call_and_of_the_kinds_and_lengths_that_are_told() {
        let data = MixedData::new(KEYS.1);
        assert_eq!(data.keys(), KEYS.0);
        assert_eq!(MixedData::new(KEYS.1 / 100).keys(), 5420);
        let kinds: Vec<_> = (0..100).map(Kind::of).collect();
        let count = |kind| kinds.iter().filter(|&&other| other == kind).count();
        assert_eq!([Kind::String, Kind::Hash, Kind::List].map(count), [75, 15, 10]);
        let packed = |key| data.set(key).get_packed_command();
        assert_eq!(packed(3), MixedData::new(MIB).set(3).get_packed_command());
        assert_ne!(packed(3), packed(4));
        assert_eq!(data.set(CYCLE - 5).args_iter().count(), 2 + 2 * FIELDS);
        assert_eq!(data.set(CYCLE - 1).args_iter().count(), 2 + ELEMENTS);
        let mut random = Rng::with_seed(1);
        let mut lengths: Vec<_> =
            (0..10_000).map(|_| data.value(&STRING, &mut random).len()).collect();
        lengths.sort_unstable();
        assert!(lengths[0] >= 50 && lengths[9999] < 20_480, "{lengths:?}");
        // The median is the root of the product of both ends.
        assert!((900..1100).contains(&lengths[5000]), "{}", lengths[5000]);
    }

    #[test]
    fn data_of_so_many_bytes_needs_about_as_many() {
        // Nothing to fill without one.
        if RedisServer::version().is_err() {
            return;
        }
        let server = RedisServer::start(&[]).unwrap();
        let before = server.used_memory().unwrap() as usize;
        let data = MixedData::new(16 * MIB);
        data.fill(&server, &crate::measure::Quiet).unwrap();
        let used = server.used_memory().unwrap() as usize - before;
        assert!((12 * MIB..20 * MIB).contains(&used), "{used}");
        let (mut connection, mut random) = (server.connect().unwrap(), Rng::with_seed(7));
        (0..100).for_each(|_| data.overwrite(&mut connection, &mut random).unwrap());
        let keys: usize = redis::cmd("DBSIZE").query(&mut connection).unwrap();
        assert_eq!(keys, data.keys(), "only keys that are there are overwritten");
    }
}
