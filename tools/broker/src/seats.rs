//! Seats: the clients that stay connected when more clients come than the broker serves at once.
//! This file makes no system call.
//!
//! A client sends its request as soon as it is connected. So silent clients are disconnected first,
//! beginning with the account that has the most silent clients. An account with fewer connections
//! than another always finds room: no number of accounts below the number of seats can lock out
//! another account.

use std::collections::BTreeMap;

use crate::unit::ClientId;

/// A connected client.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seat {
    /// The number of the client. Numbers ascend in the order of connections.
    pub(crate) id: ClientId,
    pub(crate) account: u32,
    /// True if the client has not sent a request yet.
    pub(crate) is_silent: bool,
}

/// Returns the client that makes room for a newcomer of an account. This is the oldest silent
/// client of the account that has the most silent clients. If no client is silent, it is the newest
/// client of the account that has the most clients. An account with as few clients as the
/// newcomer's account keeps its clients; the newcomer's own account then loses only silent clients.
pub(crate) fn displaced(seats: &[Seat], newcomer: u32) -> Option<ClientId> {
    let mut of_account: BTreeMap<u32, (usize, usize)> = BTreeMap::new();
    for seat in seats {
        let (silent, all) = of_account.entry(seat.account).or_default();
        (*silent, *all) = (*silent + usize::from(seat.is_silent), *all + 1);
    }
    let own = of_account.get(&newcomer).map_or(0, |&(_, all)| all);
    let silent = |(&account, &(silent, all)): (&u32, &(usize, usize))| {
        (silent > 0 && (all > own || account == newcomer)).then_some((silent, all, account))
    };
    if let Some((.., most)) = of_account.iter().filter_map(silent).max() {
        return seats
            .iter()
            .filter(|seat| seat.account == most && seat.is_silent)
            .map(Seat::id)
            .min();
    }
    let (&most, _) = of_account
        .iter()
        .filter(|&(_, &(_, all))| all > own + 1)
        .max_by_key(|&(_, &(_, all))| all)?;
    seats.iter().filter(|seat| seat.account == most).map(Seat::id).max()
}

impl Seat {
    fn id(&self) -> ClientId {
        self.id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seats(of: &[(u32, bool)]) -> Vec<Seat> {
        let seat = |(id, &(account, is_silent)): (usize, &(u32, bool))| Seat {
            id: id as ClientId,
            account,
            is_silent,
        };
        of.iter().enumerate().map(seat).collect()
    }

    #[test]
    fn silent_one_of_who_has_the_most_of_them_goes_first_the_oldest() {
        let all = seats(&[(1, true), (2, false), (2, true), (1, true), (2, false), (2, false)]);
        assert_eq!(displaced(&all, 3), Some(0));
        assert_eq!(displaced(&all, 2), Some(2), "its own, because account 1 has fewer");
        assert_eq!(displaced(&all, 1), Some(0), "its own, because it has the most silent ones");
    }

    #[test]
    fn if_all_have_asked_the_newest_of_who_has_the_most_goes_for_who_has_two_fewer() {
        let all = seats(&[(1, false), (2, false), (2, false), (2, false)]);
        assert_eq!(displaced(&all, 3), Some(3));
        assert_eq!(displaced(&all, 1), Some(3));
        assert_eq!(displaced(&all, 2), None);
        assert_eq!(displaced(&seats(&[(1, false), (2, false)]), 3), None);
        assert_eq!(displaced(&seats(&[(1, true), (2, false)]), 3), Some(0));
    }

    /// However many seats others take, and in whatever order: an account that has none is let in.
    #[test]
    fn fewer_accounts_than_seats_lock_out_no_other() {
        for accounts in 1..16 {
            let taken: Vec<_> = (0..16).map(|nth| (nth % accounts, false)).collect();
            assert!(displaced(&seats(&taken), 99).is_some(), "{accounts}");
        }
    }
}
