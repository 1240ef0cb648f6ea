//! Requests that are made up: each command that both servers know, with arguments that mean no good.

use std::fmt;

use proptest::prelude::*;
use proptest::sample::select;

pub(super) type Words = Vec<Vec<u8>>;

/// What happens next on one of the connections.
#[derive(Clone)]
pub(super) enum Step {
    /// Requests that are sent together, in this many pieces.
    Ask { client: usize, requests: Vec<Words>, pieces: usize },
    /// A request as a line of words.
    Line { client: usize, line: String },
    /// All that SCAN finds from the first cursor to the last.
    Scan { filter: Words },
    /// The connection is closed, and another one opened.
    Leave { client: usize },
}

impl fmt::Debug for Step {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ask { client, requests, pieces } => {
                write!(formatter, "client {client}, in pieces: {pieces}")?;
                requests.iter().try_for_each(|words| write!(formatter, "; {}", shown(words)))
            }
            Self::Line { client, line } => write!(formatter, "client {client}: {line:?}"),
            Self::Scan { filter } => write!(formatter, "all of SCAN {}", shown(filter)),
            Self::Leave { client } => write!(formatter, "client {client} leaves"),
        }
    }
}

pub(super) fn shown(words: &Words) -> String {
    let word = |word: &Vec<u8>| match word.len() {
        0..=99 => format!("\"{}\" ", word.escape_ascii()),
        len => format!("({len} bytes) "),
    };
    words.iter().map(word).collect()
}

pub(super) const CLIENTS: usize = 2;

/// How numbers are not written, and where they end.
const NUMBERS: &[&[u8]] = &[
    b"0",
    b"1",
    b"-1",
    b"7",
    b"05",
    b"-0",
    b"-05",
    b"+1",
    b"0000007",
    b"",
    b"-",
    b"--1",
    b" 1",
    b"1 ",
    b"1\n",
    b"1\0",
    b"1.0",
    b"1e3",
    b"0x10",
    b"1_000",
    b"\xd9\xa1",
    b"9223372036854775807",
    b"9223372036854775806",
    b"9223372036854775808",
    b"-9223372036854775807",
    b"-9223372036854775808",
    b"-9223372036854775809",
    b"9223372036854775",
    b"9223372036854776",
    b"-9223372036854775",
    b"-9223372036854776",
    b"18446744073709551615",
    b"18446744073709551616",
    b"99999999999999999999999",
];

const KEYS: &[&[u8]] = &[
    b"",
    b"a",
    b"b",
    b"ab",
    b"*",
    b"[a]",
    b"\\",
    b"a\\",
    b"\0",
    b"\xff\xfe",
    b"a\r\nb",
    b"-",
    b"^",
];

fn any_of(of: &'static [&'static [u8]]) -> impl Strategy<Value = Vec<u8>> + Clone {
    select(of).prop_map(<[u8]>::to_vec)
}

fn key() -> impl Strategy<Value = Vec<u8>> + Clone {
    prop_oneof![20 => any_of(KEYS), 1 => Just(vec![b'k'; 3000])]
}

fn number() -> impl Strategy<Value = Vec<u8>> + Clone {
    let written = |number: i64| number.to_string().into_bytes();
    prop_oneof![4 => any_of(NUMBERS), 1 => any::<i64>().prop_map(written)]
}

fn value() -> impl Strategy<Value = Vec<u8>> + Clone {
    let bytes = prop::collection::vec(any::<u8>(), 0..20);
    prop_oneof![5 => number(), 2 => bytes, 1 => Just(vec![b'v'; 70_000])]
}

/// Far from now: both servers read their clocks one after the other.
fn time() -> impl Strategy<Value = Vec<u8>> + Clone {
    let not_soon = |number: &Vec<u8>| number != b"1" && number != b"7";
    prop_oneof![
        2 => number().prop_filter("it would expire", not_soon),
        2 => any_of(&[b"0", b"-1", b"100000", b"10000000", b"99999999999"]),
    ]
}

/// Every byte of the alphabet means something in a class, outside of it, or nothing.
fn pattern() -> impl Strategy<Value = Vec<u8>> + Clone {
    prop_oneof![
        1 => any_of(&[b"*", b"**", b"***", b"?", b"", b"[", b"[^", b"[^]", b"[]", b"*[", b"\\", b"**a", b"a**", b"[b-a]"]),
        3 => r"[ab*?\[\]^\\-]{0,8}".prop_map(String::into_bytes),
    ]
}

/// A word in letters of either case.
fn word(words: &'static [&'static str]) -> BoxedStrategy<Vec<u8>> {
    let cased = |(word, is_upper): (&str, bool)| {
        if is_upper { word.to_uppercase() } else { word.to_owned() }.into_bytes()
    };
    (select(words), any::<bool>()).prop_map(cased).boxed()
}

/// No word, or some, one after the other.
fn options(of: BoxedStrategy<Words>) -> BoxedStrategy<Words> {
    prop::collection::vec(of, 0..3).prop_map(|words| words.concat()).boxed()
}

fn then(first: BoxedStrategy<Words>, second: BoxedStrategy<Words>) -> BoxedStrategy<Words> {
    (first, second).prop_map(|(first, second)| [first, second].concat()).boxed()
}

fn one(of: impl Strategy<Value = Vec<u8>> + 'static) -> BoxedStrategy<Words> {
    of.prop_map(|word| vec![word]).boxed()
}

fn two(
    first: impl Strategy<Value = Vec<u8>> + 'static,
    second: impl Strategy<Value = Vec<u8>> + 'static,
) -> BoxedStrategy<Words> {
    then(one(first), one(second))
}

fn some(of: impl Strategy<Value = Vec<u8>> + 'static) -> BoxedStrategy<Words> {
    prop::collection::vec(of, 0..4).boxed()
}

pub(super) fn filter() -> BoxedStrategy<Words> {
    options(
        prop_oneof![
            two(word(&["match"]), pattern()),
            two(word(&["type"]), word(&["string", "list", ""])),
        ]
        .boxed(),
    )
}

fn scan() -> BoxedStrategy<Words> {
    let cursors: &[&[u8]] = &[b"-1", b"+0", b"00", b"-0", b"+", b"0\x001"];
    let cursor = prop_oneof![Just(b"0".to_vec()), number(), any_of(cursors)];
    let count = two(word(&["count"]), number());
    let lone = one(word(&["count", "match", "type", "nonsense"]));
    then(one(cursor), prop_oneof![3 => filter(), 2 => count, 1 => lone].boxed())
}

fn set() -> BoxedStrategy<Words> {
    let wishes = prop_oneof![
        2 => one(word(&["nx", "xx"])),
        2 => two(word(&["ex", "px"]), time()),
        1 => one(word(&["ex", "px", "nonsense", ""])),
    ];
    then(two(key(), value()), options(wishes.boxed()))
}

fn expire() -> BoxedStrategy<Words> {
    then(two(key(), time()), options(one(word(&["nx", "xx", "gt", "lt", "nonsense"]))))
}

fn hello() -> BoxedStrategy<Words> {
    let name = any_of(&[b"me", b"", b"a b", b"\xff"]);
    let rest = prop_oneof![2 => two(word(&["setname"]), name), 1 => one(word(&["setname", "no"]))];
    let version = prop_oneof![any_of(&[b"2", b"3", b"3", b"4", b"1"]), number()];
    prop_oneof![1 => Just(Words::new()), 3 => then(one(version), options(rest.boxed()))].boxed()
}

fn client() -> BoxedStrategy<Words> {
    prop_oneof![
        one(word(&["id", "getname", "list", "info", "nonsense"])),
        two(word(&["setname"]), any_of(&[b"me", b"", b"a b", b"a\nb"])),
        two(word(&["getname", "setname", "id"]), any_of(KEYS)),
    ]
    .boxed()
}

fn config() -> BoxedStrategy<Words> {
    prop_oneof![
        two(word(&["get"]), any_of(&[b"save", b"appendonl?", b"databases", b"none"])),
        one(word(&["get", "set", "nonsense"])),
        two(word(&["set"]), key()),
    ]
    .boxed()
}

/// A command with arguments that it may be given, or nearly.
fn named() -> BoxedStrategy<Words> {
    let call = |names: &'static [&'static str], arguments: BoxedStrategy<Words>| {
        then(one(word(names)), arguments)
    };
    prop_oneof![
        8 => call(&["set"], set()),
        3 => call(&["get", "strlen", "type", "ttl", "pttl", "persist"], one(key())),
        3 => call(&["mget", "exists", "del", "unlink"], some(key())),
        2 => call(&["mset"], some(value())),
        4 => call(&["incr", "decr"], one(key())),
        4 => call(&["incrby", "decrby"], two(key(), number())),
        2 => call(&["append"], two(key(), value())),
        4 => call(&["expire", "pexpire"], expire()),
        2 => call(&["keys"], one(pattern())),
        3 => call(&["scan"], scan()),
        1 => call(&["ping", "echo", "dbsize"], some(value())),
        1 => call(&["flushall", "flushdb"], options(one(word(&["sync", "async", "no"])))),
        2 => call(&["hello"], hello()),
        1 => call(&["client"], client()),
        1 => call(&["config"], config()),
        1 => call(&["select"], one(any_of(&[b"0", b"1", b"-1", b"05", b"-0", b"x", b""]))),
        4 => call(&["multi"], Just(Words::new()).boxed()),
        4 => call(&["exec"], Just(Words::new()).boxed()),
        1 => call(&["discard"], Just(Words::new()).boxed()),
        1 => call(&["save", "lastsave", "info"], Just(Words::new()).boxed()),
        1 => call(&["bgsave", "shutdown"], one(word(&["nonsense", ""]))),
        1 => call(&["quit", "nonsense", "", "g\r\net"], some(value())),
    ]
    .boxed()
}

/// The right arguments, or one too many, or too few.
fn request() -> BoxedStrategy<Words> {
    let damaged = |(mut words, change, key): (Words, u8, Vec<u8>)| {
        match change {
            0 => words.push(key),
            1 => words.truncate(1.max(words.len() - 1)),
            _ => {}
        }
        words
    };
    // Without this argument it ends the server, or begins a save.
    let is_harmless = |words: &Words| {
        let name = words[0].to_ascii_lowercase();
        words.len() > 1 || (name != b"shutdown" && name != b"bgsave")
    };
    let damaged = (named(), 0..20_u8, any_of(KEYS)).prop_map(damaged);
    damaged.prop_filter("it would end the server", is_harmless).boxed()
}

pub(super) fn step() -> impl Strategy<Value = Step> {
    let requests = |many| prop::collection::vec(request(), many);
    let requests = prop_oneof![4 => requests(1..2), 1 => requests(2..6)];
    let pieces = prop_oneof![3 => Just(1), 1 => 1..40_usize];
    let ask = |(client, mut requests, pieces): (usize, Vec<Words>, usize)| {
        // A connection that is closed with bytes unread may lose replies.
        let quits = |words: &Words| words[0].eq_ignore_ascii_case(b"quit");
        let until = requests.iter().position(quits).map_or(requests.len(), |at| at + 1);
        requests.truncate(until);
        Step::Ask { client, requests, pieces }
    };
    let line = r"[ \t]{0,2}(GET|SET|incr|PING|ECHO|EXISTS|MULTI|exec)( {1,2}[ab05*?\\-]{1,3}){0,3} {0,2}\r?\n";
    prop_oneof![
        40 => (0..CLIENTS, requests, pieces).prop_map(ask),
        3 => (0..CLIENTS, line).prop_map(|(client, line)| Step::Line { client, line }),
        2 => filter().prop_map(|filter| Step::Scan { filter }),
        1 => (0..CLIENTS).prop_map(|client| Step::Leave { client }),
    ]
}

/// Bytes that may be no requests.
#[derive(Clone)]
pub(super) struct Damaged(pub(super) Vec<u8>);

impl fmt::Debug for Damaged {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.0.escape_ascii())
    }
}

/// Requests whose bytes were changed here and there: lengths, ends of lines, what is no request.
pub(super) fn damaged() -> impl Strategy<Value = Damaged> {
    let alphabet = b"*$\r\n0123456789-+:' \"GETa";
    let change = (any::<prop::sample::Index>(), select(&alphabet[..]), 0..3_u8);
    let words = prop_oneof![
        Just(vec![b"PING".to_vec()]),
        two(word(&["get", "incr", "echo", "strlen"]), key()),
        then(one(word(&["set"])), two(key(), number())),
    ];
    let requests = prop::collection::vec(words, 1..4);
    // The real server ends a line at CR and any byte, for which this one waits for LF.
    let lone = |bytes: &Damaged| !bytes.0.windows(2).any(|two| two[0] == b'\r' && two[1] != b'\n');
    let damaged =
        (requests, prop::collection::vec(change, 0..4)).prop_map(|(requests, changes)| {
            let mut bytes: Vec<u8> = requests.iter().flat_map(encoded).collect();
            // The real server waits for the end of a line that has a zero in it.
            bytes.iter_mut().filter(|byte| **byte == 0).for_each(|byte| *byte = b'0');
            for (at, byte, change) in changes {
                let at = at.index(bytes.len());
                match change {
                    0 => bytes[at] = byte,
                    1 => bytes.insert(at, byte),
                    _ => drop(bytes.remove(at)),
                }
            }
            Damaged(bytes)
        });
    damaged.prop_filter("CR without LF", lone)
}

pub(super) fn encoded(words: &Words) -> Vec<u8> {
    crate::client::request(&words.iter().map(Vec::as_slice).collect::<Vec<_>>())
}
