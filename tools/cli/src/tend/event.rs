//! What happens to a process that is tended.

use hugekit_tend::Status;

#[derive(Debug)]
pub(super) enum TendEvent<'a> {
    /// Its tending begins.
    Begun { pid: i32, name: &'a str },
    /// After a pass, or when a child came or went.
    Observed(&'a Status),
    /// It has ended, or has started another program.
    Ended { pid: i32, name: &'a str },
}
