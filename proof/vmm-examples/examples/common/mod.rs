//! What examples share.

// Each example uses some of it.
#![allow(dead_code)]

#[cfg(target_arch = "x86_64")]
pub(crate) mod anonymous;
#[cfg(target_arch = "x86_64")]
pub(crate) mod computing;
#[cfg(target_arch = "x86_64")]
pub(crate) mod guest;
