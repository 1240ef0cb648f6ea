//! Whether a request for a free block lets the next collapse begin.
//!
//! The request is also a trial: it collapses memory of the tender, and on busy CPUs it waits for the same threads of the
//! kernel as the collapse of the process's memory does, which holds a lock of the process meanwhile. So after a request
//! that took much longer than others, the tender makes another one first.

use std::time::Duration;

use crate::blocks::Request;

/// Requests in a row that the kernel refuses before a pass ends. It gathers some blocks only at the second request.
const REFUSALS: u32 = 3;

/// A slow request takes this many times as long as usual, ...
const SLOW: u32 = 2;

/// ... and longer than that by this much.
const SLOWER: Duration = Duration::from_millis(2);

/// Slow requests in a row that hold a collapse back. More of them are usual by then.
const TRIALS: u32 = 4;

/// The weight of a request in the usual time, 1/8.
const WEIGHT: u32 = 8;

/// The step that follows on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    Collapse,
    /// Another request, after a rest.
    Request,
    /// The kernel gathers no block.
    NoBlock,
    /// The machine swaps out memory for a block.
    Swapping {
        bytes: u64,
    },
}

/// The requests of a pass.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Supply {
    /// Blocks that the kernel may have gathered for requests, and the time of all requests for such blocks.
    pub(crate) gathered: u64,
    pub(crate) gathering: Duration,
    refusals: u32,
    slow: u32,
    /// The usual time of a request.
    usual: Option<Duration>,
}

impl Supply {
    /// While there are free blocks, a refused request has another reason, and the collapse finds a block by itself.
    pub(crate) fn after(&mut self, request: &Request) -> Next {
        if request.were_few {
            self.gathering += request.took;
            self.gathered += u64::from(request.is_granted);
        }
        self.refusals = match request.is_granted || !request.were_few {
            true => 0,
            false => self.refusals + 1,
        };
        let is_slow = self.is_slow(request.took);
        match self.refusals {
            _ if request.swapped > 0 => Next::Swapping { bytes: request.swapped },
            0 if is_slow => Next::Request,
            0 => Next::Collapse,
            REFUSALS.. => Next::NoBlock,
            _ => Next::Request,
        }
    }

    fn is_slow(&mut self, took: Duration) -> bool {
        let usual = self.usual.unwrap_or(took);
        self.usual = Some((usual * (WEIGHT - 1) + took) / WEIGHT);
        self.slow = if took > usual * SLOW + SLOWER { self.slow + 1 } else { 0 };
        self.slow = if self.slow > TRIALS { 0 } else { self.slow };
        self.slow > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLI: Duration = Duration::from_millis(1);
    const GRANTED: Request = Request { is_granted: true, were_few: true, took: MILLI, swapped: 0 };
    const REFUSED: Request = Request { is_granted: false, ..GRANTED };
    const AMPLE: Request = Request { were_few: false, ..GRANTED };
    const REFUSED_BESIDE_FREE_BLOCKS: Request = Request { is_granted: false, ..AMPLE };
    const SWAPPING: Request = Request { swapped: 8192, ..GRANTED };

    #[test]
    fn refused_requests_are_made_again_and_end_a_pass_when_none_is_granted() {
        let rows: [(&[Request], Next); 8] = [
            (&[GRANTED], Next::Collapse),
            (&[AMPLE], Next::Collapse),
            (&[REFUSED_BESIDE_FREE_BLOCKS; 9], Next::Collapse),
            (&[REFUSED; 2], Next::Request),
            (&[REFUSED; 3], Next::NoBlock),
            (&[REFUSED, REFUSED, GRANTED, REFUSED], Next::Request),
            (&[REFUSED, REFUSED, AMPLE, REFUSED], Next::Request),
            (&[GRANTED, SWAPPING], Next::Swapping { bytes: 8192 }),
        ];
        for (requests, expected) in rows {
            let mut supply = Supply::default();
            let last = requests.iter().map(|request| supply.after(request)).last();
            assert_eq!(last, Some(expected), "{requests:?}");
        }
    }

    #[test]
    fn collapse_waits_for_a_request_that_is_as_fast_as_usual() {
        let request = |millis: u32| Request { took: millis * MILLI, ..AMPLE };
        // Milliseconds of requests, and whether a collapse follows on the last.
        let rows: [(&[u32], bool); 7] = [
            (&[300], true),
            (&[1, 4], true),
            (&[1, 5], false),
            (&[1, 500, 1], true),
            (&[1, 500, 600, 700, 800], false),
            (&[1, 500, 700, 1000, 1400, 2000], true),
            (&[100, 150, 200], true),
        ];
        for (times, expected) in rows {
            let mut supply = Supply::default();
            let last = times.iter().map(|&time| supply.after(&request(time))).last();
            assert_eq!(last == Some(Next::Collapse), expected, "{times:?}");
        }
        // On CPUs that stay busy, every fifth request at least is followed by a collapse.
        let mut supply = Supply::default();
        supply.after(&request(1));
        let mut time = 1;
        let collapses = (0..10).filter(|_| {
            time *= 4;
            supply.after(&request(time)) == Next::Collapse
        });
        assert_eq!(collapses.count(), 2);
    }

    #[test]
    fn blocks_are_counted_that_the_kernel_may_have_gathered_with_the_time_of_all_requests() {
        let mut supply = Supply::default();
        for request in [GRANTED, REFUSED, AMPLE, GRANTED] {
            supply.after(&request);
        }
        assert_eq!((supply.gathered, supply.gathering), (2, 3 * MILLI));
    }
}
