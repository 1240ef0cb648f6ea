//! The log of a daemon: lines on standard error that the daemon never waits for.
//!
//! Standard error may be a pipe that no program reads, a terminal that is stopped, or a full disk. So a thread of its own
//! writes, and it alone waits. A line that comes while the queue is full, or after too many others, is left out and
//! counted; the count is written as soon as there is room again.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use hugekit_machine::plain;
use hugekit_terminal::events;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

/// Lines that are written in one [`WINDOW`]. Those that follow are counted.
const LINES: u32 = 32;
const WINDOW: Duration = Duration::from_secs(10);

/// The longest wait at the end of the process for lines that are not written yet.
const LAST: Duration = Duration::from_millis(250);

/// Writes the events of the library to the log.
pub(crate) fn print_events() {
    events::print_to(BoxMakeWriter::new(|| Lines));
}

/// The log of this process. `None` if no thread can be started: its lines are lost then.
static LOG: OnceLock<Option<Log>> = OnceLock::new();

#[derive(Debug)]
struct Log {
    queue: SyncSender<Entry>,
}

/// Lines that may be written in this window, and lines that were left out.
static ROOM: AtomicU32 = AtomicU32::new(LINES);
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

#[derive(Debug)]
enum Entry {
    Line(Vec<u8>),
    /// A request to confirm that all earlier lines are written.
    End(SyncSender<()>),
}

/// Writes a line, without characters that would act on a terminal.
pub(crate) fn line(text: &str) {
    say(format!("{}\n", plain(text)).into_bytes());
}

/// Waits until all lines are written, but not long.
pub(crate) fn finish() {
    let Some(Some(log)) = LOG.get() else { return };
    let (written, is_written) = sync_channel(1);
    let until = Instant::now() + LAST;
    let mut end = Entry::End(written);
    while let Err(TrySendError::Full(again)) = log.queue.try_send(end) {
        if Instant::now() >= until {
            return;
        }
        end = again;
        thread::sleep(Duration::from_millis(5));
    }
    let _ = is_written.recv_timeout(until.saturating_duration_since(Instant::now()));
}

/// Lines of `tracing`, each of which comes as one write.
#[derive(Debug)]
pub(crate) struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        say(line.to_vec());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn say(line: Vec<u8>) {
    let Some(log) = LOG.get_or_init(Log::start) else { return };
    let has_room =
        ROOM.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| room.checked_sub(1));
    if has_room.is_err() || log.queue.try_send(Entry::Line(line)).is_err() {
        LEFT_OUT.fetch_add(1, Ordering::Relaxed);
    }
}

impl Log {
    fn start() -> Option<Self> {
        let (queue, entries) = sync_channel(LINES as usize);
        let thread = thread::Builder::new().name("hugekit-log".to_owned());
        thread.spawn(move || write(&entries)).ok().map(|_| Self { queue })
    }
}

/// Writes what comes, as long as the process lives.
fn write(entries: &Receiver<Entry>) {
    let mut since: Option<Instant> = None;
    loop {
        let entry = match since {
            // No line was said since the last window ended: there is nothing to count.
            None => entries.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(since) => entries.recv_timeout(WINDOW.saturating_sub(since.elapsed())),
        };
        match entry {
            Ok(Entry::Line(line)) => {
                let _ = io::stderr().write_all(&line);
                since.get_or_insert_with(Instant::now);
            }
            Ok(Entry::End(written)) => {
                count();
                let _ = written.send(());
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if since.is_some_and(|since| since.elapsed() >= WINDOW) {
            count();
            ROOM.store(LINES, Ordering::Relaxed);
            since = None;
        }
    }
}

fn count() {
    let left_out = LEFT_OUT.swap(0, Ordering::Relaxed);
    if left_out > 0 {
        let _ = writeln!(io::stderr(), "{left_out} more lines were left out");
    }
}
