//! Random requests to this server and to the real one, side by side: the replies are the same bytes, but for the
//! differences that `docs/snapshot.md` lists.
//!
//! `HUGEKIT_FUZZ_SECONDS` says for how long, `HUGEKIT_FUZZ_SEED` from which seed on: a sequence that fails is
//! shortened and printed with its seed.

mod pair;
mod reply;
mod requests;

use std::fmt::Debug;
use std::time::{Duration, Instant};

use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

use self::pair::{Pair, Session};
use crate::Check;

/// Sequences, unless it is said for how long.
const USUAL: u64 = 150;

/// Steps of a sequence.
const STEPS: usize = 60;

/// Attempts to shorten one that fails.
const SHORTENED: u32 = 5000;

fn number_from(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| text.parse().expect(variable))
}

/// Checks one value after the other, each from its seed.
fn check_each<S: Strategy>(values: &S, check: impl Fn(S::Value) -> Result<(), TestCaseError>)
where
    S::Value: Debug,
{
    let seconds = number_from("HUGEKIT_FUZZ_SECONDS").map(Duration::from_secs);
    let first = number_from("HUGEKIT_FUZZ_SEED").unwrap_or(1);
    let (began, mut seed) = (Instant::now(), first);
    while seconds.map_or(seed < first + USUAL, |seconds| began.elapsed() < seconds) {
        let config = Config {
            cases: 1,
            failure_persistence: None,
            max_shrink_iters: SHORTENED,
            ..Config::default()
        };
        let bytes: Vec<u8> = seed.to_le_bytes().repeat(4);
        let random = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let mut runner = TestRunner::new_with_rng(config, random);
        let outcome = runner.run(values, &check);
        outcome.unwrap_or_else(|error| panic!("HUGEKIT_FUZZ_SEED={seed}: {error}"));
        seed += 1;
    }
    eprintln!("{} sequences, from seed {first}", seed - first);
}

fn random_requests_are_answered_as_by_the_real_server() {
    let pair = Pair::start();
    let steps = proptest::collection::vec(requests::step(), 1..STEPS);
    check_each(&steps, |steps| {
        let mut session = Session::new(&pair);
        steps.iter().try_for_each(|step| session.step(step)).map_err(TestCaseError::fail)
    });
}

fn damaged_requests_are_refused_if_the_real_server_refuses_them() {
    let pair = Pair::start();
    check_each(&requests::damaged(), |bytes| {
        pair.refuse_alike(&bytes.0).map_err(TestCaseError::fail)
    });
}

pub(crate) const CHECKS: &[Check] = &[
    (
        "random_requests_are_answered_as_by_the_real_server",
        random_requests_are_answered_as_by_the_real_server,
    ),
    (
        "damaged_requests_are_refused_if_the_real_server_refuses_them",
        damaged_requests_are_refused_if_the_real_server_refuses_them,
    ),
];
