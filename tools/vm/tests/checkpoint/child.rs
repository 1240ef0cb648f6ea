//! A checkpoint or a fork as a process, which can be killed: this program again.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, exit};
use std::time::Duration;

use hugekit_vm::checkpoint::{
    CheckpointOptions, CheckpointReport, CloneMemory, CloneOptions, ForkOptions, RunningVm,
    SeriesOptions, checkpoint, start_clones as clone_all,
};
use hugekit_vm::pager::Source;
use rustix::process::{Signal, getpid, kill_process};
use serde::Serialize;
use serde_json::from_str;

use crate::family::fork_with;
use crate::series;

const ARGUMENT: &str = "hugekit-test-checkpoint";
const FORK: &str = "hugekit-test-fork";
const SERIES: &str = "hugekit-test-series";

const STOPPING: &str = "hugekit-test-stopping-series";
const CLONES: &str = "hugekit-test-clones";
const ANSWERING: &str = "hugekit-test-answering";

/// Between two checkpoints of a series.
const INTERVAL: Duration = Duration::from_millis(100);

/// Children of a fork as a process.
pub(crate) const CHILDREN: [&str; 2] = ["a", "b"];

pub(crate) fn run_if_asked() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, options] = &arguments[..] else { return };
    match what.as_str() {
        ARGUMENT => end(checkpoint(&from_str(options).unwrap())),
        FORK => run_fork(from_str(options).unwrap()),
        SERIES => run_series(&from_str(options).unwrap(), &mut |_, _| {}),
        STOPPING => {
            let mut is_first = true;
            run_series(&from_str(options).unwrap(), &mut |_, _| {
                if std::mem::take(&mut is_first) {
                    kill_process(getpid(), Signal::STOP).unwrap();
                }
            });
        }
        CLONES => run_clones(from_str(options).unwrap()),
        ANSWERING => run_answering(&from_str::<PathBuf>(options).unwrap()),
        _ => {}
    }
}

fn end(saved: Result<impl Display, impl Display>) -> ! {
    match saved {
        Ok(report) => println!("{report}"),
        Err(error) => {
            println!("{error}");
            exit(1);
        }
    }
    exit(0)
}

fn run_fork(vm: RunningVm) -> ! {
    let folder = vm.api.parent().unwrap().to_owned();
    // The children end when their guests are dropped, so this ends without that.
    match fork_with(ForkOptions::new(vm, Vec::new()), &folder, &CHILDREN) {
        Ok(_guests) => exit(0),
        Err(error) => {
            println!("{error:?}");
            exit(1)
        }
    }
}

/// Without an end.
fn run_series(options: &CheckpointOptions, each: &mut dyn FnMut(&Path, &CheckpointReport)) -> ! {
    let ended = series::run(options, &SeriesOptions::new(INTERVAL), each);
    println!("{ended:?}");
    exit(1)
}

fn run_clones((options, memory): (CloneOptions, PathBuf)) -> ! {
    let memory = CloneMemory::Copied(Box::new(Source::open(&memory).unwrap()));
    end(clone_all(&options, memory).map(|cloned| cloned.report))
}

/// A VMM that says yes to each request and does nothing.
fn run_answering(api: &Path) -> ! {
    let listener = UnixListener::bind(api).unwrap();
    loop {
        let (mut connection, _) = listener.accept().unwrap();
        // Another child may have looked whether the API is there.
        let _ = connection.read(&mut [0; 4096]);
        let _ = connection.write_all(b"HTTP/1.1 204\r\nContent-Length: 0\r\n\r\n");
    }
}

/// The command of a VMM that says yes to each request and does nothing.
pub(crate) fn answering(api: &Path) -> Vec<OsString> {
    let command = again(ANSWERING, &api);
    let arguments = command.get_args().map(OsStr::to_owned);
    [command.get_program().to_owned()].into_iter().chain(arguments).collect()
}

/// Starts a checkpoint. What it says is piped.
pub(crate) fn start(options: &CheckpointOptions) -> Child {
    again(ARGUMENT, options).stdout(Stdio::piped()).spawn().unwrap()
}

/// Starts a series without an end.
pub(crate) fn start_series(options: &CheckpointOptions) -> Child {
    again(SERIES, options).spawn().unwrap()
}

/// Starts a series without an end, which stops itself after its first checkpoint as by Ctrl-Z.
pub(crate) fn start_stopping_series(options: &CheckpointOptions) -> Child {
    again(STOPPING, options).spawn().unwrap()
}

/// Starts a fork, whose temporary files are in the VM's folder. The API may be that of a proxy.
pub(crate) fn start_fork(pid: i32, api: &Path) -> Child {
    let vm = RunningVm::behind_proxy(pid, api.to_owned());
    let mut command = again(FORK, &vm);
    command.env("TMPDIR", api.parent().unwrap()).stdout(Stdio::piped()).spawn().unwrap()
}

fn again(what: &str, options: &impl Serialize) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([what, &serde_json::to_string(options).unwrap()]).stdin(Stdio::null());
    command
}

/// Starts clones, whose temporary files are in the folder.
pub(crate) fn start_clones(options: &CloneOptions, memory: &Path, folder: &Path) -> Child {
    let mut command = again(CLONES, &(options, memory));
    command.env("TMPDIR", folder).stdout(Stdio::piped()).spawn().unwrap()
}

/// What it said. It has ended.
pub(crate) fn said(child: Child) -> String {
    String::from_utf8_lossy(&child.wait_with_output().unwrap().stdout).into_owned()
}
