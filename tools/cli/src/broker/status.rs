//! `hugekit broker status`: what a broker has, for people and for programs.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use comfy_table::Table;
use hugekit_lease::LeaseError;
use hugekit_lease::protocol::{self, LeaseRow, Payer, Refusal};
use hugekit_machine::Root;
use hugekit_machine::size::Size;
use serde_json::json;

use super::shortage;
use crate::base_pages;
use crate::lease::{explained, seconds};
use crate::socket;
use hugekit_terminal::text::{count, say, write_out};

/// Print the units and the leases of a broker, with the user of each lease.
#[derive(Debug, Args)]
#[command(after_help = "Example: hugekit broker status")]
pub(super) struct BrokerStatus {
    /// The broker's socket [default: /run/hugekit/broker.sock, or below `$XDG_RUNTIME_DIR`]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print only JSON
    #[arg(long)]
    json: bool,
    /// First wait at most this many seconds for the broker and all of its units; exit with 1 if units
    /// are missing then
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    wait: Option<Duration>,
}

/// The time between two requests for the status while units are missing.
const AGAIN: Duration = Duration::from_millis(100);

impl BrokerStatus {
    /// Returns the exit code.
    pub(super) fn run(&self) -> anyhow::Result<u8> {
        let status = self.status().map_err(explained)?;
        let text = if self.json { of_programs(&status)? } else { of_people(&status) };
        write_out(&text).context("cannot write to standard output")?;
        let is_on_base_pages =
            status.backing.is_transparent() && status.huge < status.ready * status.unit;
        if is_on_base_pages && !self.json {
            base_pages::of_broker(&self.socket()).iter().for_each(|reason| say(reason));
        }
        match self.wait {
            Some(wait) if !is_ready(&status) => {
                say(&format!("error: units are missing after {wait:?}"));
                Ok(1)
            }
            _ => Ok(0),
        }
    }

    fn socket(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(socket::to_ask)
    }

    /// Returns the status, as soon as all units are ready or the time is over. A broker that has
    /// just been started may not listen yet.
    fn status(&self) -> Result<protocol::Status, LeaseError> {
        let since = Instant::now();
        loop {
            let status = hugekit_lease::status(&self.socket());
            let may_change = match &status {
                Ok(status) => !is_ready(status),
                Err(LeaseError::NoBroker { .. } | LeaseError::HungUp) => true,
                Err(_) => false,
            };
            if !may_change || self.wait.is_none_or(|wait| since.elapsed() >= wait) {
                return status;
            }
            thread::sleep(AGAIN);
        }
    }
}

fn is_ready(status: &protocol::Status) -> bool {
    status.ready >= status.target
}

fn of_programs(status: &protocol::Status) -> serde_json::Result<String> {
    let rows = status.rows.iter().map(|row| {
        json!({
            "uid": row.uid,
            "pid": row.pid,
            "bytes": row.bytes,
            "seconds": row.age_ms as f64 / 1000.0,
            "charged": word(row.payer),
            "unreturned": row.is_unreturned,
        })
    });
    let value = json!({
        "backing": status.backing.to_string(),
        "node": status.node,
        "unit_bytes": status.unit,
        "units_wanted": status.target,
        "units_ready": status.ready,
        "bytes_ready_on_huge_pages": status.huge,
        "units_filling": status.filling,
        "bytes_filled": status.filled,
        "clients_waiting": status.waiting,
        "bytes_free": status.free,
        "bytes_kept_free": status.keep_free,
        "leases": status.leases,
        "bytes_unreturned": status.unreturned,
        "given": status.given,
        "is_short": shortage(status).is_some(),
        "failures": status.failures,
        "last_failure": status.last_failure.map(|failure| failure.to_string()),
        "leases_shown": rows.collect::<Vec<_>>(),
    });
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}

fn of_people(status: &protocol::Status) -> String {
    let size = |bytes: u64| Size(usize::try_from(bytes).unwrap_or(usize::MAX));
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{name:12}{value}");
    };
    let node = status.node.map_or_else(String::new, |node| format!(", of node {node}"));
    if status.unit == 0 {
        line("units", "none: the broker holds images only".to_owned());
        return text;
    }
    line("units", format!("{}, {}{node}", size(status.unit), status.backing));
    let huge = (status.backing.is_transparent() && status.ready > 0).then(|| {
        let (huge, of) = (size(status.huge), size(status.ready * status.unit));
        format!(", {huge} of {of} on huge pages")
    });
    let huge = huge.unwrap_or_default();
    line("ready", format!("{} of {}{huge}", status.ready, status.target));
    if status.filling > 0 {
        let (filled, of) = (size(status.filled), size(status.filling * status.unit));
        line("filling", format!("{}, {filled} of {of}", status.filling));
    }
    line("waiting", count(status.waiting, "client"));
    line("free", format!("{}, {} kept free", size(status.free), size(status.keep_free)));
    if let Some(shortage) = shortage(status) {
        line("short", shortage.to_string());
        line("", shortage::remedy(&Root::default(), status.backing, missing(status)));
    }
    line("leases", format!("{} now, {} since the start", status.leases, status.given));
    if status.unreturned > 0 {
        let unreturned = size(status.unreturned);
        line(
            "unreturned",
            format!("{unreturned} of ended leases, held by the kernel or taken by others"),
        );
    }
    if let Some(failure) = status.last_failure {
        line("failures", format!("{}, the last one: {failure}", status.failures));
    }
    if !status.rows.is_empty() {
        let _ = write!(text, "\n{}\n", table(&status.rows));
    }
    text
}

/// Units that are neither ready nor being populated.
fn missing_units(status: &protocol::Status) -> u64 {
    (status.target + status.waiting).saturating_sub(status.ready + status.filling)
}

/// Returns the number of bytes that these units need beyond the free ones.
fn missing(status: &protocol::Status) -> u64 {
    let units = missing_units(status).saturating_mul(status.unit);
    units.saturating_add(status.keep_free).saturating_sub(status.free)
}

/// Returns the reason why units are missing, if memory is too short for one more.
fn shortage(status: &protocol::Status) -> Option<Refusal> {
    let &protocol::Status { unit, free, keep_free, .. } = status;
    let is_missing = missing_units(status) > 0;
    let page_size = status.backing.page_size() as u64;
    let is_short = is_missing && free < unit.saturating_add(keep_free);
    is_short.then_some(Refusal::NoPages { unit, page_size, free, keep_free })
}

fn table(rows: &[LeaseRow]) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::NOTHING);
    table.set_header(["user", "process", "size", "since", "charged to", ""]);
    for row in rows {
        table.add_row([
            row.uid.to_string(),
            row.pid.to_string(),
            Size(usize::try_from(row.bytes).unwrap_or(usize::MAX)).to_string(),
            format!("{:.0?}", Duration::from_secs(row.age_ms / 1000)),
            word(row.payer).to_owned(),
            if row.is_unreturned { "ended, not back" } else { "" }.to_owned(),
        ]);
    }
    table
}

/// Whose control group is charged, in a word.
fn word(payer: Payer) -> &'static str {
    match payer {
        Payer::Client => "client",
        Payer::Group => "group",
        _ => "broker",
    }
}
