//! Layouts that lie: each one is refused by a typed error, in bounded time, memory and disk, and leaves nothing.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use hugekit_testing::trials::{Checks, skip};
use hugekit_vm::oci::{Digest, FrameError, OciError, UnpackOptions, unpack};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::layouts::{blob, read_json, tree};
use crate::saved::{CHUNK, Saved};

pub(crate) const CHECKS: Checks = hugekit_testing::checks![
    layouts_that_lie_are_refused,
    memory_without_room_is_refused_before_it_is_written,
];

/// A layout that was packed, to be changed.
struct Layout {
    folder: TempDir,
    path: PathBuf,
}

impl Layout {
    fn packed() -> Saved {
        let saved = Saved::new();
        saved.record(1, &[(0, 2 * CHUNK)]);
        saved.pack(1, "layout");
        saved
    }

    fn copy_of(saved: &Saved) -> Self {
        let folder = TempDir::new().unwrap();
        let (from, path) = (saved.path("layout"), folder.path().join("layout"));
        fs::create_dir_all(path.join("blobs/sha256")).unwrap();
        for file in tree(&from).into_keys() {
            fs::copy(&file, path.join(file.strip_prefix(&from).unwrap())).unwrap();
        }
        Self { folder, path }
    }

    fn index(&self) -> PathBuf {
        self.path.join("index.json")
    }

    fn descriptor(&self) -> Value {
        read_json(&self.index())["manifests"][0].clone()
    }

    fn manifest(&self) -> Value {
        read_json(&blob(&self.path, &self.descriptor()))
    }

    /// The file of a layer.
    fn layer(&self, number: usize) -> PathBuf {
        blob(&self.path, &self.manifest()["layers"][number])
    }

    /// Adds a blob, and returns its descriptor of another one's type.
    fn add(&self, bytes: &[u8], like: &Value) -> Value {
        let digest = Digest::of(bytes);
        fs::write(self.path.join("blobs/sha256").join(digest.file_name()), bytes).unwrap();
        let mut descriptor = like.clone();
        descriptor["digest"] = digest.to_string().into();
        descriptor["size"] = bytes.len().into();
        descriptor
    }

    /// Changes the manifest, and names it correctly.
    fn change(&self, change: impl FnOnce(&mut Value)) {
        let mut manifest = self.manifest();
        change(&mut manifest);
        self.set_manifest(manifest.to_string().as_bytes());
    }

    fn set_manifest(&self, bytes: &[u8]) {
        let descriptor = self.add(bytes, &self.descriptor());
        let mut index = read_json(&self.index());
        index["manifests"][0] = descriptor;
        fs::write(self.index(), index.to_string()).unwrap();
    }

    /// Replaces a layer by other bytes, which are named correctly.
    fn set_layer(&self, number: usize, bytes: &[u8]) {
        let descriptor = self.add(bytes, &self.manifest()["layers"][number]);
        self.change(|manifest| manifest["layers"][number] = descriptor);
    }

    /// Changes the configuration, which is named correctly.
    fn configure(&self, change: impl FnOnce(&mut Value)) {
        let descriptor = self.manifest()["config"].clone();
        let mut config = read_json(&blob(&self.path, &descriptor));
        change(&mut config);
        let descriptor = self.add(config.to_string().as_bytes(), &descriptor);
        self.change(|manifest| manifest["config"] = descriptor);
    }

    fn unpack(&self) -> Result<(), OciError> {
        let (layout, output) = (self.path.clone(), self.folder.path().join("back"));
        let options = UnpackOptions { layout, output, keep_deltas: false, threads: None };
        let unpacked = unpack(&options, &|_, _| ()).map(drop);
        assert_eq!(self.folder.path().join("back").exists(), unpacked.is_ok());
        unpacked
    }
}

/// Replaces a byte of a file in the middle.
fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
}

fn frame(bytes: &[u8]) -> Vec<u8> {
    let mut frame = Vec::with_capacity(zstd_safe::compress_bound(bytes.len()));
    zstd_safe::compress(&mut frame, bytes, 1).unwrap();
    frame
}

/// A table of frames with these entries: part of the file, and bytes of the frame.
fn table(length: u64, count: u64, entries: &[(u64, u32)]) -> Vec<u8> {
    let mut table = b"HKFRAMES".to_vec();
    table.extend([1_u32.to_le_bytes(), (CHUNK as u32).to_le_bytes()].concat());
    table.extend([length.to_le_bytes(), count.to_le_bytes()].concat());
    for (chunk, bytes) in entries {
        table.extend(chunk.to_le_bytes());
        table.extend(bytes.to_le_bytes());
        table.extend([7; 32]);
    }
    table.chunks(CHUNK).flat_map(frame).collect()
}

/// How a layout is changed, and whether it is refused as it should be.
type Case = (&'static str, fn(&Layout), fn(&OciError) -> bool);

/// Layers of the layout: state, index, memory, state, index, delta, index, working set.
const INDEX: usize = 1;
const MEMORY: usize = 2;
const DELTA: usize = 5;
const SET: usize = 7;

macro_rules! refused {
    ($pattern:pat) => {
        |error| matches!(error, $pattern)
    };
}

const CASES: &[Case] = &[
    // The folder.
    ("no folder", |l| fs::remove_dir_all(&l.path).unwrap(), refused!(OciError::Read { .. })),
    (
        "no blobs",
        |l| fs::remove_dir_all(l.path.join("blobs")).unwrap(),
        refused!(OciError::Read { .. }),
    ),
    ("blobs by a link", link_to_blobs, refused!(OciError::Read { .. })),
    ("digests by a link", link_to_digests, refused!(OciError::Read { .. })),
    ("blob by a link", |l| link_to_layer(l, MEMORY), refused!(OciError::Read { .. })),
    ("index by a link", |l| link(&l.index()), refused!(OciError::Read { .. })),
    ("blob is a folder", blob_is_a_folder, refused!(OciError::Read { .. })),
    ("blob is a FIFO", blob_is_a_fifo, refused!(OciError::Read { .. })),
    (
        "no oci-layout",
        |l| fs::remove_file(l.path.join("oci-layout")).unwrap(),
        refused!(OciError::Read { .. }),
    ),
    (
        "another layout",
        |l| fs::write(l.path.join("oci-layout"), r#"{"imageLayoutVersion":"2.0.0"}"#).unwrap(),
        refused!(OciError::LayoutVersion { .. }),
    ),
    // Documents.
    (
        "index of nonsense",
        |l| fs::write(l.index(), "{").unwrap(),
        refused!(OciError::Document { .. }),
    ),
    (
        "index without an image",
        |l| fs::write(l.index(), r#"{"schemaVersion":2,"manifests":[]}"#).unwrap(),
        refused!(OciError::Tag { images: 0, .. }),
    ),
    (
        "index without an end",
        |l| File::create(l.index()).unwrap().set_len(1 << 40).unwrap(),
        refused!(OciError::Read { .. }),
    ),
    (
        "deep index",
        |l| fs::write(l.index(), "[".repeat(1 << 20)).unwrap(),
        refused!(OciError::Document { .. }),
    ),
    ("manifest of nonsense", |l| l.set_manifest(b"[]"), refused!(OciError::Document { .. })),
    (
        "manifest changed",
        |l| flip(&blob(&l.path, &l.descriptor())),
        refused!(OciError::BlobDigest { .. }),
    ),
    (
        "digest of a path",
        |l| l.change(|m| m["layers"][0]["digest"] = "sha256:../../../etc/passwd".into()),
        refused!(OciError::Document { .. }),
    ),
    (
        "digest of another kind",
        |l| l.change(|m| m["config"]["digest"] = format!("sha512:{:0128}", 0).into()),
        refused!(OciError::Document { .. }),
    ),
    (
        "size below zero",
        |l| l.change(|m| m["layers"][0]["size"] = (-1).into()),
        refused!(OciError::Document { .. }),
    ),
    (
        "size of half a byte",
        |l| l.change(|m| m["layers"][0]["size"] = 0.5.into()),
        refused!(OciError::Document { .. }),
    ),
    (
        "config of a container",
        |l| {
            l.change(|m| {
                m["config"]["mediaType"] = "application/vnd.oci.image.config.v1+json".into();
            });
        },
        refused!(OciError::NoVm { .. }),
    ),
    (
        "config without an end",
        |l| l.change(|m| m["config"]["size"] = (1_u64 << 62).into()),
        refused!(OciError::BlobSize { .. }),
    ),
    (
        "newer config",
        |l| l.configure(|c| c["version"] = 2.into()),
        refused!(OciError::Newer { found: 2 }),
    ),
    (
        "config of 2^62 bytes",
        |l| l.configure(|c| c["memory"] = json!({"bytes": 1_u64 << 62})),
        refused!(OciError::Memory { .. }),
    ),
    (
        "config of no bytes",
        |l| l.configure(|c| c["memory"]["bytes"] = 0.into()),
        refused!(OciError::Memory { .. }),
    ),
    (
        "config of other bytes",
        |l| l.configure(|c| c["memory"] = json!({"bytes": CHUNK})),
        refused!(OciError::OtherMemory { .. }),
    ),
    (
        "config of other chunks",
        |l| l.configure(|c| c["chunk_bytes"] = 4096.into()),
        refused!(OciError::Memory { .. }),
    ),
    (
        "config without a size",
        |l| l.configure(|c| c["memory"] = Value::Null),
        refused!(OciError::Document { .. }),
    ),
    // Layers.
    (
        "no layers",
        |l| l.change(|m| m["layers"] = json!([])),
        refused!(OciError::Layer { number: 0, .. }),
    ),
    ("no memory", |l| drop_layers(l, MEMORY, 1), refused!(OciError::Layer { number: 2, .. })),
    ("no state", |l| drop_layers(l, 0, 1), refused!(OciError::Layer { number: 0, .. })),
    (
        "delta without a state",
        |l| drop_layers(l, 3, 1),
        refused!(OciError::Layer { number: 4, .. }),
    ),
    ("delta without memory", |l| drop_layers(l, 0, 3), refused!(OciError::Layer { number: 2, .. })),
    ("memory twice", |l| repeat_layers(l, INDEX, 2), refused!(OciError::Layer { number: 4, .. })),
    ("working set twice", |l| repeat_layers(l, 6, 2), refused!(OciError::Layer { number: 8, .. })),
    ("delta twice", |l| repeat_layers(l, 3, 3), refused!(OciError::Delta { number: 2, .. })),
    (
        "unknown layer",
        |l| l.change(|m| m["layers"][MEMORY]["mediaType"] = "text/plain".into()),
        refused!(OciError::Layer { number: MEMORY, .. }),
    ),
    (
        "compressed container layer",
        |l| {
            l.change(|m| {
                m["layers"][0]["mediaType"] = "application/vnd.oci.image.layer.v1.tar+gzip".into();
            });
        },
        refused!(OciError::Layer { number: 0, .. }),
    ),
    // Blobs.
    ("no blob", |l| fs::remove_file(l.layer(MEMORY)).unwrap(), refused!(OciError::Read { .. })),
    (
        "blob of 2^62 bytes",
        |l| l.change(|m| m["layers"][MEMORY]["size"] = (1_u64 << 62).into()),
        refused!(OciError::BlobSize { .. }),
    ),
    (
        "state of 2^62 bytes",
        |l| l.change(|m| m["layers"][0]["size"] = (1_u64 << 62).into()),
        refused!(OciError::BlobSize { .. }),
    ),
    (
        "blob cut off",
        |l| File::options().write(true).open(l.layer(MEMORY)).unwrap().set_len(100).unwrap(),
        refused!(OciError::BlobSize { found: 100, .. }),
    ),
    (
        "blob grown",
        |l| File::options().write(true).open(l.layer(MEMORY)).unwrap().set_len(1 << 40).unwrap(),
        refused!(OciError::BlobSize { .. }),
    ),
    ("state changed", |l| flip(&l.layer(0)), refused!(OciError::BlobDigest { .. })),
    (
        "memory changed",
        |l| flip(&l.layer(MEMORY)),
        refused!(OciError::Frames { .. } | OciError::BlobDigest { .. }),
    ),
    (
        "working set changed",
        |l| flip(&l.layer(SET)),
        refused!(OciError::Frames { .. } | OciError::BlobDigest { .. }),
    ),
    (
        "delta changed",
        |l| flip(&l.layer(DELTA)),
        refused!(OciError::Delta { number: 1, .. } | OciError::BlobDigest { .. }),
    ),
    // A frame of zeroes is never read: its digest is compared all the same.
    ("zeroes changed", change_zeroes, refused!(OciError::BlobDigest { .. })),
    // Tables.
    (
        "table changed",
        |l| flip(&l.layer(INDEX)),
        refused!(OciError::Frames { .. } | OciError::BlobDigest { .. }),
    ),
    (
        "no table",
        |l| l.set_layer(INDEX, b"table"),
        refused!(OciError::Frames { source: FrameError::Unreadable(_), .. }),
    ),
    (
        "other table",
        |l| l.set_layer(INDEX, &frame(&[0; 100])),
        refused!(OciError::Frames { source: FrameError::NoTable, .. }),
    ),
    (
        "empty table",
        |l| l.set_layer(INDEX, b""),
        refused!(OciError::Frames { source: FrameError::Unreadable(_), .. }),
    ),
    (
        "table of 2^62 bytes",
        |l| l.set_layer(INDEX, &table(1 << 62, 1 << 46, &[])),
        refused!(OciError::Frames { .. }),
    ),
    (
        "table of 1 TiB",
        |l| l.set_layer(INDEX, &table(1 << 40, 1 << 24, &[])),
        refused!(OciError::Frames { .. }),
    ),
    (
        "table with a gap",
        |l| l.set_layer(INDEX, &table(2 * CHUNK as u64, 2, &[(0, 20), (2, 20)])),
        refused!(OciError::Frames { .. }),
    ),
    (
        "table of few frames",
        |l| l.set_layer(INDEX, &table(CHUNK as u64, 1, &[(0, 20)])),
        refused!(OciError::Frames { .. }),
    ),
    (
        "table in a bomb",
        |l| l.set_layer(INDEX, &frame(&vec![0; 1 << 26])),
        refused!(OciError::Frames { source: FrameError::Unreadable(_), .. }),
    ),
    ("table of another layer", |l| swap_tables(l, INDEX, 4), refused!(OciError::Frames { .. })),
    // Frames.
    (
        "frame in a bomb",
        |l| one_frame(l, &frame(&vec![1; 1 << 26])),
        refused!(OciError::Frames { source: FrameError::Frame { .. }, .. }),
    ),
    (
        "frame of fewer bytes",
        |l| one_frame(l, &frame(&[1; 100])),
        refused!(OciError::Frames { source: FrameError::Frame { .. }, .. }),
    ),
    (
        "frame of nonsense",
        |l| one_frame(l, &[9; 100]),
        refused!(OciError::Frames { source: FrameError::Frame { .. }, .. }),
    ),
    (
        "frame of other bytes",
        |l| one_frame(l, &frame(&[1; CHUNK])),
        refused!(OciError::Frames { source: FrameError::Hash { .. }, .. }),
    ),
    // Deltas.
    (
        "delta of another state",
        |l| l.set_layer(0, b"another state"),
        refused!(OciError::Delta { number: 1, .. }),
    ),
];

fn layouts_that_lie_are_refused() {
    let (packed, mut wrong) = (Layout::packed(), Vec::new());
    for (name, change, is_expected) in CASES {
        let layout = Layout::copy_of(&packed);
        change(&layout);
        match layout.unpack() {
            Err(error) if is_expected(&error) => {
                // A person reads it, and its kind decides what a program does.
                assert!(!hugekit_sys::error_chain(&error).to_string().is_empty());
                let _ = error.kind();
            }
            other => wrong.push(format!("{name}: {other:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    Layout::copy_of(&packed).unpack().unwrap();
}

fn link(path: &Path) {
    let moved = path.with_extension("moved");
    fs::rename(path, &moved).unwrap();
    symlink(&moved, path).unwrap();
}

fn link_to_blobs(layout: &Layout) {
    link(&layout.path.join("blobs"));
}

fn link_to_digests(layout: &Layout) {
    link(&layout.path.join("blobs/sha256"));
}

fn link_to_layer(layout: &Layout, number: usize) {
    link(&layout.layer(number));
}

fn blob_is_a_folder(layout: &Layout) {
    let path = layout.layer(MEMORY);
    fs::remove_file(&path).unwrap();
    fs::create_dir(path).unwrap();
}

fn blob_is_a_fifo(layout: &Layout) {
    let path = layout.layer(MEMORY);
    fs::remove_file(&path).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, &path, 0o600.into()).unwrap();
}

fn drop_layers(layout: &Layout, first: usize, count: usize) {
    layout.change(|manifest| {
        drop(manifest["layers"].as_array_mut().unwrap().drain(first..first + count));
    });
}

/// Once more behind them.
fn repeat_layers(layout: &Layout, first: usize, count: usize) {
    layout.change(|manifest| {
        let layers = manifest["layers"].as_array_mut().unwrap();
        let again = layers[first..first + count].to_vec();
        layers.splice(first + count..first + count, again);
    });
}

fn swap_tables(layout: &Layout, one: usize, other: usize) {
    layout.change(|manifest| manifest["layers"].as_array_mut().unwrap().swap(one, other));
}

/// A frame of 64 KiB of zeroes lies between the random bytes and those that compress.
fn change_zeroes(layout: &Layout) {
    let path = layout.layer(MEMORY);
    let mut bytes = fs::read(&path).unwrap();
    let zeroes = frame(&[0; CHUNK]);
    let at = bytes.windows(zeroes.len()).position(|part| part == zeroes).unwrap();
    bytes[at + zeroes.len() - 1] ^= 1;
    fs::write(path, bytes).unwrap();
}

/// An image whose memory is one chunk with this frame, without deltas.
fn one_frame(layout: &Layout, frame: &[u8]) {
    layout.set_layer(INDEX, &table(CHUNK as u64, 1, &[(0, frame.len() as u32)]));
    layout.set_layer(MEMORY, frame);
    layout.configure(|config| config["memory"] = json!({"bytes": CHUNK}));
    layout.change(|manifest| manifest["layers"].as_array_mut().unwrap().truncate(3));
}

/// Some megabytes of frames stand for all that the file system has.
fn memory_without_room_is_refused_before_it_is_written() {
    let layout = Layout::copy_of(&Layout::packed());
    let found = rustix::fs::statvfs(&layout.path).unwrap();
    let free = found.f_bavail * found.f_frsize;
    // Other programs may free some of the rest meanwhile.
    let count = free / CHUNK as u64 * 3 / 2 + 1;
    if count > 1 << 21 {
        skip(format!("{free} bytes are free: too many for a test"));
    }
    let part = frame(&[1; CHUNK]);
    let entries: Vec<_> = (0..count).map(|chunk| (chunk, part.len() as u32)).collect();
    layout.set_layer(INDEX, &table(count * CHUNK as u64, count, &entries));
    layout.set_layer(MEMORY, &part.repeat(count as usize));
    layout.configure(|config| config["memory"] = json!({"bytes": count * CHUNK as u64}));
    layout.change(|manifest| manifest["layers"].as_array_mut().unwrap().truncate(3));
    assert!(matches!(layout.unpack(), Err(OciError::Space { .. })));
}
