//! A packed VM goes through a real registry and comes back: Debian's skopeo and docker-registry.
//!
//! `cargo xtask fetch registry` unpacks the programs.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use hugekit_programs::Unpacked;
use hugekit_testing::processes::Killed;
use hugekit_testing::trials::{Checks, skip};
use hugekit_vm::oci::{UnpackOptions, unpack};

use crate::layouts::{blob, read_json, tree};
use crate::saved::{CHUNK, LEN, Saved};

pub(crate) const CHECKS: Checks =
    hugekit_testing::checks![registry_moves_what_is_new_and_gives_back_every_byte];

fn program(name: &str) -> Command {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/registry/root");
    let found = Unpacked::new(root).find(name);
    found.unwrap_or_else(|| skip(format!("no {name} (cargo xtask fetch registry)")))
}

/// A registry that stores blobs in a folder, and its address.
struct Registry {
    address: String,
    _process: Killed,
}

impl Registry {
    fn start(folder: &Path) -> Self {
        let config = folder.join("registry.yml");
        let text = format!(
            "version: 0.1\nlog: {{level: info}}\nstorage: {{filesystem: {{rootdirectory: {}}}}}\n\
             http: {{addr: \"127.0.0.1:0\"}}\n",
            folder.join("stored").display()
        );
        fs::write(&config, text).unwrap();
        let mut command = program("docker-registry");
        command.arg("serve").arg(config).stdin(Stdio::null()).stdout(Stdio::null());
        let mut process = Killed(command.stderr(Stdio::piped()).spawn().unwrap());
        let address = address(&mut process);
        Self { address, _process: process }
    }

    fn image(&self, tag: &str) -> String {
        format!("docker://{}/vm:{tag}", self.address)
    }
}

/// The log names the port that the kernel has chosen.
fn address(process: &mut Child) -> String {
    let mut log = BufReader::new(process.stderr.take().unwrap());
    let mut line = String::new();
    while log.read_line(&mut line).unwrap() > 0 {
        if let Some((_, rest)) = line.split_once("listening on ") {
            let address = rest.split(['"', ',', ' ', '\n']).next().unwrap().to_owned();
            // It must not wait for a reader of its log.
            std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
            return address;
        }
        line.clear();
    }
    panic!("the registry has ended");
}

fn copy(from: &str, to: &str) {
    let mut skopeo = program("skopeo");
    // The registry speaks plain HTTP, and no file says whose signatures are trusted.
    skopeo.args(["--insecure-policy", "copy", "--quiet"]);
    skopeo.args(["--src-tls-verify=false", "--dest-tls-verify=false", from, to]);
    let output = skopeo.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn oci(layout: &Path) -> String {
    format!("oci:{}", layout.display())
}

fn registry_moves_what_is_new_and_gives_back_every_byte() {
    let (saved, _) = (Saved::new(), program("skopeo"));
    let registry = Registry::start(saved.folder.path());
    for (deltas, tag) in [(1, "v1"), (2, "v2")] {
        saved.record(deltas, &[(0, CHUNK), (LEN - 4096, LEN)]);
        let report = saved.pack(deltas, tag);
        copy(&oci(&saved.path(tag)), &registry.image(tag));
        let back = saved.path(&format!("from-registry-{tag}"));
        copy(&registry.image(tag), &oci(&back));
        let index = read_json(&back.join("index.json"));
        assert_eq!(index["manifests"][0]["digest"], report.digest);
        assert!(blob(&back, &index["manifests"][0]).exists());
        let output = saved.path(&format!("back-{tag}"));
        let options = UnpackOptions { layout: back, output, keep_deltas: false, threads: None };
        let unpacked = unpack(&options, &|_, _| ()).unwrap();
        assert!(fs::read(&unpacked.memory[0]).unwrap() == saved.memory[deltas]);
    }
    // The registry has each blob once: what both versions have was not stored again.
    let stored = tree(&saved.path("stored/docker/registry/v2/blobs")).len();
    let digests = |tag: &str| {
        let blobs = tree(&saved.path(tag).join("blobs")).into_keys();
        blobs.map(|path| path.file_name().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let (mut all, parts) = ([digests("v1"), digests("v2")].concat(), digests("v2").len());
    all.sort();
    all.dedup();
    assert_eq!(stored, all.len());
    assert!(all.len() < 2 * parts - 5, "{} blobs of {parts}", all.len());
}
