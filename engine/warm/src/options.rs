//! The options of a warm-up. The command, Python and programs in Rust have their defaults from here. With the feature
//! `clap`, they are arguments of the command.

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

/// The task: look at a file, make its page cache huge, or keep it in memory, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WarmMode {
    /// Counts the huge units of the file. Reads no byte of it and drops nothing.
    Check,
    /// Makes the units huge.
    #[default]
    Make,
    /// Makes the units huge, and locks them in memory.
    Keep,
}

/// Options of a warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "clap", derive(clap::Args))]
#[serde(default, deny_unknown_fields)]
pub struct WarmOptions {
    /// The task.
    #[cfg_attr(feature = "clap", command(flatten))]
    pub mode: WarmMode,
    /// Fill holes of the file with memory, too. By default 2 MiB without data are skipped.
    #[cfg_attr(feature = "clap", arg(long))]
    pub fill_holes: bool,
    /// Units of 2 MiB that are dropped from the cache and read again together. If the call is stopped, at most these are
    /// missing in the cache. Default: 32.
    #[cfg_attr(feature = "clap", arg(skip = WarmOptions::default().window))]
    pub window: NonZeroU32,
    /// The most times that a unit is read. Default: 4.
    #[cfg_attr(feature = "clap", arg(skip = WarmOptions::default().rounds))]
    pub rounds: NonZeroU32,
}

const WINDOW: NonZeroU32 = NonZeroU32::new(32).expect("not zero");
const ROUNDS: NonZeroU32 = NonZeroU32::new(4).expect("not zero");

impl Default for WarmOptions {
    fn default() -> Self {
        Self { mode: WarmMode::Make, fill_holes: false, window: WINDOW, rounds: ROUNDS }
    }
}

/// Two arguments for the three modes.
#[cfg(feature = "clap")]
mod arguments {
    use clap::{ArgMatches, Args, Command, Error, FromArgMatches};

    use super::WarmMode;

    #[derive(Args)]
    struct ModeArguments {
        /// Only count huge units: read nothing and change nothing
        #[arg(long)]
        check: bool,
        /// Stay, and keep the file in memory until this command ends
        #[arg(long, conflicts_with = "check")]
        keep: bool,
    }

    impl FromArgMatches for WarmMode {
        fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
            let ModeArguments { check, keep } = ModeArguments::from_arg_matches(matches)?;
            Ok(match (check, keep) {
                (true, _) => Self::Check,
                (_, true) => Self::Keep,
                _ => Self::Make,
            })
        }

        fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
            *self = Self::from_arg_matches(matches)?;
            Ok(())
        }
    }

    impl Args for WarmMode {
        fn augment_args(command: Command) -> Command {
            ModeArguments::augment_args(command)
        }

        fn augment_args_for_update(command: Command) -> Command {
            ModeArguments::augment_args_for_update(command)
        }
    }
}
