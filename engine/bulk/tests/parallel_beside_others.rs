//! Jobs of several processes share the threads that a machine has for them.
//!
//! One binary, two processes: the test starts itself again, and that process holds a job open until it is killed.
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};
use std::{env, io, thread};

use hugekit::{ClearOptions, Threads};
use hugekit_bulk::parallel::{Job, Limit, Placement, Report};
use hugekit_testing::trials::unless_lacking;
use libtest_mimic::{Arguments, Failed, Trial};

/// Set in the process that holds a job open.
const HOLDER: &str = "HUGEKIT_TEST_HOLDS_A_JOB";

/// Says that the chunk was begun, and never ends it.
fn hold() {
    let job = Job::new(1 << 20).threads(Threads::Auto);
    let _ = job.run(|_| -> Result<(), io::Error> {
        io::stdout().write_all(b"begun")?;
        io::stdout().flush()?;
        loop {
            thread::park();
        }
    });
}

/// A process that has all threads that are left, until it is dropped.
struct ThreadHog(Child);

impl ThreadHog {
    fn start() -> Self {
        let program = env::current_exe().unwrap();
        let mut child =
            Command::new(program).env(HOLDER, "1").stdout(Stdio::piped()).spawn().unwrap();
        let mut said = [0; 5];
        child.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
        Self(child)
    }
}

impl Drop for ThreadHog {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

fn job(threads: Threads) -> Report {
    Job::new(1 << 20).threads(threads).run(|_| Ok::<(), io::Error>(())).unwrap()
}

/// Other processes' jobs, which have nothing to do with this test, end soon.
fn soon(mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "not within a minute");
        thread::sleep(Duration::from_millis(5));
    }
}

fn job_beside_another_process_gets_what_is_left_and_all_once_it_is_killed() -> Result<(), Failed> {
    let most = Placement::here().threads();
    soon(|| job(Threads::Auto).threads == most);
    // The holder may have come while a job of others ran; what that gives back is free again.
    let holder = ThreadHog::start();
    let others = ThreadHog::start();
    soon(|| {
        let report = job(Threads::Auto);
        report.threads == 1 && report.capped == Some(Limit::OtherJobs(1))
    });
    assert_eq!(job(Threads::Exactly(2)).threads, 2);
    let mut bytes = vec![7_u8; 32 << 20];
    ClearOptions::new().threads(Threads::Auto).run(&mut bytes).unwrap();
    assert!(bytes.iter().all(|&byte| byte == 0));
    drop((holder, others));
    soon(|| job(Threads::Auto).threads == most && job(Threads::Auto).capped.is_none());
    Ok(())
}

/// A job that is started within another finds no thread free, for as long as that one runs.
fn job_within_a_job_gets_no_thread_that_the_other_has() -> Result<(), Failed> {
    let most = Placement::here().threads();
    let within = Mutex::new(Vec::new());
    soon(|| {
        within.lock().unwrap().clear();
        let outer = Job::new(1 << 20).run(|_| {
            within.lock().unwrap().push(job(Threads::Auto));
            Ok::<(), io::Error>(())
        });
        outer.unwrap().threads == most
    });
    let within = within.into_inner().unwrap();
    assert!(!within.is_empty());
    assert!(within.iter().all(|job| job.threads == 1));
    // A helper is pinned, and so are the jobs that it starts.
    assert!(within.iter().all(|job| matches!(job.capped, None | Some(Limit::OtherJobs(1)))));
    soon(|| job(Threads::Auto).threads == most);
    Ok(())
}

/// Forked within a job, the child has the file that holds the job's locks, and lives on.
fn job_that_is_over_has_no_thread_although_a_child_lives_on() -> Result<(), Failed> {
    let most = Placement::here().threads();
    let children = Mutex::new(Vec::new());
    let report = Job::new(1 << 20).min_chunk(1 << 19).run(|_| {
        // SAFETY: the child does nothing but wait for its end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: no precondition; should this test fail, the child goes with it.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            loop {
                // SAFETY: no precondition.
                unsafe { libc::pause() };
            }
        }
        children.lock().unwrap().push(child);
        Ok::<(), io::Error>(())
    });
    report.unwrap();
    soon(|| job(Threads::Auto).threads == most);
    for child in children.into_inner().unwrap() {
        // SAFETY: children of this test, which no other thread waits for.
        unsafe {
            assert_eq!(libc::kill(child, libc::SIGKILL), 0);
            assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child);
        }
    }
    Ok(())
}

/// Why jobs are not counted here.
fn lacking() -> Option<&'static str> {
    if Placement::here().threads() < 2 {
        return Some("this process has one CPU");
    }
    // SAFETY: answers with a number and takes no pointer.
    if unsafe { libc::prctl(libc::PR_GET_SECCOMP) } == 2 {
        return Some("a system-call filter is in force");
    }
    job(Threads::Auto);
    let locks = OpenOptions::new().read(true).write(true).open("/dev/shm/hugekit-threads");
    locks.is_err().then_some("/dev/shm cannot be written")
}

type Check = (&'static str, fn() -> Result<(), Failed>);

const CHECKS: &[Check] = hugekit_testing::checks![
    job_beside_another_process_gets_what_is_left_and_all_once_it_is_killed,
    job_within_a_job_gets_no_thread_that_the_other_has,
    job_that_is_over_has_no_thread_although_a_child_lives_on,
];

fn main() {
    if env::var_os(HOLDER).is_some() {
        return hold();
    }
    let lacking = lacking();
    let trial = |&(name, check): &Check| unless_lacking(Trial::test(name, check), lacking);
    let trials = CHECKS.iter().map(trial).collect();
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials).exit();
}
