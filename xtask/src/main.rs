//! Chores of this repository: `cargo xtask test`, `check`, `ci` and others. README.md beside this folder lists them.

mod aarch64;
mod api;
mod book;
mod count;
mod dist;
mod environment;
mod faults;
mod fetch;
mod fleet;
mod fuzz;
mod header;
mod install;
mod on;
mod packaging;
mod parts;
mod python;
mod run;
mod settings;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

/// Chores of the hugekit repository
#[derive(Debug, Parser)]
#[command(name = "cargo xtask")]
enum Task {
    /// Runs tests: those of `ci`, or the parts that are named. As root it reserves huge pages meanwhile, of at most a
    /// quarter of the free memory, and puts them back
    Test(parts::Test),
    /// Format, clippy, documentation, public items, packages and Markdown
    Check {
        /// First write the list of public items anew
        #[arg(long)]
        bless_api: bool,
    },
    /// `check` and `test`: what must pass before a change lands
    Ci(parts::InstallFlag),
    /// Runs all that takes long or depends on chance: kills at any moment, soak, fuzzing, sanitizers, guests with other
    /// kernels. Writes a table to `target/nightly.md`
    Nightly(parts::Nightly),
    Api(api::Api),
    Faults(faults::Faults),
    Soak(faults::Soak),
    Fleet(fleet::Fleet),
    Fuzz(fuzz::Fuzz),
    On(on::On),
    Install(install::Install),
    Dist(dist::Dist),
    Book(book::Book),
    /// Writes `hugekit.h`, from the C interface's sources
    Header,
    /// Unpacks Debian packages below `target/`, by their names in packages.toml
    Fetch {
        packages: Vec<String>,
        /// Print the address of Debian's archive
        #[arg(long, hide = true)]
        archive: bool,
    },
    /// The header is not stale, and the packages of published crates are complete
    #[command(hide = true)]
    Packaging,
    /// The Python package's tests
    #[command(hide = true)]
    Python,
    /// The library's tests on aarch64, emulated
    #[command(hide = true)]
    Aarch64,
    /// Becomes a command after a change that it inherits: for guests
    #[command(hide = true)]
    Become(fleet::Become),
}

fn main() -> Result<ExitCode> {
    let passed = match Task::parse() {
        Task::Test(test) => test.run(),
        Task::Check { bless_api } => parts::check(bless_api),
        Task::Ci(install) => parts::ci(&install),
        Task::Nightly(nightly) => nightly.run(),
        Task::Api(api) => api.run(),
        Task::Faults(faults) => faults.run(),
        Task::Soak(soak) => soak.run(),
        Task::Fleet(fleet) => fleet.run(),
        Task::Fuzz(fuzz) => fuzz.run(),
        Task::On(on) => on.run(),
        Task::Install(install) => install.run().map(|()| true),
        Task::Dist(dist) => dist.run(),
        Task::Book(book) => book.run(),
        Task::Header => header::generate().map(|()| true),
        Task::Fetch { archive: true, .. } => {
            fetch::archive().map(|from| println!("{from}")).map(|()| true)
        }
        Task::Fetch { packages, .. } => fetch::all(&packages),
        Task::Packaging => header::check().and_then(|()| packaging::check()).map(|()| true),
        Task::Python => python::test(),
        Task::Aarch64 => aarch64::test(),
        Task::Become(change) => change.run(),
    };
    Ok(if passed? { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
