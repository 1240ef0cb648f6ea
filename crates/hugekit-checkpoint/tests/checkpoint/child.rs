//! A checkpoint as a process, which can be killed: this program again.

use std::process::{Child, Command, Stdio};

use hugekit_checkpoint::{Settings, checkpoint};

const ARGUMENT: &str = "hugekit-test-checkpoint";

pub(crate) fn run_if_asked() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [first, pid, api, output, previous @ ..] = &arguments[..] else { return };
    if first != ARGUMENT {
        return;
    }
    let settings = Settings {
        previous: previous.iter().map(Into::into).collect(),
        ..Settings::new(pid.parse().unwrap(), api.into(), output.into())
    };
    let code = match checkpoint(&settings) {
        Ok(report) => {
            println!("{report}");
            0
        }
        Err(error) => {
            println!("{error}");
            1
        }
    };
    std::process::exit(code);
}

/// Starts one. What it says is piped.
pub(crate) fn start(settings: &Settings) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([ARGUMENT, &settings.pid.to_string()])
        .args([&settings.api, &settings.output])
        .args(&settings.previous)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}
