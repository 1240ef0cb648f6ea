//! A command where things are not as they should be: limits, and system calls that are refused.
#![allow(unsafe_code)]

use std::collections::BTreeMap;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, SeccompRule};

/// The program in an environment of a test, whose records would be no results.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    command.env("RUST_BACKTRACE", "1").env("XDG_DATA_HOME", "/dev/null");
    command
}

/// The program below a shell that sets limits.
pub fn limited(program: &str, limits: &str, arguments: &str) -> Output {
    let mut shell = command("sh");
    shell.args(["-c", &format!("{limits}; exec '{program}' {arguments}")]).output().unwrap()
}

/// Returns the standard error of a program, which must not show users hugekit's source.
pub fn said(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let printed = String::from_utf8_lossy(&output.stdout);
    for of_ours in ["backtrace", "panicked", ".rs:", "::"] {
        assert!(!said.contains(of_ours), "{of_ours}: {said}");
        assert!(of_ours == "::" || !printed.contains(of_ours), "{of_ours}: {printed}");
    }
    said
}

/// The program behind a filter of system calls, which refuses one of them with an error.
pub fn filtered(program: &str, call: i64, errno: i32, arguments: &str) -> Output {
    behind(program, BTreeMap::from([(call, Vec::new())]), errno, arguments)
}

/// The program behind a filter that refuses these system calls.
pub fn behind(
    program: &str,
    refused: BTreeMap<i64, Vec<SeccompRule>>,
    errno: i32,
    arguments: &str,
) -> Output {
    let refusal = SeccompAction::Errno(errno as u32);
    let arch = std::env::consts::ARCH.try_into().expect("an architecture of seccomp's");
    let filter = SeccompFilter::new(refused, SeccompAction::Allow, refusal, arch).unwrap();
    let filter = BpfProgram::try_from(filter).unwrap();
    let mut command = command(program);
    command.args(arguments.split(' '));
    // SAFETY: between fork and exec the child makes two system calls, and neither allocates nor takes a lock.
    unsafe {
        command.pre_exec(move || {
            seccompiler::apply_filter(&filter).map_err(|_| std::io::Error::last_os_error())
        });
    }
    command.output().unwrap()
}
