//! The JSON documents of a layout: its index, the manifest of an image, and the configuration of a packed VM.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use hugekit_machine::cpu::{CpuModel, Vendor, cpu_model};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::digest::Digest;
use super::error::OciError;
use super::frames::{CHUNK, MOST_FRAMES};
use crate::firecracker::{regions, state_file};

/// The version of the format. A reader refuses later ones.
pub const FORMAT_VERSION: u32 = 1;

/// Bytes of each document at most. Registries refuse longer manifests.
pub(crate) const LONGEST: u64 = 4 << 20;

/// The text of the file `oci-layout`.
pub(crate) const LAYOUT: &str = r#"{"imageLayoutVersion":"1.0.0"}"#;

/// The annotation with the tag of an image in a layout.
const TAG: &str = "org.opencontainers.image.ref.name";

const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(crate) const CONFIG: &str = "application/vnd.hugekit.vm.config.v1+json";

/// The kind of a layer, by its media type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LayerKind {
    /// The VMM's file of a VM's devices, as it is.
    State,
    /// The table of the frames that follow.
    Index,
    /// Frames of the memory file.
    Memory,
    /// Frames of a delta.
    Delta,
    /// Frames of the memory that the VM touches first, as it is after all deltas.
    WorkingSet,
}

impl LayerKind {
    const ALL: [Self; 5] = [Self::State, Self::Index, Self::Memory, Self::Delta, Self::WorkingSet];

    pub(crate) const fn media_type(self) -> &'static str {
        match self {
            Self::State => "application/vnd.hugekit.vm.state.v1",
            Self::Index => "application/vnd.hugekit.vm.index.v1+zstd",
            Self::Memory => "application/vnd.hugekit.vm.memory.v1+zstd",
            Self::Delta => "application/vnd.hugekit.vm.delta.v1+zstd",
            Self::WorkingSet => "application/vnd.hugekit.vm.working-set.v1+zstd",
        }
    }

    fn of(media_type: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.media_type() == media_type)
    }
}

/// The name and the size of a blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Descriptor {
    pub(crate) media_type: String,
    pub(crate) digest: Digest,
    pub(crate) size: u64,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    annotations: BTreeMap<String, String>,
}

impl Descriptor {
    pub(crate) fn new(media_type: &str, digest: Digest, size: u64) -> Self {
        let media_type = media_type.to_owned();
        Self { media_type, digest, size, annotations: BTreeMap::new() }
    }

    fn tag(&self) -> Option<&str> {
        self.annotations.get(TAG).map(String::as_str)
    }
}

fn parse<T: DeserializeOwned>(document: &'static str, bytes: &[u8]) -> Result<T, OciError> {
    serde_json::from_slice(bytes).map_err(|source| OciError::Document { document, source })
}

/// The file `oci-layout`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct LayoutVersion {
    image_layout_version: String,
}

/// Checks that a layout has the version that is read here.
pub(crate) fn check_layout(bytes: &[u8]) -> Result<(), OciError> {
    let LayoutVersion { image_layout_version: version } = parse("oci-layout", bytes)?;
    if version.starts_with("1.") { Ok(()) } else { Err(OciError::LayoutVersion { version }) }
}

/// The file `index.json`: the images of a layout.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ImageIndex {
    schema_version: u32,
    #[serde(default)]
    media_type: String,
    manifests: Vec<Descriptor>,
}

impl ImageIndex {
    pub(crate) fn of_one(mut manifest: Descriptor, tag: Option<&str>) -> Self {
        manifest.annotations.extend(tag.map(|tag| (TAG.to_owned(), tag.to_owned())));
        Self { schema_version: 2, media_type: INDEX.to_owned(), manifests: vec![manifest] }
    }

    pub(crate) fn of_bytes(bytes: &[u8]) -> Result<Self, OciError> {
        parse("index.json", bytes)
    }

    /// The image with a tag, or the only one.
    pub(crate) fn image(&self, tag: Option<&str>) -> Result<&Descriptor, OciError> {
        let is_meant = |image: &&Descriptor| tag.is_none() || image.tag() == tag;
        let mut meant = self.manifests.iter().filter(is_meant);
        match (meant.next(), meant.next()) {
            (Some(image), None) if image.media_type == MANIFEST => Ok(image),
            (Some(image), None) => Err(OciError::NoVm { media_type: image.media_type.clone() }),
            _ => Err(OciError::Tag {
                tag: tag.map(str::to_owned),
                tags: self.manifests.iter().filter_map(Descriptor::tag).map(Into::into).collect(),
                images: self.manifests.len(),
            }),
        }
    }
}

/// Frames, and the table of them.
#[derive(Clone, Debug)]
pub(crate) struct FramedLayer {
    pub(crate) index: Descriptor,
    pub(crate) frames: Descriptor,
}

/// The layers of one checkpoint.
#[derive(Clone, Debug)]
pub(crate) struct SavedLayers {
    pub(crate) state: Descriptor,
    /// The memory of the first one, and then deltas.
    pub(crate) memory: FramedLayer,
}

/// The layers of a packed VM.
#[derive(Clone, Debug)]
pub(crate) struct Layers {
    pub(crate) config: Descriptor,
    /// At least one.
    pub(crate) saved: Vec<SavedLayers>,
    pub(crate) working_set: Option<FramedLayer>,
}

/// The manifest of an image: its configuration and its layers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Manifest {
    schema_version: u32,
    #[serde(default)]
    media_type: String,
    config: Descriptor,
    layers: Vec<Descriptor>,
}

impl Manifest {
    pub(crate) fn new(config: Descriptor, layers: Vec<Descriptor>) -> Self {
        Self { schema_version: 2, media_type: MANIFEST.to_owned(), config, layers }
    }

    pub(crate) fn of_bytes(bytes: &[u8]) -> Result<Self, OciError> {
        parse("manifest", bytes)
    }

    /// The layers by their meaning: state, index, memory; then state, index, delta for each delta; then index and working
    /// set, if there is one.
    pub(crate) fn into_layers(self) -> Result<Layers, OciError> {
        use LayerKind::{Delta, Index, Memory, State, WorkingSet};
        if self.config.media_type != CONFIG {
            return Err(OciError::NoVm { media_type: self.config.media_type });
        }
        let mut left = LayersLeft { layers: self.layers, next: 0 };
        let mut saved = vec![left.saved(Memory)?];
        while left.is_next(State) {
            saved.push(left.saved(Delta)?);
        }
        let mut working_set = None;
        if left.is_next(Index) {
            working_set = Some(left.framed(WorkingSet)?);
        }
        left.check_end()?;
        Ok(Layers { config: self.config, saved, working_set })
    }
}

struct LayersLeft {
    layers: Vec<Descriptor>,
    next: usize,
}

impl LayersLeft {
    fn is_next(&self, kind: LayerKind) -> bool {
        self.layers.get(self.next).is_some_and(|next| LayerKind::of(&next.media_type) == Some(kind))
    }

    fn take(&mut self, kind: LayerKind) -> Result<Descriptor, OciError> {
        if !self.is_next(kind) {
            return Err(self.unexpected(Some(kind)));
        }
        self.next += 1;
        Ok(self.layers[self.next - 1].clone())
    }

    fn unexpected(&self, expected: Option<LayerKind>) -> OciError {
        OciError::Layer {
            number: self.next,
            found: self.layers.get(self.next).map(|found| found.media_type.clone()),
            expected: expected.map(LayerKind::media_type),
        }
    }

    fn framed(&mut self, kind: LayerKind) -> Result<FramedLayer, OciError> {
        Ok(FramedLayer { index: self.take(LayerKind::Index)?, frames: self.take(kind)? })
    }

    fn saved(&mut self, kind: LayerKind) -> Result<SavedLayers, OciError> {
        Ok(SavedLayers { state: self.take(LayerKind::State)?, memory: self.framed(kind)? })
    }

    fn check_end(&self) -> Result<(), OciError> {
        if self.next == self.layers.len() { Ok(()) } else { Err(self.unexpected(None)) }
    }
}

/// The configuration of a packed VM, by which a host decides whether it can restore the VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmConfig {
    version: u32,
    /// The VMM that has saved the VM.
    pub vmm: VmmVersion,
    /// The CPU of the machine on which the VM was packed.
    pub cpu: PackedCpu,
    /// The memory of the VM.
    pub memory: PackedSize,
    /// The moment of each state: a disk that was written later is not of it. Moments may be missing.
    #[serde(default)]
    pub(crate) saved_at: Vec<Moment>,
    chunk_bytes: u64,
}

/// A time since 1970, of a file: seconds and nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "(u64, u32)", try_from = "(u64, u32)")]
pub(crate) struct Moment(Duration);

/// The error of numbers that are no time of a file.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("a moment has at most 2^34 seconds, and fewer than 10^9 nanoseconds")]
pub(crate) struct NoMoment;

impl Moment {
    pub(crate) fn of(time: SystemTime) -> Option<Self> {
        time.duration_since(SystemTime::UNIX_EPOCH).ok().map(Self)
    }

    pub(crate) fn time(self) -> SystemTime {
        SystemTime::UNIX_EPOCH + self.0
    }
}

impl From<Moment> for (u64, u32) {
    fn from(Moment(time): Moment) -> Self {
        (time.as_secs(), time.subsec_nanos())
    }
}

impl TryFrom<(u64, u32)> for Moment {
    type Error = NoMoment;

    fn try_from((seconds, nanoseconds): (u64, u32)) -> Result<Self, NoMoment> {
        // ext4 has no later times.
        match seconds < 1 << 34 && nanoseconds < 1_000_000_000 {
            true => Ok(Self(Duration::new(seconds, nanoseconds))),
            false => Err(NoMoment),
        }
    }
}

/// A VMM, and the version of the snapshots that it writes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmmVersion {
    /// Such as `firecracker`.
    pub name: String,
    /// The version of the format of its snapshots; `None` if the state does not begin with one that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot_version: Option<String>,
}

/// A CPU model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedCpu {
    /// `x86_64` or `aarch64`, by the names that Rust uses.
    pub architecture: String,
    /// `intel`, `amd` or `other`.
    pub vendor: String,
    /// The family; 0 if it is unknown.
    pub family: u32,
    /// The model; 0 if it is unknown.
    pub model: u32,
}

impl PackedCpu {
    /// The CPU of this machine.
    #[must_use]
    pub fn of_this_machine() -> Self {
        let CpuModel { vendor, family, model } = cpu_model();
        let vendor = match vendor {
            Vendor::Intel => "intel",
            Vendor::Amd => "amd",
            _ => "other",
        };
        let architecture = std::env::consts::ARCH.to_owned();
        Self { architecture, vendor: vendor.to_owned(), family, model }
    }
}

impl std::fmt::Display for PackedCpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { architecture, vendor, family, model } = self;
        write!(f, "{architecture}, {vendor}, family {family}, model {model}")
    }
}

/// Memory of a VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PackedSize {
    /// All of it.
    pub bytes: u64,
    /// Its regions by offset in the memory file; none if a VM of this size may have several layouts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub regions: Vec<u64>,
}

impl VmConfig {
    /// The configuration of a VM with this state and memory.
    pub(crate) fn new(state: &[u8], bytes: u64, saved_at: Vec<Moment>) -> Self {
        let snapshot_version = state_file::version(state);
        let mut layouts = regions::sizes(bytes);
        let regions = if layouts.len() == 1 { layouts.remove(0) } else { Vec::new() };
        Self {
            version: FORMAT_VERSION,
            vmm: VmmVersion { name: "firecracker".to_owned(), snapshot_version },
            cpu: PackedCpu::of_this_machine(),
            memory: PackedSize { bytes, regions },
            saved_at,
            chunk_bytes: CHUNK,
        }
    }

    pub(crate) fn of_bytes(bytes: &[u8]) -> Result<Self, OciError> {
        // Later versions may have other fields.
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        match parse("configuration", bytes)? {
            Version { version: FORMAT_VERSION } => {}
            Version { version: found } => return Err(OciError::Newer { found }),
        }
        let config: Self = parse("configuration", bytes)?;
        let (bytes, regions) = (config.memory.bytes, &config.memory.regions);
        let sum = regions.iter().try_fold(0_u64, |sum, &region| sum.checked_add(region));
        let fits = regions.is_empty() || sum == Some(bytes);
        match (config.chunk_bytes, bytes) {
            (CHUNK, 1..) if bytes <= MOST_FRAMES * CHUNK && fits => Ok(config),
            _ => Err(OciError::Memory { bytes, chunk: config.chunk_bytes, regions: sum }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layer(kind: LayerKind) -> Descriptor {
        Descriptor::new(kind.media_type(), Digest::of(b""), 7)
    }

    fn layers(kinds: &[LayerKind]) -> Result<Layers, OciError> {
        let config = Descriptor::new(CONFIG, Digest::of(b""), 7);
        let manifest = Manifest::new(config, kinds.iter().copied().map(layer).collect());
        Manifest::of_bytes(&serde_json::to_vec(&manifest).unwrap()).unwrap().into_layers()
    }

    #[test]
    fn layers_have_one_order() {
        use LayerKind::{Delta, Index, Memory, State, WorkingSet};
        let base = [State, Index, Memory];
        assert_eq!(layers(&base).unwrap().saved.len(), 1);
        let two = layers(&[&base[..], &[State, Index, Delta, Index, WorkingSet]].concat()).unwrap();
        assert!(two.saved.len() == 2 && two.working_set.is_some());
        for (kinds, number) in [
            (&[][..], 0),
            (&[Index, Memory], 0),
            (&[State, Memory], 1),
            (&[State, Index], 2),
            (&[State, Index, Delta], 2),
            (&[State, Index, Memory, Memory], 3),
            (&[State, Index, Memory, State, Index, Memory], 5),
            (&[State, Index, Memory, Index], 4),
            (&[State, Index, Memory, Index, Delta], 4),
            (&[State, Index, Memory, Index, WorkingSet, State, Index, Delta], 5),
        ] {
            match layers(kinds) {
                Err(OciError::Layer { number: found, .. }) => assert_eq!(found, number),
                other => panic!("{kinds:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn image_is_the_only_one_or_has_the_tag() {
        let image = |tag| ImageIndex::of_one(Descriptor::new(MANIFEST, Digest::of(b""), 7), tag);
        let mut index = image(Some("a"));
        assert!(index.image(None).is_ok() && index.image(Some("a")).is_ok());
        assert!(matches!(index.image(Some("b")), Err(OciError::Tag { images: 1, .. })));
        index.manifests.extend(image(Some("b")).manifests);
        assert!(index.image(Some("b")).is_ok());
        assert!(matches!(index.image(None), Err(OciError::Tag { images: 2, .. })));
        index.manifests[0].media_type = INDEX.to_owned();
        assert!(matches!(index.image(Some("a")), Err(OciError::NoVm { .. })));
    }

    #[test]
    fn configuration_survives_its_bytes_and_other_versions_and_sizes_are_refused() {
        let moment = Moment::of(SystemTime::now()).unwrap();
        let config = VmConfig::new(b"state", 1 << 30, vec![moment]);
        assert_eq!(config.memory.regions, [1 << 30]);
        let bytes = serde_json::to_vec(&config).unwrap();
        assert_eq!(VmConfig::of_bytes(&bytes).unwrap(), config);
        let refused = |change: &dyn Fn(&mut VmConfig)| {
            let mut other = config.clone();
            change(&mut other);
            VmConfig::of_bytes(&serde_json::to_vec(&other).unwrap()).unwrap_err()
        };
        assert!(matches!(refused(&|other| other.version = 2), OciError::Newer { found: 2 }));
        let changes: [&dyn Fn(&mut VmConfig); 5] = [
            &|other| other.memory.bytes = 0,
            &|other| other.memory = PackedSize { bytes: 1 << 62, regions: Vec::new() },
            &|other| other.memory.regions = vec![1 << 29],
            &|other| other.memory.regions = vec![u64::MAX, (1 << 30) + 1],
            &|other| other.chunk_bytes = 4096,
        ];
        for change in changes {
            assert!(matches!(refused(change), OciError::Memory { .. }));
        }
        assert!(matches!(VmConfig::of_bytes(b"{}"), Err(OciError::Document { .. })));
        for (seconds, nanoseconds) in [(1 << 34, 0), (u64::MAX, 0), (0, 1_000_000_000)] {
            assert!(Moment::try_from((seconds, nanoseconds)).is_err());
        }
    }
}
