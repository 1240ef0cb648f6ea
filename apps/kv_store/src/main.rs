//! The program: its options, and its end.

use std::net::{IpAddr, Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use bytesize::ByteSize;
use clap::Parser;
use kv_store::budget::{Budget, Clients};
use kv_store::commands::Database;
use kv_store::folder::Folder;
use kv_store::save::{Policy, Saver};
use kv_store::server::{Server, milliseconds_since_1970};
use kv_store::store::Store;
use signal_hook::consts::{SIGINT, SIGTERM};

/// A key-value server in memory that saves by snapshots and deltas
#[derive(Debug, Parser)]
struct Options {
    /// Where to listen; 0 uses a free port and prints it
    #[arg(long, default_value_t = 6380)]
    port: u16,
    /// The address to listen on: a client that reaches it may do everything
    #[arg(long, default_value_t = IpAddr::V4(Ipv4Addr::LOCALHOST))]
    bind: IpAddr,
    /// The folder of the saved files
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Memory for keys, values and index: all of it is populated at the start
    #[arg(long, default_value = "256MiB")]
    memory: ByteSize,
    /// Memory for partial requests and unsent replies of all clients together, by default as much as
    /// `--memory`. Beyond it, the client that holds most is closed
    #[arg(long)]
    client_memory: Option<ByteSize>,
    #[command(flatten)]
    policy: Policy,
}

#[allow(unsafe_code)]
fn main() -> Result<()> {
    // Long requests and replies go back to the kernel. The allocator of glibc would keep up to 32 MiB
    // of each, which the limit of the clients does not count.
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt sets a number, and there is no other thread yet.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 256 << 10)
    };
    let options = Options::parse();
    let is_asked_to_end = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&is_asked_to_end))?;
    }
    let server = open(&options)?;
    let listener = TcpListener::bind((options.bind, options.port)).context("cannot listen")?;
    println!("listening on port {}", listener.local_addr()?.port());
    thread::spawn(move || server.accept(&listener));
    loop {
        thread::sleep(Duration::from_millis(20));
        // The lock also lets saves end, and begins one that is due.
        let mut database = server.lock();
        if is_asked_to_end.swap(false, Ordering::Relaxed) {
            // If the save fails, the server goes on. The log has the error.
            let _ = database.end(true);
        }
    }
}

/// A server until the process ends.
fn open(options: &Options) -> Result<&'static Server> {
    let folder = Folder::open(&options.dir)?;
    let mut store = Store::new(options.memory.as_u64() as usize)?;
    store.now = milliseconds_since_1970();
    let saver = Saver::new(folder, options.policy, &mut store)?;
    let client_memory = options.client_memory.unwrap_or(options.memory).as_u64() as usize;
    let budget = Arc::new(Budget::new(Clients::new(client_memory)));
    Ok(Box::leak(Box::new(Server::new(Database { store, saver, budget }))))
}
