//! The end of a command: its exit code and its error. Two kinds of errors are printed differently:
//! mistakes in the arguments that only this machine reveals, such as more memory than it has, and
//! errors with a remedy.

use std::error::Error;
use std::fmt;
use std::io;
use std::process::ExitCode;

use clap::error::ErrorKind;
use hugekit::error_chain;
use hugekit_machine::size::Size;
use rustix::process::{Resource, getrlimit};

/// The exit code of a run that Ctrl-C ended: 128 + SIGINT, as in shells.
pub const INTERRUPTED: u8 = 130;

/// An error that ends the program as the parser of arguments does: message on standard error, exit
/// code 2.
#[derive(Debug)]
pub struct UsageError(pub String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for UsageError {}

/// Returns the exit code of a command with this outcome. `say` prints an error line by line: its
/// causes without a backtrace, which does not help a user of the command, and then its remedy. A
/// [`UsageError`] ends the program.
pub fn exit_code(
    outcome: anyhow::Result<ExitCode>,
    command: impl FnOnce() -> clap::Command,
    say: fn(&str),
) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        if let Some(UsageError(message)) = error.downcast_ref() {
            refuse(command(), message);
        }
        say(&format!("error: {error:#}"));
        if let Some(remedy) = remedy(&error) {
            say(&format!("remedy: {remedy}"));
        }
        ExitCode::FAILURE
    })
}

/// Returns the remedy of an error. If the error has none, returns the remedy for the limit of file
/// sizes, if that is the reason.
fn remedy(error: &anyhow::Error) -> Option<String> {
    if let Some(Remedied { remedy, .. }) = error.downcast_ref() {
        return Some(remedy.clone());
    }
    let is_too_large = |cause: &(dyn Error + 'static)| {
        let error = cause.downcast_ref::<io::Error>();
        error.is_some_and(|error| error.kind() == io::ErrorKind::FileTooLarge)
    };
    let limit = getrlimit(Resource::Fsize).current?;
    error.chain().any(is_too_large).then(|| {
        let limit = Size(usize::try_from(limit).unwrap_or(usize::MAX));
        format!(
            "files of this process may have {limit}, and memory in files counts: ulimit -f \
             unlimited (LimitFSIZE=infinity of a unit)"
        )
    })
}

/// Ends the program as for a mistake in the arguments, with the usage of the requested subcommand.
fn refuse(mut cli: clap::Command, message: &str) -> ! {
    cli.build();
    let mut command = &mut cli;
    for word in std::env::args_os().skip(1) {
        if command.find_subcommand(&word).is_none() {
            break;
        }
        command = command.find_subcommand_mut(&word).expect("it was found");
    }
    command.error(ErrorKind::ValueValidation, message).exit()
}

/// An error with a remedy, which is printed on a line of its own.
#[derive(Debug)]
pub struct Remedied {
    /// The failure.
    pub message: String,
    /// The remedy: a step that helps.
    pub remedy: String,
}

impl Remedied {
    /// Returns an error with a remedy, or without one.
    #[must_use]
    pub fn error(
        error: impl Error + Send + Sync + 'static,
        remedy: Option<String>,
    ) -> anyhow::Error {
        match remedy {
            Some(remedy) => Self { message: error_chain(&error).to_string(), remedy }.into(),
            None => error.into(),
        }
    }
}

impl fmt::Display for Remedied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl Error for Remedied {}

/// Returns an error with another message and the same remedy.
#[must_use]
pub fn with_remedy(error: anyhow::Error, message: impl FnOnce(String) -> String) -> anyhow::Error {
    match error.downcast::<Remedied>() {
        Ok(Remedied { message: said, remedy }) => {
            Remedied { message: message(said), remedy }.into()
        }
        Err(other) => anyhow::Error::msg(message(format!("{other:#}"))),
    }
}
