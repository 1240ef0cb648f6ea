#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

pub mod events;
pub mod file;
pub mod outcome;
pub mod text;
