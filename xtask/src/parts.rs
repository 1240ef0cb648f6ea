//! `cargo xtask test`, `check`, `ci` and `nightly`: the parts of parts.toml, one after the other, each within its time.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::io::pipe;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

use crate::count::Count;
use crate::run::{self, INSTALL, may_install, passes, root};
use crate::settings::Settings;

/// The exit status of coreutils' `timeout` after the time is over.
const TIME_IS_OVER: i32 = 124;

/// The part that `cargo xtask check` runs.
const CHECK: &str = "check";

/// A process that an ended command has left behind may hold its output open: after this long it is not read any more.
const QUIET_SECONDS: u64 = 5;

/// The variables from which tests read the seed of their random choices: those of `hugekit_testing::seed` and those of
/// proptest.
const SEEDS: [&str; 2] = ["HUGEKIT_SEED", "PROPTEST_RNG_SEED"];

/// The tests of `cargo xtask ci`, or the parts that are named
#[derive(Debug, Args)]
pub(crate) struct Test {
    /// These parts: `cargo xtask test --list` names them
    #[arg(long, num_args = 1..)]
    only: Vec<String>,
    /// Print the parts; run none
    #[arg(long)]
    list: bool,
    #[command(flatten)]
    install: InstallFlag,
}

/// Runs all that takes long or depends on chance
#[derive(Debug, Args)]
pub(crate) struct Nightly {
    /// The seed of the random choices, so that a run can be repeated; by default each run begins elsewhere
    #[arg(long)]
    seed: Option<u32>,
    /// Continue an interrupted run of the same commit, with its seed: parts that have passed are not run again
    #[arg(long, conflicts_with = "seed")]
    resume: bool,
    #[command(flatten)]
    install: InstallFlag,
}

/// A nightly run as far as it has come, in `target/nightly.json`.
#[derive(Debug, PartialEq, Deserialize, Serialize)]
struct Night {
    /// The commit, and what differs from it in the working tree.
    source: String,
    seed: String,
    ran: Vec<PartRun>,
}

#[derive(Debug, Args)]
pub(crate) struct InstallFlag {
    /// Fetch missing Debian packages into `target/`, and missing components of the Rust toolchain with rustup, instead of
    /// skipping what needs them
    #[arg(long)]
    install: bool,
}

/// The table of parts, `parts.toml`.
#[derive(Debug, Deserialize)]
struct PartTable {
    part: Vec<Part>,
}

/// Commands that are run together, and counted together.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Part {
    name: String,
    about: String,
    when: When,
    /// It must end within this many minutes, also on a busy machine.
    minutes: u64,
    /// Debian's packages that it uses, by their names in packages.toml.
    #[serde(default)]
    fetch: Vec<String>,
    /// A command for the shell that installs what else it needs, run only with `--install`. If it fails, `needs` decides.
    install: Option<String>,
    #[serde(default)]
    env: BTreeMap<String, String>,
    /// A command for the shell that succeeds if the part can be run here, and the reason for skipping otherwise.
    needs: Option<[String; 2]>,
    /// Commands for the shell, run in the repository's folder.
    run: Vec<String>,
}

/// The command that runs a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum When {
    /// `cargo xtask ci`
    Ci,
    /// `cargo xtask nightly`
    Nightly,
}

/// A part that was run.
#[derive(Debug, PartialEq, Deserialize, Serialize)]
struct PartRun {
    name: String,
    count: Count,
    time: Duration,
}

impl Test {
    pub(crate) fn run(&self) -> Result<bool> {
        let parts = parts()?;
        if self.list {
            parts.iter().for_each(|part| println!("{}: {}", part.name, part.about));
            return Ok(true);
        }
        for name in &self.only {
            ensure!(parts.iter().any(|part| part.name == *name), "no part {name}: see --list");
        }
        let chosen = parts.into_iter().filter(|part| match self.only.is_empty() {
            true => part.when == When::Ci && part.name != CHECK,
            false => self.only.contains(&part.name),
        });
        run_and_report(&chosen.collect::<Vec<_>>(), &self.install)
    }
}

impl Nightly {
    pub(crate) fn run(&self) -> Result<bool> {
        let mut night = self.begin()?;
        let mut parts = of(When::Nightly)?;
        for part in &mut parts {
            part.env.extend(SEEDS.map(|name| (name.to_owned(), night.seed.clone())));
        }
        let (_settings, start) = (Settings::for_tests()?, Instant::now());
        for part in &parts {
            if !night.ran.iter().any(|ran| ran.name == part.name) {
                night.ran.push(part.run_and_report(start, &self.install)?);
                night.save()?;
            }
        }
        let table = night.table();
        println!("\n{table}");
        fs::write(run::target_dir("nightly.md"), table).context("cannot write nightly.md")?;
        Ok(night.ran.iter().all(|part| part.count.failed == 0))
    }

    fn begin(&self) -> Result<Night> {
        let source =
            run::output(Command::new("git").args(["rev-parse", "HEAD"]).current_dir(root()))?
                + &run::output(Command::new("git").args(["diff", "HEAD"]).current_dir(root()))?;
        if !self.resume {
            let since_epoch = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
            let seed = self.seed.unwrap_or(since_epoch.as_secs() as u32).to_string();
            return Ok(Night { source, seed, ran: Vec::new() });
        }
        let read = fs::read_to_string(Night::path()).context("no run to continue: nightly.json")?;
        Night::to_continue(&read, &source)
    }
}

impl Night {
    /// A saved run of the same sources, without the parts that have failed, or lacked something and were skipped.
    fn to_continue(saved: &str, source: &str) -> Result<Self> {
        let mut night: Self = serde_json::from_str(saved).context("nightly.json")?;
        ensure!(
            night.source == source,
            "the interrupted run tested other sources: start a new one"
        );
        night.ran.retain(|part| part.count.failed == 0 && part.count.passed > 0);
        Ok(night)
    }

    fn path() -> PathBuf {
        run::target_dir("nightly.json")
    }

    fn save(&self) -> Result<()> {
        fs::write(Self::path(), serde_json::to_vec(self)?).context("cannot write nightly.json")
    }

    /// The outcome of each part as a table in Markdown, and how to repeat the run.
    fn table(&self) -> String {
        let mut table = "| part | passed | failed | skipped | minutes | seed |\n".to_owned();
        table += "| --- | --- | --- | --- | --- | --- |\n";
        let seed = &self.seed;
        for PartRun { name, count, time } in &self.ran {
            let Count { passed, failed, skipped, .. } = count;
            let time = clock(*time);
            let _ =
                writeln!(table, "| {name} | {passed} | {failed} | {skipped} | {time} | {seed} |");
        }
        for failure in self.ran.iter().flat_map(|part| &part.count.failures) {
            let _ = writeln!(table, "\nFAILED {failure}");
        }
        let _ =
            writeln!(table, "\n`cargo xtask nightly --seed {seed}` repeats the random choices.");
        table
    }
}

/// The part of that name, after the public items are listed anew if `bless_api`.
pub(crate) fn check(bless_api: bool) -> Result<bool> {
    if bless_api {
        crate::api::Api { bless: true }.run()?;
    }
    let parts = parts()?.into_iter().filter(|part| part.name == CHECK);
    run_and_report(&parts.collect::<Vec<_>>(), &InstallFlag { install: false })
}

/// Runs all that must pass before a change lands.
pub(crate) fn ci(install: &InstallFlag) -> Result<bool> {
    run_and_report(&of(When::Ci)?, install)
}

fn of(when: When) -> Result<Vec<Part>> {
    Ok(parts()?.into_iter().filter(|part| part.when == when).collect())
}

fn parts() -> Result<Vec<Part>> {
    let table: PartTable = toml::from_str(include_str!("../parts.toml")).context("parts.toml")?;
    Ok(table.part)
}

/// Runs parts, and prints a summary at the end. Returns whether all passed.
fn run_and_report(parts: &[Part], install: &InstallFlag) -> Result<bool> {
    let ran = run(parts, install)?;
    let (mut all, mut time) = (Count::default(), Duration::ZERO);
    for part in &ran {
        all.add(&part.count);
        time += part.time;
    }
    println!();
    all.print_skipped();
    ran.iter().for_each(|part| println!("{}: {}, {}", part.name, part.count, clock(part.time)));
    all.print_failures();
    println!("\n{all}, {}", clock(time));
    Ok(all.failed == 0)
}

fn run(parts: &[Part], install: &InstallFlag) -> Result<Vec<PartRun>> {
    let (_settings, start) = (Settings::for_tests()?, Instant::now());
    parts.iter().map(|part| part.run_and_report(start, install)).collect()
}

/// Minutes and seconds.
fn clock(time: Duration) -> String {
    format!("{:02}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

impl Part {
    /// Says when it begins and how it ended, since `start`.
    fn run_and_report(&self, start: Instant, install: &InstallFlag) -> Result<PartRun> {
        let Part { name, about, minutes, .. } = self;
        println!("\n[{}] {name}: {about}; at most {minutes} minutes", clock(start.elapsed()));
        let (since, mut count) = (Instant::now(), Count::default());
        self.run(install.install || may_install(), &mut count)?;
        let time = since.elapsed();
        println!("[{}] {name}: {count}, {}", clock(start.elapsed()), clock(time));
        Ok(PartRun { name: name.clone(), count, time })
    }

    fn run(&self, install: bool, count: &mut Count) -> Result<()> {
        let until = Instant::now() + Duration::from_secs(self.minutes * 60);
        let fetch =
            (!self.fetch.is_empty()).then(|| format!("cargo xtask fetch {}", self.fetch.join(" ")));
        let shell = |line: &String| {
            println!("$ {line}");
            let left = until.saturating_duration_since(Instant::now()).as_secs().max(1);
            let mut shell = Command::new("timeout");
            shell.args(["--kill-after=30", &format!("{left}s"), "sh", "-c", line]).envs(&self.env);
            shell.current_dir(root()).stdin(Stdio::null());
            if install {
                shell.env(INSTALL, "1");
            }
            shell
        };
        for line in fetch.iter().chain(&self.install).filter(|_| install) {
            passes(&mut shell(line))?;
        }
        if let Some([line, reason]) = &self.needs
            && !passes(&mut shell(line))?
        {
            count.skip(reason.clone());
            return Ok(());
        }
        self.run.iter().try_for_each(|line| self.count(line, shell(line), count))
    }

    /// Runs one command, shows its output, and counts its tests. A command that counts no tests counts as one.
    fn count(&self, line: &str, mut command: Command, count: &mut Count) -> Result<()> {
        let (output, writer) = pipe()?;
        command.stdout(writer.try_clone()?).stderr(writer);
        let child = command.spawn().context("cannot start timeout, of coreutils");
        // The command holds ends of the pipe for another start: while they are open, the output does not end.
        drop(command);
        let mut child = child?;
        crate::settings::end_on_signals(child.id());
        let lines = run::lines(output);
        let (mut counted, mut quiet) = (Count::default(), 0);
        while quiet < QUIET_SECONDS {
            match lines.recv_timeout(Duration::from_secs(1)) {
                Ok(printed) => {
                    println!("{printed}");
                    counted.read(&printed);
                }
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => quiet += u64::from(child.try_wait()?.is_some()),
            }
        }
        let status = child.wait()?;
        if status.code() == Some(TIME_IS_OVER) {
            counted.fail(format!("{line}: not ended after {} minutes", self.minutes));
        } else if !status.success() && counted.failed == 0 {
            counted.fail(format!("{line}: {status}"));
        } else if counted == Count::default() {
            counted.passed = 1;
        }
        count.add(&counted);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(minutes: u64, line: &str) -> Part {
        let (name, about) = (String::new(), String::new());
        let (fetch, env, run) = (Vec::new(), BTreeMap::new(), vec![line.to_owned()]);
        let (when, install, needs) = (When::Ci, None, None);
        Part { name, about, when, minutes, fetch, install, env, needs, run }
    }

    fn count(part: &Part, install: bool) -> Count {
        let mut count = Count::default();
        part.run(install, &mut count).unwrap();
        count
    }

    fn count_of(minutes: u64, line: &str) -> Count {
        count(&part(minutes, line), false)
    }

    #[test]
    fn names_of_parts_are_unique_and_packages_are_known() {
        let parts = parts().unwrap();
        let names: std::collections::BTreeSet<_> = parts.iter().map(|part| &part.name).collect();
        assert_eq!(names.len(), parts.len());
        for name in parts.iter().flat_map(|part| &part.fetch) {
            crate::fetch::Package::named(name).unwrap();
        }
    }

    #[test]
    fn nightly_boots_each_guest_once() {
        let parts = parts().unwrap();
        let commands =
            parts.iter().filter(|part| part.when == When::Nightly).flat_map(|part| &part.run);
        let booted =
            commands.filter_map(|command| command.strip_prefix("cargo xtask fleet --only "));
        let mut booted: Vec<_> = booted.flat_map(str::split_whitespace).collect();
        booted.sort_unstable();
        let mut guests = crate::fleet::guests().unwrap();
        guests.sort_unstable();
        assert_eq!(booted, guests);
    }

    #[test]
    fn command_counts_its_tests_or_as_one() {
        assert_eq!(
            count_of(1, "echo 'test result: ok. 2 passed; 0 failed; 1 ignored'").to_string(),
            "2 passed, 0 failed, 1 skipped"
        );
        assert_eq!(count_of(1, "true").to_string(), "1 passed, 0 failed, 0 skipped");
        assert_eq!(count_of(1, "exit 3").failures, ["exit 3: exit status: 3"]);
    }

    #[test]
    fn table_has_each_part_and_its_failures() {
        let count = Count { passed: 3, failed: 1, failures: vec!["a".into()], ..Count::default() };
        let ran = PartRun { name: "soak".into(), count, time: Duration::from_secs(61) };
        let night = Night { source: String::new(), seed: "7".into(), ran: vec![ran] };
        let table = night.table();
        for line in ["| soak | 3 | 1 | 0 | 01:01 | 7 |", "FAILED a", "--seed 7"] {
            assert!(table.contains(line), "{table}");
        }
    }

    #[test]
    fn run_continues_with_what_failed_if_the_sources_are_the_same() {
        let ran = |name: &str, passed, failed| {
            let count = Count { passed, failed, ..Count::default() };
            PartRun { name: name.into(), count, time: Duration::from_secs(1) }
        };
        let ran = vec![ran("good", 2, 0), ran("bad", 2, 1), ran("skipped", 0, 0)];
        let night = Night { source: "here".into(), seed: "7".into(), ran };
        let saved = serde_json::to_string(&night).unwrap();
        let error = Night::to_continue(&saved, "elsewhere").unwrap_err();
        assert!(error.to_string().contains("other sources"), "{error}");
        let continued = Night::to_continue(&saved, "here").unwrap();
        assert_eq!(continued.seed, "7");
        assert_eq!(continued.ran, night.ran[..1]);
    }

    #[test]
    fn command_that_takes_too_long_is_ended_and_has_failed() {
        let count = count_of(0, "sleep 600");
        assert!(count.failures[0].contains("not ended"), "{count:?}");
    }

    #[test]
    fn part_that_lacks_something_installs_it_only_if_it_may() {
        let folder = tempfile::tempdir().unwrap();
        let it = folder.path().join("it").display().to_string();
        let mut part = part(1, "true");
        part.install = Some(format!("echo > {it}"));
        part.needs = Some([format!("ls {it}"), "it is not there".to_owned()]);
        assert_eq!(count(&part, false).to_string(), "0 passed, 0 failed, 1 skipped");
        assert_eq!(count(&part, true).to_string(), "1 passed, 0 failed, 0 skipped");
        part.install = Some("exit 1".to_owned());
        assert_eq!(count(&part, true).to_string(), "1 passed, 0 failed, 0 skipped");
        part.needs = Some([format!("ls {it}.other"), "the other is not there".to_owned()]);
        assert_eq!(count(&part, true).to_string(), "0 passed, 0 failed, 1 skipped");
    }
}
