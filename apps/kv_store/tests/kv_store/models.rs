//! Keys and values, as they should be.

use std::collections::BTreeMap;

use crate::client::{Answer, Client};

/// So many keys with values of any length, most of them short.
pub(crate) fn model(random: &mut fastrand::Rng, keys: usize) -> BTreeMap<String, Vec<u8>> {
    let value = |random: &mut fastrand::Rng| {
        let bits = random.usize(..13);
        let len = random.usize(..1 << bits);
        vec![random.u8(..); len]
    };
    (0..keys).map(|key| (format!("key:{key}"), value(random))).collect()
}

pub(crate) fn set_all(client: &mut Client, model: &BTreeMap<String, Vec<u8>>) {
    for (key, value) in model {
        client.send(&[b"SET", key.as_bytes(), value]);
    }
    for _ in model {
        assert_eq!(client.answer(), Answer::Simple("OK".to_owned()));
    }
}

pub(crate) fn few_sizes(random: &mut fastrand::Rng) -> BTreeMap<String, Vec<u8>> {
    let sizes = [50, 500, 3000];
    (0..4000)
        .map(|key| (format!("key:{key}"), vec![random.u8(..); sizes[random.usize(..3)]]))
        .collect()
}
