//! The Python package's tests, in a virtual environment below `target/python`, which stays for the next run.

use std::process::Command;

use anyhow::{Context, Result};

use crate::count::skip;
use crate::environment::{Environment, python};
use crate::run::{self, output, root, target_dir};

const REQUIREMENTS: &str = "maturin>=1.9,<2 mypy>=1.15 numpy>=1.24 pytest>=8 tqdm>=4 xxhash>=3";

/// Builds the package and runs its tests.
pub(crate) fn test() -> Result<bool> {
    let version = "import sys; assert sys.version_info >= (3, 11)";
    if run::said(Command::new(python()).args(["-c", version])).is_none() {
        skip("Python", "no python3 of 3.11 or later (apt-get install python3 python3-venv)");
        return Ok(true);
    }
    let place = target_dir("python");
    let environment = Environment { folder: place.join("venv"), requirements: REQUIREMENTS };
    if let Err(error) = environment.make() {
        skip("Python", &format!("{error:#}"));
        return Ok(true);
    }
    // With the profile of the other tests, so that little is compiled twice.
    let wheels = run::fresh(place.join("wheels"))?;
    let mut maturin = environment.command("maturin");
    maturin.args(["build", "--quiet", "--profile", "dev", "--out"]).arg(&wheels);
    output(maturin.current_dir(root().join("bindings/py")))?;
    let install = ["install", "--quiet", "--force-reinstall", "--no-deps"];
    let wheel = wheels.read_dir()?.next().context("maturin has built no wheel")??.path();
    output(environment.pip().args(install).arg(wheel))?;
    let mut pytest = environment.command("python");
    pytest.args(["-m", "pytest", "-q", "-rs", "--color=no"]);
    run::passes(pytest.arg(root().join("bindings/py").join("tests")))
}
