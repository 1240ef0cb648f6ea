#![doc = include_str!("../README.md")]
#![warn(missing_docs, clippy::incompatible_msrv)]
#![cfg_attr(not(test), deny(clippy::disallowed_methods))]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod builder;
mod canvas;
mod clones;
#[cfg(feature = "delta")]
mod deltas;
mod error;
mod image;
mod mapping;
mod meter;
mod range;
mod raw;

pub use builder::ImageBuilder;
pub use clones::{FileIdentity, ImageClone, clones};
pub use error::ImageError;
pub use hugekit_lease::protocol::ImageRange;
pub use image::Image;
pub use mapping::PrivateMapping;
pub use range::Misfit;
pub use raw::open;
