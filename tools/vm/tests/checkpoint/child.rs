//! A checkpoint or a fork as a process, which can be killed: this program again.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hugekit_vm::checkpoint::{ForkSettings, SeriesSettings, Settings, checkpoint};

use crate::family::fork_with;
use crate::series;

const ARGUMENT: &str = "hugekit-test-checkpoint";
const FORK: &str = "hugekit-test-fork";
const SERIES: &str = "hugekit-test-series";

/// Between two checkpoints of a series.
const INTERVAL: Duration = Duration::from_millis(100);

/// Children of a fork as a process.
pub(crate) const CHILDREN: [&str; 2] = ["a", "b"];

pub(crate) fn run_if_asked() {
    run_fork_if_asked();
    run_series_if_asked();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [first, pid, check_api, api, output, previous @ ..] = &arguments[..] else { return };
    if first != ARGUMENT {
        return;
    }
    let settings = Settings {
        check_api: check_api == "true",
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
        .args([ARGUMENT, &settings.pid.to_string(), &settings.check_api.to_string()])
        .args([&settings.api, &settings.output])
        .args(&settings.previous)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn run_series_if_asked() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [first, pid, api, output] = &arguments[..] else { return };
    if first != SERIES {
        return;
    }
    let vm = Settings::new(pid.parse().unwrap(), api.into(), output.into());
    let ended = series::run(&SeriesSettings::new(vm, INTERVAL), &mut |_, _| {});
    println!("{ended:?}");
    std::process::exit(1);
}

/// Starts a series without an end.
pub(crate) fn start_series(settings: &Settings) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([SERIES, &settings.pid.to_string()])
        .args([&settings.api, &settings.output])
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

/// What it said. It has ended.
pub(crate) fn said(child: Child) -> String {
    String::from_utf8_lossy(&child.wait_with_output().unwrap().stdout).into_owned()
}

fn run_fork_if_asked() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [first, pid, api] = &arguments[..] else { return };
    if first != FORK {
        return;
    }
    let api = Path::new(api);
    let settings = ForkSettings::new(pid.parse().unwrap(), api.to_owned(), Vec::new());
    // The API may be that of a proxy.
    let settings = ForkSettings { check_api: false, ..settings };
    // The children end when their guests are dropped, so this ends without that.
    let code = match fork_with(settings, api.parent().unwrap(), &CHILDREN) {
        Ok(_guests) => std::process::exit(0),
        Err(error) => {
            println!("{error:?}");
            1
        }
    };
    std::process::exit(code);
}

/// Starts a fork, whose temporary files are in the VM's folder.
pub(crate) fn start_fork(pid: i32, api: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([FORK, &pid.to_string()])
        .arg(api)
        .env("TMPDIR", api.parent().unwrap())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}
