//! Every kept input: what libFuzzer found worth keeping, and what once broke something.

use std::fs;
use std::path::{Path, PathBuf};

use hugekit_fuzz::{TARGETS, Target};

/// Inputs of a target, in order.
fn kept(target: &Target) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target.name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{folder:?}: {error}"));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn kept_inputs_break_nothing() {
    for target in TARGETS {
        let inputs = kept(target);
        assert!(!inputs.is_empty(), "{} has no kept inputs", target.name);
        for input in inputs {
            println!("{}: {}", target.name, input.display());
            target.run(&fs::read(&input).unwrap());
        }
    }
}

#[test]
fn every_folder_is_of_a_target() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for folder in fs::read_dir(corpus).unwrap() {
        let name = folder.unwrap().file_name().into_string().unwrap();
        assert!(Target::named(&name).is_some(), "{name} is no target");
    }
}
