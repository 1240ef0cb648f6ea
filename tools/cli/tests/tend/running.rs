//! Programs that tests start, and that end with them.

use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use hugekit_testing::processes::Killed;
use hugekit_testing::trials::skip;

/// Far more than anything here takes: what lasts longer hangs.
pub(crate) const HANGS: Duration = Duration::from_secs(60);

pub(crate) struct Running(pub(crate) Killed);

impl Running {
    pub(crate) fn sleeping() -> Self {
        Self::of(Command::new("sleep").arg("60").stdout(Stdio::null()))
    }

    /// Another user's, if this one may start it: a process of this name that does nothing.
    pub(crate) fn sleeping_named(name: &str) -> Self {
        let script = format!("printf {name} > /proc/$$/comm; echo ready; read line");
        let mut command = Command::new("setpriv");
        command.args(["--reuid", "65534", "--clear-groups", "sh", "-c", &script]);
        let mut running = Self::new(command.stdin(Stdio::piped()));
        running.lines().next_line();
        running
    }

    pub(crate) fn pid(&self) -> String {
        self.0.id().to_string()
    }

    /// `hugekit tend` with these arguments.
    pub(crate) fn tending(arguments: &[&str]) -> Self {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("hugekit"));
        Self::new(command.arg("tend").args(arguments))
    }

    pub(crate) fn new(command: &mut Command) -> Self {
        Self::of(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
    }

    /// Skips the test if there is no such program.
    pub(crate) fn of(command: &mut Command) -> Self {
        match command.spawn() {
            Ok(child) => Self(Killed(child)),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                skip(format!("no {}", command.get_program().display()))
            }
            Err(error) => panic!("{error}"),
        }
    }

    pub(crate) fn signal(&self, number: i32) {
        // SAFETY: the process is this one's child, which has not been waited for.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, number) }, 0);
    }

    /// Lines of its standard output, as they come.
    pub(crate) fn lines(&mut self) -> Lines {
        Lines::of(self.0.stdout.take().unwrap())
    }

    /// Skips the test if this process cannot tend, which it has said instead of a line.
    pub(crate) fn skip_if_refused(&mut self) -> ! {
        let said = self.said_on_stderr();
        skip_if_refused(&said);
        panic!("the tender has ended: {said}");
    }

    /// The first line of its standard error.
    pub(crate) fn said_on_stderr(&mut self) -> String {
        Lines::of(self.0.stderr.take().unwrap()).next_line().unwrap_or_default()
    }

    /// # Panics
    /// It does not end.
    pub(crate) fn ended(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(began.elapsed() < HANGS, "the program does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// The letter of its state.
    pub(crate) fn state(&self) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        stat.rsplit(')').next().unwrap().trim_start().chars().next().unwrap()
    }
}

/// Waits until something is so.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < HANGS, "never: {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// Read in a thread, so that a test does not hang with its program.
pub(crate) struct Lines(Receiver<String>);

impl Lines {
    pub(crate) fn of(output: impl Read + Send + 'static) -> Self {
        let (tell, told) = channel();
        thread::spawn(move || {
            let lines = BufReader::new(output).lines().map_while(Result::ok);
            for line in lines {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Self(told)
    }

    /// Nothing at the output's end.
    pub(crate) fn next_line(&self) -> Option<String> {
        match self.0.recv_timeout(HANGS) {
            Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("the program says nothing"),
            line => line.ok(),
        }
    }

    /// The first line that has this; what came before it is passed over.
    pub(crate) fn until(&self, part: &str) -> String {
        loop {
            let line = self.next_line().unwrap_or_else(|| panic!("never said: {part}"));
            if line.contains(part) {
                return line;
            }
        }
    }
}

/// Skips a test if no process can be tended here: the kernel does not permit it, or the user who runs the test may not.
pub(crate) fn skip_if_refused(output: &str) {
    let refusals = ["may not be tended", "needs Linux 6.1", "only pages of 2 MiB"];
    if let Some(at) = refusals.iter().find_map(|why| output.find(why)) {
        skip(format!("a process {}", output[at..].lines().next().unwrap_or_default()));
    }
}
