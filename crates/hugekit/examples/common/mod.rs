//! What examples share.

#[cfg(target_arch = "x86_64")]
pub(crate) mod guest;
