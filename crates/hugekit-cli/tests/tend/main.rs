//! `hugekit tend` on programs of the test's own.
#![allow(unsafe_code)]

mod fuse;
mod hostile;
mod log;
mod page;
mod passes;
mod program;
mod running;
