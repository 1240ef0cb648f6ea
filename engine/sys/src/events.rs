//! Events of the library, for the crate `tracing`, if the feature of that name is enabled. Without
//! the feature, no code and no text remains.

#[cfg(feature = "tracing")]
pub use tracing::{debug, error, info, warn};

/// Checks a message as `tracing` would, and generates no code.
#[cfg(not(feature = "tracing"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __unsaid {
    ($($message:tt)*) => {
        if false {
            let _ = ::std::format_args!($($message)*);
        }
    };
}

#[cfg(not(feature = "tracing"))]
pub use crate::{__unsaid as debug, __unsaid as error, __unsaid as info, __unsaid as warn};
