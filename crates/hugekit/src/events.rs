//! What the library reports of itself: events of `tracing` with the feature `tracing`, and nothing without it, not even
//! the text.

#[cfg(feature = "tracing")]
pub(crate) use tracing::{debug, error, info, warn};

/// Checks a message as `tracing` would have it, and leaves no code.
#[cfg(not(feature = "tracing"))]
macro_rules! unsaid {
    ($($message:tt)*) => {
        if false {
            let _ = ::std::format_args!($($message)*);
        }
    };
}

#[cfg(not(feature = "tracing"))]
pub(crate) use {unsaid as debug, unsaid as error, unsaid as info, unsaid as warn};
