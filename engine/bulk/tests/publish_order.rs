//! What `Unfenced::publish` is for: a thread that sees a flag sees the streamed bytes that were published before
//! the flag was set.
//!
//! A litmus test of two threads, because no single one can see its own streamed stores out of order. The
//! writer streams some lines, publishes and sets the flag; the reader waits for the flag and reads. Without the
//! fence the flag may overtake lines that are still on their way past the cache. That takes luck, so the
//! chances are made good: the flag's line is in the writer's cache, because the writer has stored to it right
//! before; the reader looks only now and then, so as not to take it away; and it reads the last line first.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use hugekit_bulk::arch::{
    ClearRoutine, CopyRoutine, Kind, Unfenced, clear_routines, copy_routines,
};

const LINE: usize = 64;

/// Bytes that are streamed at a time: few, so that the last of them are still on their way.
const LEN: usize = 8 * LINE;

/// Rounds and time for each routine, whichever ends first.
const FEW_ROUNDS: u32 = 500;
const MANY_ROUNDS: u32 = 200_000;
const ENOUGH: Duration = Duration::from_millis(500);

/// On a line of its own.
#[repr(align(128))]
struct Alone<T>(T);

struct Shared {
    bytes: Alone<UnsafeCell<[u8; LEN]>>,
    /// The round that is published, and a word beside it that the writer stores to first.
    flag: Alone<[AtomicU32; 2]>,
    /// The round that the reader is done with.
    seen: Alone<AtomicU32>,
}

// SAFETY: the writer accesses `bytes` between `seen` and `flag`, the reader between `flag` and `seen`.
unsafe impl Sync for Shared {}

impl Shared {
    fn new() -> Self {
        Self {
            bytes: Alone(UnsafeCell::new([0; LEN])),
            flag: Alone([const { AtomicU32::new(0) }; 2]),
            seen: Alone(AtomicU32::new(0)),
        }
    }

    fn bytes(&self) -> *mut u8 {
        self.bytes.0.get().cast()
    }

    /// Streams for round after round; `stream` is told the round and where to.
    fn write(&self, rounds: u32, stream: impl Fn(u32, *mut u8) -> Unfenced) {
        let start = Instant::now();
        for round in 1..=rounds {
            self.flag.0[1].store(round, Ordering::Relaxed);
            stream(round, self.bytes()).publish();
            self.flag.0[0].store(round, Ordering::Release);
            wait(|| self.seen.0.load(Ordering::Acquire) == round, 1);
            if start.elapsed() > ENOUGH {
                break;
            }
        }
        self.flag.0[0].store(LAST, Ordering::Release);
    }

    /// How many rounds, and in how many of them a byte was not `expected`; afterwards all of them are 0xff.
    fn read(&self, expected: impl Fn(u32) -> u8) -> (u32, u32) {
        let (mut rounds, mut stale) = (0, 0);
        loop {
            let mut round = 0;
            let look = || {
                round = self.flag.0[0].load(Ordering::Acquire);
                round > rounds
            };
            wait(look, 20 + rounds % 64);
            if round == LAST {
                return (rounds, stale);
            }
            rounds = round;
            stale += u32::from(self.is_stale(expected(round)));
            // SAFETY: the writer waits for `seen`.
            unsafe { self.bytes().write_bytes(0xff, LEN) };
            self.seen.0.store(round, Ordering::Release);
        }
    }

    fn is_stale(&self, expected: u8) -> bool {
        let lines = (0..LEN / LINE).rev();
        // SAFETY: within the bytes, which the writer leaves alone until `seen`.
        let is_other = |at| unsafe { self.bytes().add(at).read_volatile() } != expected;
        // The end of each line first: all of them before any is looked at again.
        let of_lines = lines.map(|line| is_other(line * LINE + LINE - 1));
        of_lines.fold(false, |stale, other| stale | other)
    }
}

/// Ends the reader.
const LAST: u32 = u32::MAX;

/// Until it is so, with so many pauses between two looks; another thread may need this CPU.
fn wait(mut is_so: impl FnMut() -> bool, pauses: u32) {
    for looks in 0_u32.. {
        if is_so() {
            return;
        }
        (0..pauses).for_each(|_| std::hint::spin_loop());
        if looks % 256 == 255 {
            thread::yield_now();
        }
    }
}

/// How many rounds there were, and in how many the reader saw the flag before the bytes.
fn overtaken(
    rounds: u32,
    stream: impl Fn(u32, *mut u8) -> Unfenced + Sync,
    expected: impl Fn(u32) -> u8,
) -> (u32, u32) {
    let shared = Shared::new();
    thread::scope(|scope| {
        let (shared, stream) = (&shared, &stream);
        scope.spawn(move || shared.write(rounds, stream));
        shared.read(expected)
    })
}

fn clear(routine: &'static ClearRoutine, rounds: u32) -> (u32, u32) {
    // SAFETY: `LEN` bytes that are the writer's until they are published; the routine is available.
    overtaken(rounds, |_, dst| unsafe { routine.run(dst, LEN) }, |_| 0)
}

fn copy(routine: &'static CopyRoutine, rounds: u32) -> (u32, u32) {
    let value = |round: u32| (round % 200) as u8;
    let stream = |round, dst| {
        let source = [value(round); LEN];
        // SAFETY: `LEN` bytes that are the writer's until they are published, from `LEN` bytes of `source`; the
        // routine is available.
        unsafe { routine.run(dst, source.as_ptr(), LEN) }
    };
    overtaken(rounds, stream, value)
}

#[test]
fn no_flag_overtakes_the_bytes_that_were_published_before_it() {
    no_flag_overtakes(FEW_ROUNDS);
}

#[test]
#[ignore = "nightly: it repeats a race many times"]
fn no_flag_overtakes_in_many_rounds_the_bytes_that_were_published_before_it() {
    no_flag_overtakes(MANY_ROUNDS);
}

fn no_flag_overtakes(rounds: u32) {
    let clears = clear_routines().iter().filter(|one| one.kind() == Kind::Streaming);
    let clears =
        clears.filter(|one| one.is_available()).map(|one| (one.name(), clear(one, rounds)));
    let copies = copy_routines().iter().filter(|one| one.kind() == Kind::Streaming);
    let copies = copies.filter(|one| one.is_available()).map(|one| (one.name(), copy(one, rounds)));
    for (name, (rounds, stale)) in clears.chain(copies) {
        println!("{name}: {rounds} rounds");
        assert!(rounds > 0, "{name}");
        assert_eq!(stale, 0, "{name}: stale bytes in {stale} of {rounds} rounds");
    }
}
