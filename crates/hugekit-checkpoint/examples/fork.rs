//! Measures children of a running guest: by `fork`, and by a stock snapshot and stock restores.
//!
//! `cargo run --release -p hugekit-checkpoint --example fork -- [ROUNDS] [FOLDER]`. The folder is
//! where stock snapshots are written, by default the one for temporary files. The guest has 1 GiB,
//! of which 512 MiB are not zero. Times are from the start of the children's VMMs until the last
//! child has answered.

use std::fs::{File, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::thread::JoinHandle;
use std::time::Instant;

use hugekit_checkpoint::{ChildSettings, ForkReport, ForkSettings, fork};
use hugekit_guests::{Firecracker, Request, Serial, Snapshot, program};
use rustix::fs::{CWD, Mode, mkfifoat};
use serde_json::Map;

mod restored;
use restored::{LONGEST_WAIT, QUIET, guest};

const MEMORY: u64 = 1024;
const WRITE: Request = Request::Write { start: 16 << 20, len: 512 << 20, seed: 7 };
const VERIFY: Request = Request::Verify { start: 16 << 20, len: 512 << 20, seed: 7 };
const CHILDREN: usize = 4;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let rounds: usize = arguments.next().map_or(5, |rounds| rounds.parse().expect("a number"));
    let stock = arguments.next().map_or(std::env::temp_dir(), PathBuf::from);
    let folder = tempfile::tempdir().expect("a folder");
    let guest = guest(folder.path(), MEMORY, WRITE);
    for round in 0..rounds {
        let names: Vec<String> = (0..CHILDREN).map(|n| format!("{round}-{n}")).collect();
        std::thread::sleep(QUIET);
        let (answered, report) = by_fork(&guest, folder.path(), &names);
        let (paused, complete) = (report.paused_ms, report.complete_ms);
        std::thread::sleep(QUIET);
        let (stock, stock_paused) = by_stock(&guest, folder.path(), &stock, &names);
        println!(
            "fork: {answered:.0} ms, paused {paused:.1} ms, complete after {complete:.0} ms; \
             stock: {stock:.0} ms, paused {stock_paused:.0} ms"
        );
    }
}

fn by_fork(guest: &Firecracker, folder: &Path, names: &[String]) -> (f64, ForkReport) {
    let (children, serials): (Vec<_>, Vec<_>) =
        names.iter().map(|name| child(folder, name)).unzip();
    let since = Instant::now();
    let answers: Vec<_> = serials.into_iter().map(|serial| await_answer(serial, since)).collect();
    let forked = fork(&ForkSettings::new(guest.pid(), folder.join("guest.api"), children));
    let forked = forked.expect("it is forked");
    let answered = last(answers);
    forked.programs.into_iter().for_each(end);
    (answered, forked.report)
}

fn end(mut program: Child) {
    let _ = program.kill();
    let _ = program.wait();
}

/// The request waits in the pipe until the guest runs.
fn await_answer(mut serial: Serial, since: Instant) -> JoinHandle<(f64, Serial)> {
    serial.send(Request::Reply).expect("it can be asked");
    std::thread::spawn(move || {
        serial.answer_within(LONGEST_WAIT).expect("it answers");
        (since.elapsed().as_secs_f64() * 1e3, serial)
    })
}

/// When the last one answered. All have the right words.
fn last(answers: Vec<JoinHandle<(f64, Serial)>>) -> f64 {
    let answers = answers.into_iter().map(|answer| {
        let (after, mut serial) = answer.join().expect("no panic");
        assert_eq!(serial.ask_within(VERIFY, LONGEST_WAIT).expect("it answers"), 0);
        after
    });
    answers.fold(0.0, f64::max)
}

fn child(folder: &Path, name: &str) -> (ChildSettings, Serial) {
    let path = |end: &str| folder.join(format!("{name}.{end}"));
    let [to, from]: [File; 2] = ["in", "out"].map(|end| {
        mkfifoat(CWD, path(end), Mode::RUSR | Mode::WUSR).expect("a pipe");
        OpenOptions::new().read(true).write(true).open(path(end)).expect("a pipe")
    });
    let script = "exec \"$0\" --api-sock \"$1\" --id child --level Off < \"$2\" > \"$3\"";
    let mut command = vec!["sh".into(), "-c".into(), script.into()];
    command.push(program().expect("a Firecracker").into_os_string());
    command.extend(["api", "in", "out"].map(|end| path(end).into_os_string()));
    let settings = ChildSettings { command, api: path("api"), load: Map::new() };
    (settings, Serial::of_files(to, from))
}

/// The VMMs start while the guest is saved.
fn by_stock(guest: &Firecracker, folder: &Path, to: &Path, names: &[String]) -> (f64, f64) {
    let since = Instant::now();
    let start = |name: &String| {
        let (folder, name) = (folder.to_owned(), format!("stock-{name}"));
        std::thread::spawn(move || Firecracker::start(&folder, &name).expect("it starts"))
    };
    let starts: Vec<_> = names.iter().map(start).collect();
    let saved = Snapshot { state: to.join("fork.state"), memory: to.join("fork.memory") };
    let paused = save(guest, &saved);
    let restores = starts.into_iter().map(|start| {
        let saved = saved.clone();
        std::thread::spawn(move || {
            let mut child = start.join().expect("no panic");
            child.load_by_file(&saved, &saved.memory, true).expect("it is restored");
            child.serial.ask(Request::Reply).expect("it answers");
            (since.elapsed().as_secs_f64() * 1e3, child)
        })
    });
    let restores: Vec<_> = restores.collect();
    let ended = restores.into_iter().map(|restore| restore.join().expect("no panic"));
    let (times, _children): (Vec<f64>, Vec<_>) = ended.unzip();
    for file in [&saved.state, &saved.memory] {
        std::fs::remove_file(file).expect("it is there");
    }
    (times.into_iter().fold(0.0, f64::max), paused)
}

/// How long the guest was paused.
fn save(guest: &Firecracker, to: &Snapshot) -> f64 {
    let since = Instant::now();
    guest.pause().expect("it pauses");
    let request = serde_json::json!({
        "snapshot_type": "Full", "snapshot_path": to.state, "mem_file_path": to.memory,
    });
    guest.put("/snapshot/create", &request).expect("it is saved");
    guest.resume().expect("it runs");
    since.elapsed().as_secs_f64() * 1e3
}
