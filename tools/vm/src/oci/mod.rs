#![doc = include_str!("README.md")]

mod digest;
mod document;
mod error;
pub(crate) mod framed;
pub(crate) mod frames;
mod layout;
pub(crate) mod memory;
mod output;
mod pack;
mod packed_vm;
mod packing;
mod unpack;

pub use digest::{Digest, NoDigest};
pub use document::{FORMAT_VERSION, PackedCpu, PackedSize, VmConfig, VmmVersion};
pub use error::OciError;
pub use frames::FrameError;
pub use pack::{PackOptions, PackReport, pack};
pub use packed_vm::PackedVm;
pub use unpack::{UnpackOptions, UnpackReport, unpack};
