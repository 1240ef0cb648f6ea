//! The address that was touched arrives where the order of clearing and copying is chosen: not the first one of its
//! granule. Each kind of touch, on each backing, served in place and by threads. Run by `cargo xtask faults`, which
//! compiles the library with its test hooks (`--cfg hugekit_faults`).

#[cfg(hugekit_faults)]
mod refusals;
#[cfg(hugekit_faults)]
mod touch;
#[cfg(hugekit_faults)]
mod trials;

#[cfg(hugekit_faults)]
use trials::main;

#[cfg(not(hugekit_faults))]
fn main() {
    println!("the library is compiled without its test hooks: run `cargo xtask faults`");
}
