//! A pager as a process, which can be killed: this program again.

use std::io::{self, BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use hugekit_vm::pager::{Pager, PagerOptions, Source};

use crate::scene::pager_options;

const ARGUMENT: &str = "hugekit-test-checkpoint-pager";

/// It ends when this is dropped.
pub(crate) struct PagerChild {
    child: Child,
    pub(crate) socket: PathBuf,
}

impl PagerChild {
    /// Returns when it listens.
    pub(crate) fn start(socket: PathBuf, memory: &Path, prefetch: bool) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .arg(ARGUMENT)
            .args([&socket, memory])
            .arg(prefetch.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "listening\n");
        Self { child, socket }
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for PagerChild {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Runs the pager until standard input is closed.
pub(crate) fn run_if_asked() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [first, socket, memory, prefetch] = &arguments[..] else { return };
    if first != ARGUMENT {
        return;
    }
    let prefetch = prefetch == "true";
    let options = PagerOptions { prefetch, ..pager_options() };
    let pager =
        Pager::start(socket.as_ref(), options, Source::open(memory.as_ref()).unwrap()).unwrap();
    println!("listening");
    pager.run(io::stdin().as_fd(), &|_| ()).unwrap();
    std::process::exit(0);
}
