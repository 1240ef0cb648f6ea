//! State that threads and signal handlers share: events, claims, gates, and values read without a
//! lock.
//!
//! Handlers use all of these types. So no type allocates after it was made, uses thread-local
//! state, or waits for a thread that could be waiting for a fault. Words that handlers write lie in
//! memory that no snapshot can protect ([`Private`](crate::private_pages::Private)).
//!
//! `README.md` beside this file draws the states, explains each memory ordering, and lists the
//! races with the model or test of each. All types compile against std, or against loom in models:
//! `primitives.rs` is the switch.

mod claims;
mod event;
mod first;
mod futex;
mod gate;
#[cfg(not(all(hugekit_faults, not(loom))))]
mod held;
#[cfg(all(hugekit_faults, not(loom)))]
pub mod held;
mod latch;
mod per_process;
pub mod primitives;
mod published;

pub use self::claims::{Claim, ClaimState, Claims};
pub use self::event::WakeEvent;
pub use self::first::First;
pub use self::gate::Gate;
pub use self::latch::Latch;
pub use self::per_process::{OfProcess, PerProcess};
pub use self::published::{Published, PublishedGuard};
