//! Measures four clones of a Firecracker guest of 1 GiB, in shuffled rounds: their memory copied, mapped from a file on small
//! pages, from a warmed file, and from an image.
//!
//! `HUGEKIT_FIRECRACKER=… cargo run --release -p hugekit-vm --example clones -- ROUNDS`

use std::error::Error;
use std::fs::{self, File};
use std::path::Path;
use std::time::{Duration, Instant};

use hugekit_guests::{Firecracker, Pages, Request, Serial, Snapshot, lacking, program};
use hugekit_image::Image;
use hugekit_vm::api::send;
use hugekit_vm::checkpoint::{ChildOptions, CloneMemory, CloneOptions, start_clones};
use hugekit_vm::pager::Source;
use rustix::fs::{CWD, Mode, mkfifoat};
use serde_json::json;
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// Half of the memory has bytes that are not zero, and is touched after the start.
const START: u64 = 256 * MIB;
const LEN: u64 = 512 * MIB;

const CLONES: usize = 4;
const LONGEST_WAIT: Duration = Duration::from_secs(300);

#[derive(Clone, Copy, Debug)]
enum Way {
    Copied,
    Small,
    Warmed,
    Image,
}

const WAYS: [Way; 4] = [Way::Copied, Way::Small, Way::Warmed, Way::Image];

/// The sources of memory.
struct Saved {
    folder: TempDir,
    snapshot: Snapshot,
    image: Image,
}

impl Saved {
    fn new() -> Result<Self, Box<dyn Error>> {
        let folder = TempDir::new()?;
        let snapshot = Snapshot::in_folder(folder.path());
        let mut origin = Firecracker::start(folder.path(), "origin")?;
        origin.boot(1024, Pages::Base)?;
        origin
            .serial
            .ask_within(Request::Write { start: START, len: LEN, seed: 1 }, LONGEST_WAIT)?;
        origin.save(&snapshot)?;
        drop(origin);
        let image = Image::load(&snapshot.memory)?;
        let copy = folder.path().join("warmed");
        fs::copy(&snapshot.memory, &copy)?;
        // Pages that are being written cannot be dropped from the cache.
        File::open(&copy)?.sync_all()?;
        Ok(Self { folder, snapshot, image })
    }

    fn memory(&self, way: Way) -> Result<CloneMemory, Box<dyn Error>> {
        Ok(match way {
            Way::Copied => CloneMemory::Copied(Box::new(Source::open(&self.snapshot.memory)?)),
            Way::Small => CloneMemory::Mapped(File::open(&self.snapshot.memory)?),
            Way::Warmed => CloneMemory::Mapped(File::open(self.warmed()?)?),
            Way::Image => CloneMemory::Mapped(File::from(self.image.open_again()?)),
        })
    }

    fn warmed(&self) -> Result<std::path::PathBuf, Box<dyn Error>> {
        let path = self.folder.path().join("warmed");
        for _ in 0..10 {
            if hugekit_warm::warm(&path)?.is_warm() {
                return Ok(path);
            }
        }
        Err("the file cannot be warmed".into())
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    if let Some(reason) = lacking() {
        return Err(reason.into());
    }
    let rounds: u32 = std::env::args().nth(1).map_or(Ok(8), |rounds| rounds.parse())?;
    let saved = Saved::new()?;
    println!(
        "way; milliseconds until {CLONES} clones have replied, until the call returned, and for a touch of 512 MiB"
    );
    for _ in 0..rounds {
        let mut ways = WAYS;
        fastrand::shuffle(&mut ways);
        for way in ways {
            let [replied, complete, touch] = run(&saved, way)?.map(|time| time.as_secs_f64() * 1e3);
            println!("{way:?} {replied:.0} {complete:.0} {touch:.1}");
        }
    }
    Ok(())
}

fn run(saved: &Saved, way: Way) -> Result<[Duration; 3], Box<dyn Error>> {
    let memory = saved.memory(way)?;
    let folder = TempDir::new_in(saved.folder.path())?;
    let children = (0..CLONES).map(|number| child(folder.path(), number));
    let (children, mut serials): (Vec<_>, Vec<_>) =
        children.collect::<Result<Vec<_>, _>>()?.into_iter().unzip();
    let options = CloneOptions::new(saved.snapshot.state.clone(), children);
    // The guest finds the request when it runs.
    serials.iter_mut().try_for_each(|serial| serial.send(Request::Reply))?;
    let since = Instant::now();
    let (cloned, replied) = std::thread::scope(|scope| {
        // A guest that waits for a request uses all of a CPU.
        let reply = |serial: &mut Serial, child: &ChildOptions| {
            serial.answer_within(LONGEST_WAIT)?;
            let replied = since.elapsed();
            set_state(child, "Paused").map(|()| replied)
        };
        let of_all = serials.iter_mut().zip(&options.children);
        let threads: Vec<_> =
            of_all.map(|(serial, child)| scope.spawn(move || reply(serial, child))).collect();
        let cloned = start_clones(&options, memory).map(|cloned| (cloned, since.elapsed()));
        let replies = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        (cloned, replies.collect::<Result<Vec<_>, _>>())
    });
    let (mut cloned, complete) = cloned?;
    let replied = replied?.into_iter().max().unwrap_or_default();
    let touch = Request::Touch { start: START, len: LEN };
    set_state(&options.children[0], "Resumed")?;
    let since = Instant::now();
    let touched = serials[0].ask_within(touch, LONGEST_WAIT).map(|_| since.elapsed());
    for program in &mut cloned.programs {
        let _ = program.kill();
        let _ = program.wait();
    }
    Ok([replied, complete, touched?])
}

fn set_state(child: &ChildOptions, state: &str) -> std::io::Result<()> {
    let answer = send(&child.api, "PATCH", "/vm", Some(&json!({"state": state})))?.wait()?;
    if answer.is_success() { Ok(()) } else { Err(std::io::Error::other(answer.body)) }
}

/// A clone whose serial port is two named pipes.
fn child(folder: &Path, number: usize) -> Result<(ChildOptions, Serial), Box<dyn Error>> {
    let path = |end: &str| folder.join(format!("{number}.{end}"));
    let pipe = |end: &str| -> Result<File, Box<dyn Error>> {
        mkfifoat(CWD, path(end), Mode::RUSR | Mode::WUSR)?;
        Ok(File::options().read(true).write(true).open(path(end))?)
    };
    let serial = Serial::of_files(pipe("in")?, pipe("out")?);
    let script = "exec \"$0\" --api-sock \"$1\" --level Off < \"$2\" > \"$3\"";
    let program = program().ok_or("no Firecracker is named")?;
    let mut command = vec!["sh".into(), "-c".into(), script.into(), program.into_os_string()];
    command.extend(["api", "in", "out"].map(|end| path(end).into_os_string()));
    Ok((ChildOptions::new(command, path("api")), serial))
}
