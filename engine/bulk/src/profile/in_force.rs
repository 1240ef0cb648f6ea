//! The profile that this process uses: the built-in one until the program installs another.

use std::sync::OnceLock;

use super::builtin::{UNKNOWN_CACHES, in_guest};
use super::{Profile, plain};
use hugekit_machine::cpu::{cpu_model, is_guest};
use hugekit_machine::{CacheSizes, Root, cache};
use hugekit_sys::ErrorKind;
use hugekit_sys::headroom;
use hugekit_sys::sync::First;
use hugekit_sys::thread::affinity;

static INSTALLED: OnceLock<Profile> = OnceLock::new();

/// An error of [`Profile::install`]: another profile was installed before. The process keeps using
/// that profile.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "a profile is installed already, and a process has one: install it where the program starts"
)]
pub struct AlreadyInstalled;

impl Profile {
    /// Returns the profile that this process uses: the [installed](Self::install) profile, or the
    /// [built-in](Self::builtin_here) profile if none is installed.
    ///
    /// The first call computes the built-in profile. The call reads `/sys` only if the CPU does not
    /// report its caches; x86-64 CPUs report them.
    #[must_use]
    #[inline]
    pub fn current() -> &'static Self {
        INSTALLED.get().unwrap_or_else(|| Self::built_in())
    }

    /// Returns true if the program has installed a profile. The process then learns nothing,
    /// because the routines are the program's choice.
    #[inline]
    pub(crate) fn is_installed() -> bool {
        INSTALLED.get().is_some()
    }

    /// Makes this process use this profile until the process ends. The profile then always chooses
    /// the same routine for a length, and the process [learns](crate::learning) nothing.
    ///
    /// ```
    /// use hugekit::Profile;
    ///
    /// let mut profile = Profile::builtin_here();
    /// profile.thread_cap = 2; // this program shares its machine
    /// profile.install()?;
    /// assert_eq!(Profile::current().thread_cap, 2);
    /// # Ok::<(), hugekit_bulk::profile::AlreadyInstalled>(())
    /// ```
    ///
    /// # Errors
    /// [`AlreadyInstalled`] if a profile was installed before. The process keeps using that
    /// profile.
    pub fn install(self) -> Result<(), AlreadyInstalled> {
        INSTALLED.set(self).map_err(|_| AlreadyInstalled)?;
        plain::set(Self::current());
        Ok(())
    }

    /// Returns the built-in profile for this machine, whether or not one is installed.
    #[must_use]
    pub fn builtin_here() -> Self {
        let (cpu, caches) = (cpu_model(), caches());
        match guest_cpus() {
            Some(cpus) => Self::builtin(cpu, in_guest(cpu, caches, cpus)),
            None => Self::builtin(cpu, caches),
        }
    }

    /// Returns the built-in profile, which is computed once.
    #[inline]
    pub(crate) fn built_in() -> &'static Self {
        static BUILT_IN: First<Profile> = First::new();
        BUILT_IN.get().unwrap_or_else(|| Self::find_out(&BUILT_IN))
    }

    /// Computes the built-in profile. If the heap has no room for it, returns libc's routines on
    /// one thread.
    #[cold]
    fn find_out(built_in: &'static First<Self>) -> &'static Self {
        static OF_LIBC: First<Profile> = First::new();
        if headroom::check().is_err() {
            return OF_LIBC.get_or_make(Self::of_libc);
        }
        built_in.get_or_make(|| {
            let profile = Self::builtin_here();
            if INSTALLED.get().is_none() {
                plain::set(&profile);
            }
            profile
        })
    }
}

/// Returns the number of CPUs of a virtual machine that this process may use; `None` on a machine
/// that is not known to be virtual.
fn guest_cpus() -> Option<usize> {
    is_guest().then(|| affinity().map_or(1, |cpus| cpus.len()))
}

/// Returns the sizes of the caches: from the CPU, otherwise from the kernel.
pub(super) fn caches() -> CacheSizes {
    let by_kernel = || cache::read(&Root::default()).ok();
    cache::by_cpu().or_else(by_kernel).unwrap_or(UNKNOWN_CACHES)
}

impl AlreadyInstalled {
    /// Returns the kind of the error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        ErrorKind::Conflict
    }
}
