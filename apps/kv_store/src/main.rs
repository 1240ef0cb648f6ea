//! The program: its arguments, and serving. `lib.rs` says what it is made of.

mod bench;

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use kv_store::commands::{Clients, Database};
use kv_store::folder::Folder;
use kv_store::resp::Limits;
use kv_store::save::{Policy, Saver};
use kv_store::server::{Server, milliseconds_since_1970};
use kv_store::store::Store;
use signal_hook::consts::{SIGINT, SIGTERM};

/// A key-value server in memory that saves by a snapshot
#[derive(Debug, Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    task: Option<Task>,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Subcommand)]
enum Task {
    Bench(bench::Options),
}

#[derive(Debug, clap::Args)]
struct Options {
    /// Where to listen; 0 takes a free port and prints it
    #[arg(long, default_value_t = 6380)]
    port: u16,
    /// The address to listen on: a client that reaches it may do everything
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    bind: IpAddr,
    /// Where the dump is
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Memory for keys, values and index: all of it is taken at once
    #[arg(long, default_value = "256MiB", value_parser = bytes)]
    memory: usize,
    /// Clients that may be connected
    #[arg(long, default_value_t = 1000)]
    max_clients: usize,
    /// Memory for requests that have come in part and replies that are not fetched, of all clients together; as much as
    /// `--memory` if not said. Beyond it, the client that holds most is turned away
    #[arg(long, value_parser = bytes)]
    client_memory: Option<usize>,
    /// The longest value, and any other argument
    #[arg(long, default_value = "512MiB", value_parser = bytes)]
    max_value: usize,
    /// The longest request
    #[arg(long, default_value = "1GiB", value_parser = bytes)]
    max_request: usize,
    /// Seconds from one save to the next, if anything was changed: what was set longer ago than that is on the disk. 0
    /// leaves it to BGSAVE
    #[arg(long, default_value_t = 0)]
    save_every: u64,
    /// Deltas after which BGSAVE saves all of the store again; 0 has it do so always
    #[arg(long, default_value_t = 60)]
    chain_deltas: u64,
    /// BGSAVE also saves all of the store again when deltas are that many hundredths of it
    #[arg(long, default_value_t = 100)]
    chain_percent: u64,
    /// Priority of the thread that saves, as of nice(1)
    #[arg(long, default_value_t = 19, value_parser = clap::value_parser!(i32).range(-20..=19), allow_hyphen_values = true)]
    save_nice: i32,
}

/// A number of bytes, or of KiB, MiB, GiB.
fn bytes(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|letter: char| !letter.is_ascii_digit());
    let shift = match &text[digits.len()..] {
        "" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        unit => return Err(format!("{unit:?} is neither KiB nor MiB nor GiB")),
    };
    let number: usize = digits.parse().map_err(|_| format!("{digits:?} is no number"))?;
    number.checked_mul(1 << shift).ok_or_else(|| format!("{text} are too many"))
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match arguments.task {
        Some(Task::Bench(options)) => bench::run(&options),
        None => serve(&arguments.options),
    }
}

/// What one client's long request or reply took goes back to the kernel with it: glibc would keep blocks of up to 32 MiB,
/// which the server does not count.
#[cfg(target_env = "gnu")]
#[allow(unsafe_code)]
fn keep_no_large_blocks() {
    // SAFETY: sets a number, before there are other threads.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10) };
}

#[cfg(not(target_env = "gnu"))]
fn keep_no_large_blocks() {}

fn serve(options: &Options) -> Result<()> {
    keep_no_large_blocks();
    let asked_to_end = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&asked_to_end))?;
    }
    let folder = Folder::open(&options.dir)?;
    let mut store = Store::new(options.memory)?;
    let now = milliseconds_since_1970();
    let policy = Policy {
        every: options.save_every,
        deltas: options.chain_deltas,
        percent: options.chain_percent,
    };
    let mut saver = Saver::new(folder, options.save_nice, policy, 0, now);
    if let Some(entries) = saver.load(&mut store, now)? {
        eprintln!("loaded {entries} keys");
    }
    let listener = TcpListener::bind((options.bind, options.port))
        .with_context(|| format!("cannot listen on port {}", options.port))?;
    let port = listener.local_addr()?.port();
    let client_memory = options.client_memory.unwrap_or(options.memory);
    let (clients, started, commands) = (Clients::new(client_memory), Instant::now(), 0);
    let most_value = options.max_value.min(u32::MAX as usize);
    let database = Database { store, saver, now, clients, port, started, commands, most_value };
    // What all clients may not hold, none may ask for.
    let request = options.max_request.min(client_memory);
    let limits = Limits { bulk: most_value, arguments: 1 << 20, request };
    let mut server = Server::new(listener, options.max_clients, limits, database)?;
    println!("listening on port {port}");
    server.run(&asked_to_end)
}
