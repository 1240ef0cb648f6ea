//! Units of services, completions, manual pages, and the program that `hugekit lab` starts.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use assert_cmd::Command;
use predicates::prelude::*;
use predicates::str::contains;

fn hugekit() -> Command {
    Command::cargo_bin("hugekit").unwrap()
}

#[test]
fn units_of_services_start_this_program() {
    let program = assert_cmd::cargo::cargo_bin!("hugekit").display().to_string();
    for service in ["broker", "pager", "tend", "warm"] {
        let unit = hugekit().args(["systemd", service]).assert().success();
        unit.stdout(contains(format!("ExecStart={program} {service} ")));
    }
}

#[test]
fn shells_and_manuals_know_every_subcommand() {
    for shell in ["bash", "zsh", "fish"] {
        let script = hugekit().args(["completions", shell]).assert().success();
        script.stdout(contains("keep-free").and(contains("doctor")));
    }
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man1");
    hugekit().args(["man", "--dir"]).arg(&pages).assert().success();
    for (name, said) in [("hugekit", "doctor"), ("hugekit-tend", "density")] {
        let page = fs::read_to_string(pages.join(format!("{name}.1"))).unwrap();
        assert!(page.starts_with(".ie") && page.contains(said), "{name}");
    }
    hugekit()
        .args(["man", "--dir", "/dev/null/man"])
        .assert()
        .code(1)
        .stderr(contains("/dev/null/man"));
}

/// A copy of the command in a folder of its own, beside which or in whose PATH the lab is.
#[test]
fn lab_is_the_program_beside_the_command_or_in_path_and_gets_all_arguments() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::copy(assert_cmd::cargo::cargo_bin!("hugekit"), at("hugekit")).unwrap();
    let lab = |arguments: &[&str], path: &str| {
        let mut command = Command::new(at("hugekit"));
        command.arg("lab").args(arguments).env("PATH", path).assert()
    };
    let nowhere = lab(&["--list"], "/nonexistent").code(1).stdout("");
    nowhere.stderr(contains("error: hugekit-lab is not installed\nremedy: cargo install "));
    let put = |path: &std::path::Path| {
        fs::write(path, "#!/bin/sh\necho \"$HUGEKIT: $*\"; exit 4").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    fs::create_dir(at("path")).unwrap();
    put(&at("path/hugekit-lab"));
    let said = format!("{}: --help stores --json=-\n", at("hugekit").display());
    let arguments = ["--help", "stores", "--json=-"];
    lab(&arguments, at("path").to_str().unwrap()).code(4).stdout(said.clone());
    fs::rename(at("path/hugekit-lab"), at("hugekit-lab")).unwrap();
    lab(&arguments, "/nonexistent").code(4).stdout(said);
    fs::set_permissions(at("hugekit-lab"), fs::Permissions::from_mode(0o644)).unwrap();
    lab(&["--list"], "/nonexistent").code(1).stderr(contains("error: cannot start "));
}
