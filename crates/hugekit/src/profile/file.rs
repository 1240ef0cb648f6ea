//! Where a user's profile is stored, and how a program goes by it.

use std::env;
use std::path::PathBuf;

use super::in_force::{Installed, caches};
use super::{AlreadyInstalled, Measured, Problem, Profile, ProfileError, StoredProfile, Tuned};
use crate::arch::cpu_model;
use crate::sys::process::is_secure_execution;

/// Names the file of the profile; empty, it says that there is none.
const VARIABLE: &str = "HUGEKIT_PROFILE";

/// A profile that is to be installed, and where it came from.
#[derive(Debug)]
pub struct Loaded {
    /// Its values.
    pub profile: Profile,
    /// The file that some of them came from; `None` if there is none, and all are built in.
    pub source: Option<Source>,
}

/// A file, and what it held.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file.
    pub path: PathBuf,
    /// What was measured, and how.
    pub stored: StoredProfile,
}

impl Profile {
    /// Reads the profile that `hugekit tune` has stored for this user, at [`path`]; what is built
    /// in where there is none. Nothing goes by it before it is [installed](Loaded::install).
    ///
    /// ```
    /// use hugekit::Profile;
    ///
    /// Profile::load()?.install()?; // where the program starts
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ProfileError`] if the file cannot be read, is damaged, or is of another machine or
    /// version. A program can go on without it.
    pub fn load() -> Result<Loaded, ProfileError> {
        match path().map(read) {
            Some(loaded) => loaded,
            None => Ok(Loaded::built_in()),
        }
    }
}

impl Loaded {
    fn built_in() -> Self {
        Self { profile: Profile::builtin_here(), source: None }
    }

    /// Has this process go by it, as [`Profile::install`] does. Where there was no file, and its routines are those
    /// built in, operations go on [learning](crate::learning).
    ///
    /// # Errors
    /// As there.
    pub fn install(self) -> Result<(), AlreadyInstalled> {
        let is_fixed = self.source.is_some() || !self.profile.has_routines_of(Profile::built_in());
        Installed { profile: self.profile, is_fixed, source: self.source }.install()
    }
}

/// The file that values of the profile in force came from, if any did.
#[must_use]
pub fn source() -> Option<&'static Source> {
    Installed::get()?.source.as_ref()
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
        self.over(Profile::builtin_here(), cpu_model(), caches())
    }
}

fn read(path: PathBuf) -> Result<Loaded, ProfileError> {
    let Some(stored) = StoredProfile::read(&path)? else { return Ok(Loaded::built_in()) };
    match stored.for_this_machine() {
        Ok(profile) => Ok(Loaded { profile, source: Some(Source { path, stored }) }),
        Err(problem) => Err(ProfileError { path, problem }),
    }
}

/// Where the profile of this user is stored: the file that `HUGEKIT_PROFILE` names, else
/// `hugekit/profile.toml` in the XDG configuration directory. `None` if the variable is empty, if
/// there is no home, or in a program that runs with more privilege than its user (set-user-ID),
/// whose environment is not to be trusted.
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

/// By the XDG base directory specification, which has relative paths ignored. By hand, because that
/// is all of it that is needed, and every program that asks for the feature would link a crate for
/// it.
fn config_directory() -> Option<PathBuf> {
    let set = env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    #[allow(deprecated, reason = "before Rust 1.87, for what it did on Windows")]
    set.or_else(|| {
        env::home_dir().filter(|home| home.is_absolute()).map(|home| home.join(".config"))
    })
}
