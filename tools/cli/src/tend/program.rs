//! A program that is started to be tended. `hugekit tend` may be the first process of a container then, so it does for
//! the program what a small init does: it passes signals on, reaps children, and ends with the program's status.

use std::ffi::OsString;
use std::process::{Child, Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Context;
use rustix::process::{Pid, Signal as Number, WaitOptions, WaitStatus, kill_process, wait};
use signal_hook::consts::{
    SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2, SIGWINCH,
};

use super::signals::{Signal, Signals};
use super::watch::{self, Awaited};

const PASSED_ON: [i32; 9] =
    [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP, SIGCONT];

/// Signals of keys and of the window's size: the terminal sends these to the program, too, which is in the same
/// process group.
const OF_THE_TERMINAL: [i32; 4] = [SIGINT, SIGQUIT, SIGTSTP, SIGWINCH];

/// Runs a program to its end beside `work`, which is given its number.
pub(super) fn run(
    command: &[OsString],
    work: impl FnOnce(i32, &AtomicBool) -> anyhow::Result<()> + Send + 'static,
) -> anyhow::Result<ExitCode> {
    let signals = Signals::block(&[&PASSED_ON[..], &[SIGCHLD]].concat())?;
    let child = start(command, &signals)?;
    let pid = Pid::from_child(&child);
    let never = Arc::new(AtomicBool::new(false));
    let work = move |stop: &AtomicBool| work(pid.as_raw_pid(), stop);
    let events = watch::start(signals, &never, work)?;
    loop {
        match events.recv()? {
            Awaited::Signal(Signal { number: SIGCHLD, .. }) => {
                if let Some(status) = reap(pid) {
                    return Ok(code_of(status));
                }
            }
            Awaited::Signal(signal) => pass_on(signal, pid),
            // The program runs on untended; the work has said why.
            Awaited::Ended(_) => {}
        }
    }
}

fn start(command: &[OsString], signals: &Signals) -> anyhow::Result<Child> {
    let (program, arguments) = command.split_first().context("no program is named")?;
    let mut command = Command::new(program);
    signals.restore_in(command.args(arguments));
    command.spawn().with_context(|| format!("cannot start {}", program.to_string_lossy()))
}

fn pass_on(signal: Signal, to: Pid) {
    let Some(number) = Number::from_named_raw(signal.number) else { return };
    if !(signal.is_kernels && OF_THE_TERMINAL.contains(&signal.number)) {
        // It may have ended; its number is not another's before it is reaped.
        let _ = kill_process(to, number);
    }
    if signal.number == SIGTSTP {
        // The shell that waits for this process sees it stopped, as it would see the program.
        let _ = kill_process(rustix::process::getpid(), Number::STOP);
    }
}

/// Waits for every child that has ended: the program, and what the first process of a container inherits. The program's
/// status, if it is among them.
fn reap(program: Pid) -> Option<WaitStatus> {
    let mut ended = None;
    while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
        ended = ended.or((pid == program).then_some(status));
    }
    ended
}

/// Returns the exit code as shells have it: the status, or 128 and the signal.
fn code_of(status: WaitStatus) -> ExitCode {
    let code = status.exit_status().or_else(|| Some(128 + status.terminating_signal()?));
    code.and_then(|code| u8::try_from(code).ok()).map_or(ExitCode::FAILURE, ExitCode::from)
}
