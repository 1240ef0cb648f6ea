//! Errors that are said in another way: mistakes in the arguments that only the machine shows, such as more memory
//! than there is, and errors with a remedy.

use std::error::Error;
use std::fmt;

use clap::error::ErrorKind;
use hugekit::error_chain;

/// Ends the program as the parser of arguments does: message on standard error, exit code 2.
#[derive(Debug)]
pub(crate) struct UsageError(pub(crate) String);

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Error for UsageError {}

/// Ends the program so, with the usage of the subcommand that was asked for.
pub(crate) fn exit(mut cli: clap::Command, message: &str) -> ! {
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

/// An error with what can be done about it, which is said on a line of its own.
#[derive(Debug)]
pub(crate) struct Remedied {
    pub(crate) message: String,
    pub(crate) remedy: String,
}

impl Remedied {
    /// An error that has a remedy, or none.
    pub(crate) fn error(
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

/// An error with another message, and with the remedy that it has.
pub(crate) fn with_remedy(
    error: anyhow::Error,
    message: impl FnOnce(String) -> String,
) -> anyhow::Error {
    match error.downcast::<Remedied>() {
        Ok(Remedied { message: said, remedy }) => {
            Remedied { message: message(said), remedy }.into()
        }
        Err(other) => anyhow::Error::msg(message(format!("{other:#}"))),
    }
}
