//! Layouts that were packed: their bytes by stock zstd and by hugekit, their order, and what is refused.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use hugekit_delta::DeltaError;
use hugekit_testing::trials::{Checks, skip};
use hugekit_vm::checkpoint::state_of;
use hugekit_vm::oci::{
    FORMAT_VERSION, OciError, PackOptions, PackedVm, UnpackOptions, UnpackReport, pack, unpack,
};
use hugekit_vm::pager::SourceError;
use serde_json::Value;

use crate::saved::{CHUNK, LEN, Saved};

pub(crate) const CHECKS: Checks = hugekit_testing::checks![
    packed_memory_is_unpacked_byte_for_byte_and_with_its_holes,
    stock_zstd_makes_the_memory_file_of_the_layer,
    deltas_are_applied_or_kept_as_files,
    same_files_make_the_same_layout_by_any_number_of_threads,
    version_with_a_delta_shares_the_layers_of_the_one_before,
    working_set_is_a_layer_with_the_last_bytes_and_comes_back,
    working_set_of_other_memory_is_left_out_or_refused,
    layout_says_what_it_needs,
    outputs_that_exist_and_files_that_are_missing_are_refused,
    deltas_that_do_not_follow_are_refused,
    memory_that_is_written_meanwhile_is_refused,
    image_of_several_is_named_by_its_tag,
];

fn unpacked(layout: &Path, output: PathBuf) -> Result<UnpackReport, OciError> {
    let layout = layout.to_owned();
    let options = UnpackOptions { layout, output, keep_deltas: false, threads: None };
    unpack(&options, &|_, _| ())
}

fn packed_memory_is_unpacked_byte_for_byte_and_with_its_holes() {
    let saved = Saved::new();
    let report = saved.pack(0, "layout");
    assert_eq!((report.memory_bytes, report.working_set_bytes), (LEN as u64, None));
    let back = unpacked(&saved.path("layout"), saved.path("back")).unwrap();
    assert_eq!(back.written_bytes, report.data_bytes);
    assert_eq!(fs::read(&back.state).unwrap(), b"first state");
    assert_eq!(back.memory, [saved.path("back/memory")]);
    assert!(fs::read(&back.memory[0]).unwrap() == saved.memory[0]);
    let found = fs::metadata(&back.memory[0]).unwrap();
    assert!(found.blocks() * 512 < 5 << 20, "{} bytes on the disk", found.blocks() * 512);
    // Later deltas follow on it as on the checkpoint.
    let first = state_of(&saved.saved(0).join("memory"));
    assert_eq!(state_of(&back.memory[0]), first);
}

/// Layers of the only image: media types and files, in their order.
pub(crate) fn layers(layout: &Path) -> Vec<(String, PathBuf)> {
    let index: Value = read_json(&layout.join("index.json"));
    let manifest: Value = read_json(&blob(layout, &index["manifests"][0]));
    let layers = manifest["layers"].as_array().unwrap().iter();
    let layer = |layer: &Value| (layer["mediaType"].as_str().unwrap().into(), blob(layout, layer));
    layers.map(layer).collect()
}

pub(crate) fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The file of a blob by its descriptor.
pub(crate) fn blob(layout: &Path, descriptor: &Value) -> PathBuf {
    let digest = descriptor["digest"].as_str().unwrap().replace(':', "/");
    layout.join("blobs").join(digest)
}

fn layer(layout: &Path, kind: &str) -> PathBuf {
    let found = layers(layout).into_iter().find(|(media_type, _)| media_type.contains(kind));
    found.unwrap().1
}

fn zstd(path: &Path) -> Vec<u8> {
    let mut command = Command::new("zstd");
    let output = command.arg("-dc").arg(path).stdin(Stdio::null()).output();
    let Ok(output) = output else { skip("no zstd (apt-get install zstd)") };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn stock_zstd_makes_the_memory_file_of_the_layer() {
    let saved = Saved::new();
    saved.record(1, &[(0, CHUNK), (4 << 20, (4 << 20) + 4096)]);
    saved.pack(1, "layout");
    let layout = saved.path("layout");
    assert!(zstd(&layer(&layout, "memory")) == saved.memory[0]);
    assert!(
        zstd(&layer(&layout, "delta")) == fs::read(saved.saved(1).join("memory.delta")).unwrap()
    );
    assert_eq!(&zstd(&layer(&layout, "index"))[..8], b"HKFRAMES");
    let set = [&saved.memory[1][..CHUNK], &saved.memory[1][4 << 20..(4 << 20) + CHUNK]].concat();
    assert!(zstd(&layer(&layout, "working-set")) == set);
}

fn deltas_are_applied_or_kept_as_files() {
    let saved = Saved::new();
    let report = saved.pack(2, "layout");
    assert_eq!(report.delta_bytes.len(), 2);
    let back = unpacked(&saved.path("layout"), saved.path("back")).unwrap();
    assert_eq!(fs::read(&back.state).unwrap(), b"third state");
    assert!(fs::read(&back.memory[0]).unwrap() == saved.memory[2]);
    let options = UnpackOptions {
        layout: saved.path("layout"),
        output: saved.path("series"),
        keep_deltas: true,
        threads: None,
    };
    let series = unpack(&options, &|_, _| ()).unwrap();
    let kept = ["series/000001/memory", "series/000002/memory.delta", "series/000003/memory.delta"];
    assert_eq!(series.memory, kept.map(|name| saved.path(name)));
    assert_eq!(series.state, saved.path("series/000003/vmstate"));
    let modified =
        |folder: PathBuf| fs::metadata(folder.join("vmstate")).unwrap().modified().unwrap();
    assert_eq!(modified(saved.path("back")), modified(saved.saved(2)));
    for (number, path) in series.memory.iter().enumerate() {
        assert_eq!(modified(path.parent().unwrap().into()), modified(saved.saved(number)));
        let name = path.file_name().unwrap();
        let original = saved.saved(number);
        assert!(fs::read(path).unwrap() == fs::read(original.join(name)).unwrap(), "{number}");
        let state = fs::read(path.with_file_name("vmstate")).unwrap();
        assert_eq!(state, fs::read(original.join("vmstate")).unwrap());
    }
}

/// All files of a folder.
pub(crate) fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(tree(&path)),
            false => drop(found.insert(path.clone(), fs::read(&path).unwrap())),
        }
    }
    found
}

fn same_files_make_the_same_layout_by_any_number_of_threads() {
    let saved = Saved::new();
    saved.record(2, &[(0, LEN / 2)]);
    let digests = [1, 2, 7].map(|threads| {
        let name = format!("layout-{threads}");
        let threads = NonZeroUsize::new(threads);
        let report = saved.pack_with(2, &name, |options| PackOptions { threads, ..options });
        let files = tree(&saved.path(&name)).into_values().collect::<Vec<_>>();
        (report.digest, files)
    });
    assert!(digests[0] == digests[1] && digests[1] == digests[2]);
}

fn version_with_a_delta_shares_the_layers_of_the_one_before() {
    let saved = Saved::new();
    saved.pack(1, "v1");
    saved.pack(2, "v2");
    let digests = |name: &str| -> Vec<_> {
        let layers = layers(&saved.path(name));
        layers.into_iter().map(|(_, path)| path.file_name().unwrap().to_owned()).collect()
    };
    let (before, after) = (digests("v1"), digests("v2"));
    assert_eq!((before.len(), after.len()), (6, 9));
    assert_eq!(before, after[..6]);
}

fn working_set_is_a_layer_with_the_last_bytes_and_comes_back() {
    let saved = Saved::new();
    // In a chunk that a delta changes, in the last chunk, and across two chunks.
    let ranges = [(2 * CHUNK + 4096, 2 * CHUNK + 8192), (5 << 20, (5 << 20) + CHUNK + 4096)];
    saved.record(2, &[ranges[0], ranges[1], (LEN - 4096, LEN)]);
    let report = saved.pack(2, "layout");
    let back = unpacked(&saved.path("layout"), saved.path("back")).unwrap();
    assert!(fs::read(&back.memory[0]).unwrap() == saved.memory[2]);
    assert_eq!(report.working_set_bytes, Some((3 * 4096 + CHUNK) as u64));
    // It is of the file that was unpacked: packed again, it is a layer again.
    let options = PackOptions::of_saved(&saved.path("back"), saved.path("again"));
    let again = pack(&options, &|_, _| ()).unwrap();
    assert_eq!(again.working_set_bytes, Some((3 * CHUNK + 3 * 4096) as u64));
    let [first, second] = ["layout", "again"].map(|name| layer(&saved.path(name), "working-set"));
    assert_eq!(first.file_name(), second.file_name());
}

fn working_set_of_other_memory_is_left_out_or_refused() {
    let saved = Saved::new();
    saved.record(1, &[(0, CHUNK)]);
    assert_eq!(saved.pack(2, "without").working_set_bytes, None);
    let set = saved.saved(0).join("memory.working-set");
    let options = PackOptions {
        working_set: Some(set.clone()),
        ..PackOptions::of_saved(&saved.saved(0), saved.path("refused"))
    };
    let refused = pack(&options, &|_, _| ()).unwrap_err();
    assert!(matches!(&refused, OciError::WorkingSet { path } if *path == set), "{refused}");
    assert!(!saved.path("refused").exists());
}

fn layout_says_what_it_needs() {
    let saved = Saved::new();
    let report = saved
        .pack_with(0, "layout", |options| PackOptions { tag: Some("v1".to_owned()), ..options });
    let layout = saved.path("layout");
    let index = read_json(&layout.join("index.json"));
    assert_eq!(index["manifests"][0]["digest"], report.digest);
    assert_eq!(index["manifests"][0]["annotations"]["org.opencontainers.image.ref.name"], "v1");
    let manifest = read_json(&blob(&layout, &index["manifests"][0]));
    let config = read_json(&blob(&layout, &manifest["config"]));
    assert_eq!(config["version"], FORMAT_VERSION);
    assert_eq!(config["memory"]["bytes"], LEN);
    assert_eq!(config["memory"]["regions"][0], LEN);
    assert_eq!(config["chunk_bytes"], CHUNK);
    assert_eq!(config["cpu"]["architecture"], std::env::consts::ARCH);
    let sizes: u64 = tree(&layout.join("blobs")).values().map(|bytes| bytes.len() as u64).sum();
    assert_eq!(report.total_bytes, sizes);
    let vm = PackedVm::open(&layout).unwrap();
    assert_eq!(fs::read(vm.state_path()).unwrap(), b"first state");
}

fn outputs_that_exist_and_files_that_are_missing_are_refused() {
    let saved = Saved::new();
    saved.pack(0, "layout");
    let packed = |saved_at: &Path, output: &str| {
        pack(&PackOptions::of_saved(saved_at, saved.path(output)), &|_, _| ()).unwrap_err()
    };
    assert!(matches!(packed(&saved.saved(0), "layout"), OciError::Exists { .. }));
    assert!(matches!(packed(&saved.saved(0), "no/layout"), OciError::Output { .. }));
    let missing = packed(&saved.path("missing"), "new");
    assert!(matches!(missing, OciError::Source(SourceError::Open { .. })), "{missing}");
    fs::remove_file(saved.saved(0).join("vmstate")).unwrap();
    assert!(matches!(packed(&saved.saved(0), "new"), OciError::Input { .. }));
    let layout = saved.path("layout");
    let exists = unpacked(&layout, saved.saved(0)).unwrap_err();
    assert!(matches!(exists, OciError::Exists { .. }));
    let names = fs::read_dir(saved.folder.path()).unwrap().count();
    assert_eq!(names, 4, "something was left");
}

fn deltas_that_do_not_follow_are_refused() {
    let saved = Saved::new();
    let refused = |deltas: &[usize]| {
        let options = PackOptions {
            deltas: deltas.iter().map(|&number| saved.saved(number)).collect(),
            ..PackOptions::of_saved(&saved.saved(0), saved.path("layout"))
        };
        let error = pack(&options, &|_, _| ()).unwrap_err();
        assert!(!saved.path("layout").exists());
        error
    };
    let follows = |error: &OciError, expected| matches!(error, OciError::Delta { number, source: DeltaError::OtherBase { .. } } if *number == expected);
    let skipped = refused(&[2]);
    assert!(follows(&skipped, 1), "{skipped}");
    let twice = refused(&[1, 1]);
    assert!(follows(&twice, 2), "{twice}");
    // The state names the memory.
    fs::write(saved.saved(0).join("vmstate"), "other").unwrap();
    let other = refused(&[1]);
    assert!(follows(&other, 1), "{other}");
    fs::write(saved.saved(1).join("memory.delta"), "no delta").unwrap();
    let none = refused(&[1]);
    assert!(matches!(none, OciError::Delta { source: DeltaError::NoDelta, .. }), "{none}");
}

fn memory_that_is_written_meanwhile_is_refused() {
    let saved = Saved::new();
    let memory = File::options().write(true).open(saved.saved(0).join("memory")).unwrap();
    let options = PackOptions::of_saved(&saved.saved(0), saved.path("layout"));
    let tell = |_, _| memory.set_len(LEN as u64 + 4096).unwrap();
    let refused = pack(&options, &tell).unwrap_err();
    assert!(matches!(refused, OciError::Source(SourceError::Written { .. })), "{refused}");
    assert!(!saved.path("layout").exists());
}

fn image_of_several_is_named_by_its_tag() {
    let saved = Saved::new();
    for (deltas, tag) in [(0, "v0"), (1, "v1")] {
        saved
            .pack_with(deltas, tag, |options| PackOptions { tag: Some(tag.to_owned()), ..options });
    }
    // As skopeo copies one layout into another.
    let (from, to) = (saved.path("v1"), saved.path("v0"));
    for path in tree(&from.join("blobs")).into_keys() {
        fs::copy(&path, to.join(path.strip_prefix(&from).unwrap())).unwrap();
    }
    let mut index = read_json(&to.join("index.json"));
    let more = read_json(&from.join("index.json"))["manifests"][0].clone();
    index["manifests"].as_array_mut().unwrap().push(more);
    fs::write(to.join("index.json"), index.to_string()).unwrap();
    let refused = unpacked(&to, saved.path("back")).unwrap_err();
    assert!(
        matches!(&refused, OciError::Tag { tags, .. } if tags[..] == ["v0", "v1"]),
        "{refused}"
    );
    for (number, tag) in ["v0", "v1"].into_iter().enumerate() {
        let back =
            unpacked(format!("{}:{tag}", to.display()).as_ref(), saved.path(&format!("b{tag}")));
        assert!(fs::read(&back.unwrap().memory[0]).unwrap() == saved.memory[number]);
    }
}
