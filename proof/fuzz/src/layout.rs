//! Layouts of packed VMs: one part is the fuzzer's, and all digests are right, so that nothing is refused for those.
//!
//! The first byte says which part the others are: a document, a layer, or a table before it is compressed.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use hugekit_vm::oci::{Digest, PackOptions, PackedVm, UnpackOptions, pack, unpack};
use serde_json::{Value, json};
use tempfile::TempDir;

/// More memory would be written for nothing.
const LONGEST_MEMORY: u64 = 1 << 20;

/// Layers of the template: state, index, memory, index, working set.
const LAYERS: u8 = 5;

/// The documents, each as a part.
const INDEX: u8 = LAYERS;
const MANIFEST: u8 = LAYERS + 1;
const CONFIG: u8 = LAYERS + 2;

/// Tables, which are compressed here.
const TABLES: [(u8, usize); 2] = [(LAYERS + 3, 1), (LAYERS + 4, 3)];

pub(crate) fn run(bytes: &[u8]) {
    let Some((&part, bytes)) = bytes.split_first() else { return };
    let folder = tempfile::tempdir().unwrap();
    let layout = folder.path().join("layout");
    write(&layout, part % (LAYERS + 5), bytes);
    let Ok(vm) = PackedVm::open(&layout) else { return };
    let length = vm.config().memory.bytes;
    drop(vm);
    if length > LONGEST_MEMORY {
        return;
    }
    let output = folder.path().join("saved");
    let options =
        UnpackOptions { layout, output: output.clone(), keep_deltas: false, threads: None };
    match unpack(&options, &|_, _| ()) {
        Ok(report) => assert_eq!(fs::metadata(&report.memory[0]).unwrap().len(), length),
        Err(error) => assert!(!output.exists() && !error.to_string().is_empty()),
    }
}

/// A VM of 192 KiB and a page, packed once.
struct Template {
    layers: Vec<Vec<u8>>,
    manifest: Value,
    config: Vec<u8>,
    index: Value,
}

fn template() -> &'static Template {
    static TEMPLATE: OnceLock<Template> = OnceLock::new();
    TEMPLATE.get_or_init(|| {
        let folder = TempDir::new().unwrap();
        let path = |name: &str| folder.path().join(name);
        let memory = [vec![0; 64 << 10], vec![1; 64 << 10], vec![2; 68 << 10]].concat();
        fs::write(path("vmstate"), "state").unwrap();
        fs::write(path("memory"), &memory).unwrap();
        record(&path("memory"), memory.len());
        pack(&PackOptions::of_saved(folder.path(), path("layout")), &|_, _| ()).unwrap();
        let layout = path("layout");
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap().replace(':', "/");
            fs::read(layout.join("blobs").join(digest)).unwrap()
        };
        let index: Value =
            serde_json::from_slice(&fs::read(layout.join("index.json")).unwrap()).unwrap();
        let manifest: Value = serde_json::from_slice(&blob(&index["manifests"][0])).unwrap();
        let layers: Vec<_> = manifest["layers"].as_array().unwrap().iter().map(blob).collect();
        assert_eq!(layers.len(), usize::from(LAYERS));
        Template { layers, config: blob(&manifest["config"]), manifest, index }
    })
}

/// The second chunk is the working set.
fn record(memory: &Path, length: usize) {
    use std::os::unix::fs::MetadataExt;
    let found = fs::metadata(memory).unwrap();
    let of = [((found.mtime(), found.mtime_nsec()), found.len())];
    let set = json!({"version": 2, "length": length, "of": of, "ranges": [[64 << 10, 128 << 10]]});
    fs::write(memory.with_extension("working-set"), set.to_string()).unwrap();
}

fn write(layout: &Path, part: u8, bytes: &[u8]) {
    let Template { layers, manifest, config, index } = template();
    fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
    fs::write(layout.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
    let add = |bytes: &[u8], descriptor: &mut Value| {
        let digest = Digest::of(bytes);
        fs::write(layout.join("blobs/sha256").join(digest.file_name()), bytes).unwrap();
        descriptor["digest"] = digest.to_string().into();
        descriptor["size"] = bytes.len().into();
    };
    let mut layers = layers.clone();
    if part < LAYERS {
        layers[usize::from(part)] = bytes.to_vec();
    }
    for (_, number) in TABLES.iter().filter(|(table, _)| *table == part) {
        layers[*number] = bytes.chunks(64 << 10).flat_map(compressed).collect();
    }
    let mut manifest = manifest.clone();
    for (layer, descriptor) in layers.iter().zip(manifest["layers"].as_array_mut().unwrap()) {
        add(layer, descriptor);
    }
    add(if part == CONFIG { bytes } else { config }, &mut manifest["config"]);
    let manifest = manifest.to_string();
    let manifest = if part == MANIFEST { bytes } else { manifest.as_bytes() };
    let mut index = index.clone();
    add(manifest, &mut index["manifests"][0]);
    let index = index.to_string();
    let index = if part == INDEX { bytes } else { index.as_bytes() };
    fs::write(layout.join("index.json"), index).unwrap();
}

fn compressed(bytes: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(zstd_safe::compress_bound(bytes.len()));
    zstd_safe::compress(&mut frame, bytes, 1).unwrap();
    frame
}
