//! The process that loads an image, with the rights of the client's user.

use std::fs::File;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use hugekit_delta::{DeltaError, StateId};
use hugekit_image::{Image, ImageBuilder, ImageError};
use hugekit_lease::protocol::{
    Answer, ImageFacts, LONGEST_REQUEST, Load, NotLoaded, Refusal, Request,
};
use hugekit_sys::seqpacket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Gid, Uid};
use rustix::process::Signal;
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::connection::send;
use crate::fill::{join, prepare};

/// The orders to the process that loads an image. Its standard input is the client's connection.
#[derive(Clone, Debug, Default)]
pub struct LoadOrder {
    /// The number of the descriptor of the file to fill.
    pub memory: i32,
    /// The user and the group whose rights the process uses for reading; `None` for its own.
    pub owner: Option<(u32, u32)>,
    /// Directories of control groups that the process joins first.
    pub groups: Vec<PathBuf>,
}

/// Loads the image that the client on standard input requests, writes the answer to standard
/// output, and returns the exit code.
#[must_use]
pub fn load(order: &LoadOrder) -> u8 {
    let loaded = receive(order).and_then(|(load, sources, memory)| fill(&load, sources, memory));
    let answer = loaded.map_or_else(Answer::Refused, Answer::Loaded);
    // Less than a pipe holds, so that it is not waited for.
    let _ = std::io::stdout().write_all(&answer.to_message());
    let _ = std::io::stdout().flush();
    0
}

/// Returns the request with its sources, and the file to fill. From here on, the process has the
/// rights of the client's user.
fn receive(order: &LoadOrder) -> Result<(Load, Vec<OwnedFd>, OwnedFd), Refusal> {
    prepare(false);
    for group in &order.groups {
        let _ = join(group);
    }
    let path = format!("/proc/self/fd/{}", order.memory);
    let memory = File::options().read(true).write(true).open(path);
    let memory = memory.map_err(|error| kernel(error.raw_os_error()))?;
    become_user(order.owner).map_err(|errno| kernel(Some(errno.raw_os_error())))?;
    let mut room = vec![0; LONGEST_REQUEST + 1];
    let message = seqpacket::receive(std::io::stdin(), &mut room);
    let message = message.map_err(|errno| kernel(Some(errno.raw_os_error())))?;
    match Request::of_message(&room[..message.len]) {
        Ok(Request::Load(load)) if !message.is_cut => {
            Ok((*load, message.descriptors, memory.into()))
        }
        _ => Err(Refusal::NotLoaded(NotLoaded::Nothing)),
    }
}

/// Changes the effective user, and keeps the real user: the broker may then end the process, and
/// the client's user may not inspect it.
fn become_user(owner: Option<(u32, u32)>) -> rustix::io::Result<()> {
    if let Some((user, group)) = owner {
        set_thread_groups(&[])?;
        set_thread_res_gid(None, Gid::from_raw(group), None)?;
        set_thread_res_uid(None, Uid::from_raw(user), None)?;
        // The kernel forgets this with the old rights.
        let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    }
    Ok(())
}

fn fill(load: &Load, sources: Vec<OwnedFd>, memory: OwnedFd) -> Result<ImageFacts, Refusal> {
    let builder = Image::builder(load.name.as_str()).most(load.most);
    let builder = sources.into_iter().map(File::from).fold(builder, ImageBuilder::source);
    let builder = load.ranges.iter().copied().fold(builder, ImageBuilder::range);
    let state = load.state.map(StateId::from_bytes).and_then(Result::ok);
    let builder = state.into_iter().fold(builder, ImageBuilder::state);
    let telling = LoadProgress::default();
    let tell = |done: usize, total: usize| telling.tell(done as u64, total as u64);
    let image = match load.tells_progress {
        true => builder.progress(&tell).load_into(memory),
        false => builder.load_into(memory),
    };
    let image = image.map_err(|error| Refusal::NotLoaded(told(&error)))?;
    let present = image.present().map_err(|error| Refusal::NotLoaded(told(&error)))?;
    Ok(ImageFacts { bytes: image.bytes() as u64, present, huge: image.huge_bytes() })
}

/// The interval of progress messages to the client.
const TOLD_EVERY: Duration = Duration::from_millis(100);

/// A reporter of progress to the client, whose connection is standard input. It never waits for the
/// client, and leaves room in the queue for the broker's answer.
#[derive(Default)]
struct LoadProgress {
    last: Mutex<Option<Instant>>,
}

impl LoadProgress {
    fn tell(&self, done: u64, total: u64) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|last| last.elapsed() < TOLD_EVERY) {
            return;
        }
        *last = Some(Instant::now());
        let client = std::io::stdin();
        // The kernel says so while at most a quarter of the queue is taken.
        let mut asked = [PollFd::new(&client, PollFlags::OUT)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let has_room = poll(&mut asked, Some(&now)).is_ok_and(|ready| ready > 0)
            && asked[0].revents() == PollFlags::OUT;
        if has_room {
            let _ = send(&client, &Answer::Loading { done, total }.to_message(), None);
        }
    }
}

/// Converts an error to the form for clients.
fn told(error: &ImageError) -> NotLoaded {
    let errno = hugekit::system_error(error).map_or(0, |errno| u64::from(errno.unsigned_abs()));
    match *error {
        ImageError::Nothing => NotLoaded::Nothing,
        ImageError::NoFile { nth } => NotLoaded::NoFile { nth: nth as u64 },
        ImageError::SavedVm { nth } => NotLoaded::SavedVm { nth: nth as u64 },
        ImageError::Changed { nth, had, has } => NotLoaded::Changed { nth: nth as u64, had, has },
        ImageError::Read { nth, at, .. } => NotLoaded::Read { nth: nth as u64, at, errno },
        ImageError::Range { range, .. } => {
            NotLoaded::Range { from: range.from, len: range.len, to: range.to }
        }
        ImageError::Delta { nth, ref source } => of_delta(nth as u64, source),
        ImageError::TooLarge { most } => NotLoaded::TooLarge { most },
        ImageError::Populate(_) | ImageError::NoMemory(_) | ImageError::Heap(_) => {
            NotLoaded::NoMemory
        }
        _ => NotLoaded::Kernel { errno },
    }
}

fn of_delta(nth: u64, error: &DeltaError) -> NotLoaded {
    match *error {
        DeltaError::OtherBase { .. } => NotLoaded::OtherState { nth },
        DeltaError::OtherLength { delta, state } => {
            NotLoaded::OtherLength { nth, delta, image: state }
        }
        _ => NotLoaded::Delta { nth },
    }
}

fn kernel(errno: Option<i32>) -> Refusal {
    let errno = errno.map_or(0, |errno| u64::from(errno.unsigned_abs()));
    Refusal::NotLoaded(NotLoaded::Kernel { errno })
}
