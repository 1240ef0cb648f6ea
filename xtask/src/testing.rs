//! `cargo xtask test`: runs the tests part by part and counts them, the skipped ones with their reason and its remedy.

mod count;
mod library;
mod part;
mod remedies;
mod screen;

use std::io::{BufRead, BufReader, pipe};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};

use crate::settings::Settings;
pub(crate) use count::Count;
use part::Part;
use screen::Screen;

/// Runs tests: the library's, in three minutes, unless more is asked for. As root it reserves huge pages
/// meanwhile, of at most a quarter of the free memory, and puts them back
#[derive(Debug, Default, Args)]
pub(crate) struct Test {
    /// Every part: every crate, programs in C and C++, the Python package, refused system calls, models of
    /// threads, aarch64 emulated, guests with other kernels, and half a minute of everything at once
    #[arg(long, conflicts_with = "only")]
    all: bool,
    /// One part alone
    #[arg(long)]
    only: Option<Part>,
    /// Fetch missing Debian packages into `target/`, instead of skipping what needs them
    #[arg(long)]
    install: bool,
}

/// A part that was run.
struct Ran {
    part: Part,
    count: Count,
    took: Duration,
}

impl Test {
    pub(crate) fn all(install: bool) -> Self {
        Self { all: true, only: None, install }
    }

    pub(crate) fn run(&self) -> Result<ExitCode> {
        let settings = Settings::for_tests()?;
        println!("{settings}");
        let parts = self.parts();
        let mut passed = true;
        let mut ran = Vec::new();
        for (number, part) in (1..).zip(&parts) {
            println!("\n{} ({number} of {}): {}", part.name(), parts.len(), part.about());
            let mut count = Count::default();
            let since = Instant::now();
            passed &= part.run(&mut count, self.install)?;
            ran.push(Ran { part: *part, count, took: since.elapsed() });
        }
        drop(settings);
        self.summarize(&ran);
        Ok(if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    fn parts(&self) -> Vec<Part> {
        match (self.all, self.only) {
            // The workspace has the library's.
            (true, _) => Part::value_variants()
                .iter()
                .filter(|part| **part != Part::Library)
                .copied()
                .collect(),
            (false, only) => vec![only.unwrap_or(Part::Library)],
        }
    }

    fn summarize(&self, ran: &[Ran]) {
        println!();
        let mut all = Count::default();
        for Ran { part, count, took } in ran {
            println!("{}: {count}, {} s", part.name(), took.as_secs());
            count.print_details();
            all.add(count);
        }
        if !self.all && self.only.is_none() {
            println!(
                "\nNot run: everything else. `cargo xtask test --all` takes a quarter of an hour on two CPUs."
            );
        }
        println!("\n{all}");
    }
}

/// Runs tests, showing and counting what they print. Returns whether all of them succeeded.
pub(crate) fn count_tests(cargo: &mut Command, count: &mut Count) -> Result<bool> {
    let (output, writer) = pipe()?;
    cargo.stdout(writer.try_clone()?).stderr(writer);
    let mut child = cargo.spawn().context("cannot start cargo test")?;
    // The command holds ends of the pipe for another start; while they are open, the output does not end.
    cargo.stdout(Stdio::null()).stderr(Stdio::null());
    let screen = Screen::new();
    for line in BufReader::new(output).split(b'\n') {
        let line = line?;
        let line = String::from_utf8_lossy(&line);
        screen.show(&line);
        count.read(&line);
    }
    Ok(child.wait()?.success())
}
