//! Whether a request for a free block lets the next collapse begin.

use std::time::Duration;

use crate::blocks::Request;

/// Requests in a row that the kernel refuses before a pass ends. It gathers some blocks only at the second request.
const REFUSALS: u32 = 3;

/// What follows on a request.
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
}

impl Supply {
    /// While there are free blocks, a refused request has another reason, and the collapse finds a block by itself.
    pub(crate) fn after(&mut self, request: &Request) -> Next {
        if !request.were_few {
            self.refusals = 0;
            return Next::Collapse;
        }
        self.gathering += request.took;
        self.gathered += u64::from(request.is_granted);
        self.refusals = if request.is_granted { 0 } else { self.refusals + 1 };
        match self.refusals {
            _ if request.swapped > 0 => Next::Swapping { bytes: request.swapped },
            0 => Next::Collapse,
            REFUSALS.. => Next::NoBlock,
            _ => Next::Request,
        }
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
    fn blocks_are_counted_that_the_kernel_may_have_gathered_with_the_time_of_all_requests() {
        let mut supply = Supply::default();
        for request in [GRANTED, REFUSED, AMPLE, GRANTED] {
            supply.after(&request);
        }
        assert_eq!((supply.gathered, supply.gathering), (2, 3 * MILLI));
    }
}
