//! Profiles as files: what `hugekit tune` measured on one machine with one version.
//!
//! A file holds only what was measured; the rest stays built in. It is refused as a whole if it is of
//! another machine or version, or if any value in it makes no sense: half a profile would be neither.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;
use serde::{Deserialize, Serialize};

use super::{Band, Bands, Profile};
use crate::arch::{CpuModel, Routine};
use crate::machine::CacheSizes;
use crate::sys::injection::{Call, pass};

const SCHEMA: &str = "hugekit-profile/1";
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// No profile is nearly as long; what is longer is something else.
const MOST_BYTES: u64 = 64 << 10;

/// A profile as it is stored, in TOML.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StoredProfile {
    schema: String,
    hugekit: String,
    /// How it was measured.
    pub tuned: Tuned,
    machine: StoredMachine,
    /// What was measured.
    pub measured: Measured,
}

/// How a profile was measured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tuned {
    /// The command that did it.
    pub command: String,
    /// How far apart two measurements of the same thing were: 0.03 is 3 %.
    pub spread: f64,
}

/// The machine, as far as the choice of a routine depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct StoredMachine {
    vendor: String,
    family: u32,
    model: u32,
    l1d: usize,
    l2: usize,
    llc: usize,
}

/// Values that were measured; each absent one stays built in. The fields are those of [`Profile`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "they are those of `Profile`")]
pub struct Measured {
    pub near_bytes: Option<usize>,
    pub near_bytes_all: Option<usize>,
    pub parallel_from: Option<usize>,
    pub min_chunk: Option<usize>,
    pub thread_cap: Option<usize>,
    pub clear_warm: Option<Vec<StoredBand>>,
    pub clear_cold: Option<Vec<StoredBand>>,
    pub copy_warm: Option<Vec<StoredBand>>,
    pub copy_cold: Option<Vec<StoredBand>>,
}

/// From `from` bytes on, the routine of this name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(missing_docs, reason = "said above")]
pub struct StoredBand {
    pub from: usize,
    pub routine: String,
}

/// A stored profile that is ignored.
#[derive(thiserror::Error)]
#[error("profile {} is ignored: {problem}", path.display())]
pub struct ProfileError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    #[source]
    pub problem: Problem,
}

/// Why a stored profile is ignored.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// There is something, and it cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// It is no TOML, or not a profile's.
    #[error("it is damaged: {0}")]
    Damaged(String),
    /// It is of a kind that this version does not know.
    #[error("it is a {found:?}, not a {SCHEMA:?}")]
    Schema {
        /// What it says it is.
        found: String,
    },
    /// Another version measured it, whose routines may have been others.
    #[error("hugekit {found} measured it, this is {VERSION}; `hugekit tune` measures anew")]
    Version {
        /// The version.
        found: String,
    },
    /// It was measured on another machine.
    #[error("it is of another machine ({stored}), this is {here}; `hugekit tune` measures anew")]
    Machine {
        /// That machine.
        stored: String,
        /// This machine.
        here: String,
    },
    /// A routine does not exist here, or does not run here.
    #[error("{key} names routine {name:?}, which this machine does not have")]
    Routine {
        /// The value's name.
        key: &'static str,
        /// The routine's.
        name: String,
    },
    /// Bands that are no step function from 0 on.
    #[error("{key} must begin at 0 and ascend")]
    Bands {
        /// The value's name.
        key: &'static str,
    },
    /// A number that cannot be meant.
    #[error("{key} = {value} makes no sense")]
    Value {
        /// The value's name.
        key: &'static str,
        /// The number.
        value: usize,
    },
}

impl std::fmt::Display for StoredMachine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { vendor, family, model, l1d, l2, llc } = self;
        write!(f, "{vendor} family {family} model {model}, caches {l1d}/{l2}/{llc} bytes")
    }
}

impl StoredMachine {
    fn of(cpu: CpuModel, caches: CacheSizes) -> Self {
        Self {
            vendor: format!("{:?}", cpu.vendor),
            family: cpu.family,
            model: cpu.model,
            l1d: caches.l1d,
            l2: caches.l2,
            llc: caches.llc,
        }
    }
}

impl StoredProfile {
    /// What was measured on a machine by this version.
    #[must_use]
    pub fn new(cpu: CpuModel, caches: CacheSizes, tuned: Tuned, measured: Measured) -> Self {
        let machine = StoredMachine::of(cpu, caches);
        Self { schema: SCHEMA.to_owned(), hugekit: VERSION.to_owned(), tuned, machine, measured }
    }

    /// The text of its file.
    ///
    /// # Panics
    /// Never: TOML has all of its values.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a profile is tables, strings and numbers")
    }

    /// Reads a file; `None` if there is none.
    ///
    /// # Errors
    /// [`ProfileError`] if it cannot be read, or is no profile of this version.
    pub fn read(path: &Path) -> Result<Option<Self>, ProfileError> {
        let failed = |problem| ProfileError { path: path.to_owned(), problem };
        match read_text(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(failed(error.into())),
            Ok(text) => Self::parse(&text).map(Some).map_err(failed),
        }
    }

    /// The profile of a file with this text.
    ///
    /// # Errors
    /// [`Problem`] if it is damaged, or of another kind or version.
    pub fn parse(text: &str) -> Result<Self, Problem> {
        match toml::from_str::<Self>(text) {
            Ok(stored) => match Kind::problem(&stored.schema, &stored.hugekit) {
                Some(problem) => Err(problem),
                None => Ok(stored),
            },
            // Another version's may have other keys, and is not damaged for that.
            Err(error) => Err(toml::from_str(text)
                .ok()
                .and_then(|Kind { schema, hugekit }| Kind::problem(&schema, &hugekit))
                .unwrap_or_else(|| Problem::Damaged(error.message().to_owned()))),
        }
    }

    /// The profile of this machine: what was measured, and what is built in for the rest.
    ///
    /// # Errors
    /// [`Problem`] if it is of another machine, or a value makes no sense here.
    pub fn for_machine(&self, cpu: CpuModel, caches: CacheSizes) -> Result<Profile, Problem> {
        self.over(Profile::builtin(cpu, caches), cpu, caches)
    }

    /// What was measured in place of what `profile` has.
    pub(super) fn over(
        &self,
        mut profile: Profile,
        cpu: CpuModel,
        caches: CacheSizes,
    ) -> Result<Profile, Problem> {
        let here = StoredMachine::of(cpu, caches);
        if self.machine != here {
            let (stored, here) = (self.machine.to_string(), here.to_string());
            return Err(Problem::Machine { stored, here });
        }
        self.measured.replace(&mut profile)?;
        Ok(profile)
    }
}

/// What every version of the file begins with.
#[derive(Deserialize)]
struct Kind {
    schema: String,
    hugekit: String,
}

impl Kind {
    fn problem(schema: &str, hugekit: &str) -> Option<Problem> {
        if schema != SCHEMA {
            return Some(Problem::Schema { found: schema.to_owned() });
        }
        (hugekit != VERSION).then(|| Problem::Version { found: hugekit.to_owned() })
    }
}

fn read_text(path: &Path) -> io::Result<String> {
    // A pipe that no thread writes to must not hold up the program.
    let flags = OFlags::NONBLOCK.bits() as i32;
    pass(Call::Open)?;
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    pass(Call::Fstat)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no regular file"));
    }
    let mut text = String::with_capacity(4 << 10);
    pass(Call::Read)?;
    if file.take(MOST_BYTES + 1).read_to_string(&mut text)? as u64 > MOST_BYTES {
        return Err(io::Error::other(format!("it is longer than {MOST_BYTES} bytes")));
    }
    Ok(text)
}

impl Measured {
    fn replace(&self, profile: &mut Profile) -> Result<(), Problem> {
        replace_bands("clear_warm", self.clear_warm.as_deref(), &mut profile.clear.warm)?;
        replace_bands("clear_cold", self.clear_cold.as_deref(), &mut profile.clear.cold)?;
        replace_bands("copy_warm", self.copy_warm.as_deref(), &mut profile.copy.warm)?;
        replace_bands("copy_cold", self.copy_cold.as_deref(), &mut profile.copy.cold)?;
        let numbers = [
            ("near_bytes", self.near_bytes, &mut profile.near_bytes),
            ("near_bytes_all", self.near_bytes_all, &mut profile.near_bytes_all),
            ("parallel_from", self.parallel_from, &mut profile.parallel_from),
            ("min_chunk", self.min_chunk, &mut profile.min_chunk),
            ("thread_cap", self.thread_cap, &mut profile.thread_cap),
        ];
        numbers.into_iter().try_for_each(|(key, value, place)| replace_number(key, value, place))
    }
}

fn replace_number(
    key: &'static str,
    value: Option<usize>,
    place: &mut usize,
) -> Result<(), Problem> {
    match value {
        Some(value) if value == 0 || value > isize::MAX as usize => {
            Err(Problem::Value { key, value })
        }
        Some(value) => {
            *place = value;
            Ok(())
        }
        None => Ok(()),
    }
}

fn replace_bands<F>(
    key: &'static str,
    stored: Option<&[StoredBand]>,
    bands: &mut Bands<F>,
) -> Result<(), Problem> {
    let Some(stored) = stored else { return Ok(()) };
    let begins = stored.first().is_some_and(|band| band.from == 0);
    if !begins || !stored.is_sorted_by(|a, b| a.from < b.from) {
        return Err(Problem::Bands { key });
    }
    let band = |band: &StoredBand| {
        let routine = available(bands.table, &band.routine);
        let unknown = || Problem::Routine { key, name: band.routine.clone() };
        Ok(Band { from: band.from, routine: routine.ok_or_else(unknown)? })
    };
    bands.bands = stored.iter().map(band).collect::<Result<_, Problem>>()?;
    Ok(())
}

fn available<F>(table: &'static [Routine<F>], name: &str) -> Option<&'static Routine<F>> {
    table.iter().find(|routine| routine.name() == name && routine.is_available())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::{option, sample};

    use super::*;
    use crate::arch::{Vendor, clear_routines};

    const CPU: CpuModel = CpuModel { vendor: Vendor::Other, family: 6, model: 7 };
    const CACHES: CacheSizes =
        CacheSizes { l1d: 32 << 10, l2: 1 << 20, llc: 32 << 20, llc_shared_by: 2 };

    fn stored(measured: Measured) -> StoredProfile {
        let tuned = Tuned { command: "hugekit tune".to_owned(), spread: 0.03 };
        StoredProfile::new(CPU, CACHES, tuned, measured)
    }

    fn band(from: usize, routine: &str) -> StoredBand {
        StoredBand { from, routine: routine.to_owned() }
    }

    fn bands() -> impl Strategy<Value = Vec<StoredBand>> {
        let available: Vec<&str> = clear_routines()
            .iter()
            .filter(|routine| routine.is_available())
            .map(Routine::name)
            .collect();
        let steps = prop::collection::btree_map(1_usize..1 << 40, sample::select(available), 0..6);
        steps.prop_map(|steps| {
            let later = steps.into_iter().map(|(from, name)| band(from, name));
            std::iter::once(band(0, "memset")).chain(later).collect()
        })
    }

    proptest! {
        #[test]
        fn load_of_what_was_stored_is_the_same(
            warm in option::of(bands()),
            near_bytes in option::of(1_usize..1 << 40),
            thread_cap in option::of(1_usize..4096),
        ) {
            let measured =
                Measured { clear_warm: warm.clone(), near_bytes, thread_cap, ..Measured::default() };
            let stored = stored(measured);
            prop_assert_eq!(&StoredProfile::parse(&stored.to_toml()).unwrap(), &stored);
            let (profile, built) =
                (stored.for_machine(CPU, CACHES).unwrap(), Profile::builtin(CPU, CACHES));
            prop_assert_eq!(profile.near_bytes, near_bytes.unwrap_or(built.near_bytes));
            prop_assert_eq!(profile.thread_cap, thread_cap.unwrap_or(built.thread_cap));
            prop_assert_eq!(profile.min_chunk, built.min_chunk);
            let name = |bands: &Bands<_>| -> Vec<_> {
                bands.as_slice().iter().map(|b| band(b.from, b.routine.name())).collect()
            };
            let expected = warm.unwrap_or_else(|| name(&built.clear.warm));
            prop_assert_eq!(name(&profile.clear.warm), expected);
            prop_assert_eq!(name(&profile.clear.cold), name(&built.clear.cold));
        }

        #[test]
        fn parse_of_any_text_does_not_panic(text in ".*") {
            let _ = StoredProfile::parse(&text);
        }
    }

    fn problem(measured: Measured) -> String {
        stored(measured).for_machine(CPU, CACHES).unwrap_err().to_string()
    }

    #[test]
    fn load_of_nonsense_values_refuses_them_by_name() {
        let warm = |bands| Measured { clear_warm: Some(bands), ..Measured::default() };
        assert!(problem(warm(vec![])).contains("clear_warm must begin at 0"));
        assert!(problem(warm(vec![band(1, "memset")])).contains("begin at 0"));
        let twice = vec![band(0, "memset"), band(0, "memset")];
        assert!(problem(warm(twice)).contains("ascend"));
        assert!(problem(warm(vec![band(0, "magic")])).contains("\"magic\""));
        let zero = Measured { min_chunk: Some(0), ..Measured::default() };
        assert_eq!(problem(zero), "min_chunk = 0 makes no sense");
    }

    #[test]
    fn load_on_another_machine_is_told_from_this_one() {
        let stored = stored(Measured::default());
        let larger = CacheSizes { llc: 64 << 20, ..CACHES };
        let error = stored.for_machine(CPU, larger).unwrap_err().to_string();
        assert!(error.contains("33554432") && error.contains("67108864"), "{error}");
        assert!(stored.for_machine(CpuModel { model: 8, ..CPU }, CACHES).is_err());
        let shared = CacheSizes { llc_shared_by: 1, ..CACHES };
        assert!(stored.for_machine(CPU, shared).is_ok(), "other CPUs may be offline");
    }

    #[test]
    fn load_of_other_kinds_versions_and_damage_tells_them_apart() {
        let text = stored(Measured::default()).to_toml();
        let parse = |text: &str| StoredProfile::parse(text).unwrap_err();
        assert!(matches!(parse(&text.replace("profile/1", "profile/2")), Problem::Schema { .. }));
        let other =
            text.replace(&format!("hugekit = \"{VERSION}\""), "hugekit = \"99.0.0\"\nnew = 1");
        assert!(matches!(parse(&other), Problem::Version { .. }), "{other}");
        for damaged in ["", "schema", &text[..text.len() / 2], &text.replace("spread", "spraed")] {
            assert!(matches!(parse(damaged), Problem::Damaged(_)), "{damaged}");
        }
    }

    #[test]
    fn load_of_no_file_is_none_and_of_too_long_ones_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(StoredProfile::read(&folder.path().join("none")).unwrap().is_none());
        let error = StoredProfile::read(folder.path()).unwrap_err();
        assert!(error.to_string().contains("no regular file"), "{error}");
        let long = folder.path().join("long");
        std::fs::write(&long, "#".repeat(70_000)).unwrap();
        assert!(StoredProfile::read(&long).unwrap_err().to_string().contains("longer than"));
    }
}
