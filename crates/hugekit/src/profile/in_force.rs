//! Which profile this process goes by, and where it came from.

use std::env;
use std::path::PathBuf;
use std::sync::{Once, OnceLock};

use super::builtin::UNKNOWN_CACHES;
use super::{Measured, Problem, Profile, ProfileError, StoredProfile, Tuned};
use crate::arch::cpu_model;
use crate::machine::{CacheSizes, Root, cache};
use crate::sys::process::is_secure_execution;

/// Names the file of the profile; empty, it says that there is none.
const VARIABLE: &str = "HUGEKIT_PROFILE";

/// The profile that this process goes by.
#[derive(Debug)]
pub struct InForce {
    /// Its values.
    pub profile: Profile,
    /// The file that some of them came from, if any.
    pub stored: Option<(PathBuf, StoredProfile)>,
    /// Why a file that is there is ignored, if it is.
    pub problem: Option<ProfileError>,
}

impl InForce {
    /// Found at the first use, and for as long as the process lives. A stored profile that is ignored is
    /// reported then, once, as a [`tracing`] warning.
    #[must_use]
    #[inline]
    pub fn get() -> &'static Self {
        static FOUND: OnceLock<InForce> = OnceLock::new();
        match FOUND.get() {
            Some(found) => found,
            None => Self::find_in(&FOUND),
        }
    }

    #[cold]
    fn find_in(place: &'static OnceLock<Self>) -> &'static Self {
        static REPORTED: Once = Once::new();
        let found = place.get_or_init(Self::find);
        // Afterwards, because a listener may clear memory.
        REPORTED.call_once(|| {
            if let Some(problem) = &found.problem {
                tracing::warn!("{problem}");
            }
        });
        found
    }

    fn find() -> Self {
        let caches = caches();
        match path().map(|path| read(path, caches)) {
            Some(Ok(Some(in_force))) => in_force,
            Some(Err(problem)) => Self { problem: Some(problem), ..Self::builtin(caches) },
            Some(Ok(None)) | None => Self::builtin(caches),
        }
    }

    fn builtin(caches: CacheSizes) -> Self {
        Self { profile: Profile::builtin(cpu_model(), caches), stored: None, problem: None }
    }
}

impl StoredProfile {
    /// What was measured on this machine by this version.
    #[must_use]
    pub fn of_this_machine(tuned: Tuned, measured: Measured) -> Self {
        Self::new(cpu_model(), caches(), tuned, measured)
    }

    /// The profile that it is on this machine.
    ///
    /// # Errors
    /// [`Problem`] if it is of another machine, or a value makes no sense here.
    pub fn for_this_machine(&self) -> Result<Profile, Problem> {
        self.for_machine(cpu_model(), caches())
    }
}

impl Profile {
    /// What is built in for this machine, whatever is stored.
    #[must_use]
    pub fn builtin_here() -> Self {
        Self::builtin(cpu_model(), caches())
    }
}

fn caches() -> CacheSizes {
    let by_kernel = || cache::read(&Root::default()).ok();
    cache::by_cpu().or_else(by_kernel).unwrap_or(UNKNOWN_CACHES)
}

/// The profile of a file, if there is one.
fn read(path: PathBuf, caches: CacheSizes) -> Result<Option<InForce>, ProfileError> {
    let Some(stored) = StoredProfile::read(&path)? else { return Ok(None) };
    match stored.for_machine(cpu_model(), caches) {
        Ok(profile) => Ok(Some(InForce { profile, stored: Some((path, stored)), problem: None })),
        Err(problem) => Err(ProfileError { path, problem }),
    }
}

/// Where the profile of this user is stored: the file that `HUGEKIT_PROFILE` names, else
/// `hugekit/profile.toml` in the XDG configuration directory. `None` if the variable is empty, if there
/// is no home, or in a program that runs with more privilege than its user (set-user-ID), whose
/// environment is not to be trusted.
#[must_use]
pub fn path() -> Option<PathBuf> {
    if is_secure_execution() {
        return None;
    }
    match env::var_os(VARIABLE) {
        Some(path) => (!path.is_empty()).then(|| path.into()),
        None => Some(config_directory()?.join("hugekit/profile.toml")),
    }
}

/// By the XDG base directory specification, which has relative paths ignored.
fn config_directory() -> Option<PathBuf> {
    let set = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    set.or_else(|| {
        env::home_dir().filter(|home| home.is_absolute()).map(|home| home.join(".config"))
    })
}
