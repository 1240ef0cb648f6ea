#!/bin/sh
# rustix 1.1.6 (crates.io), rustix::mm::mremap_fixed: built on libc, it calls mremap(2) with MAP_FIXED of mmap(2) in place
# of MREMAP_FIXED. Linux knows no such flag there and answers EINVAL, so no call ever moves memory. Built on the kernel's
# own calls, the default on x86-64, the same program moves it. The backend on libc is chosen by the crate's feature
# `use-libc`, by `--cfg=rustix_use_libc`, under Miri, and on architectures without a backend of their own: a program
# that is tested with one backend fails with the other.
#
# Seen with rustix 1.1.6, libc 0.2.191, Linux 6.18.44, x86-64:
#   kernel's calls: moved; libc: EINVAL
#
# Needs cargo. Exits with 1 if the behaviour differs.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/src"
cat > "$folder/Cargo.toml" <<'TOML'
[package]
name = "moves"
version = "0.0.0"
edition = "2021"

[features]
libc = ["rustix/use-libc"]

[dependencies]
rustix = { version = "=1.1.6", features = ["mm", "param"] }
libc = "=0.2.191"
TOML
cat > "$folder/src/main.rs" <<'RUST'
use rustix::mm::{mmap_anonymous, mremap_fixed, MapFlags, MremapFlags, ProtFlags};

fn main() {
    let page = rustix::param::page_size();
    let map = |len| unsafe {
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        mmap_anonymous(std::ptr::null_mut(), len, flags, MapFlags::PRIVATE).unwrap()
    };
    let (from, to) = (map(page), map(page));
    unsafe { from.cast::<u8>().write(7) };
    // Both are mappings of this program, to which nothing refers.
    match unsafe { mremap_fixed(from, page, page, MremapFlags::MAYMOVE, to) } {
        Ok(_) if unsafe { to.cast::<u8>().read() } == 7 => println!("moved"),
        Ok(_) => println!("other bytes"),
        Err(rustix::io::Errno::INVAL) => println!("EINVAL"),
        Err(error) => println!("{error}"),
    }
}
RUST
cd "$folder"
export CARGO_TARGET_DIR="$folder/target" RUSTFLAGS=
of_kernel=$(cargo run --quiet)
of_libc=$(cargo run --quiet --features libc)
said="kernel's calls: $of_kernel; libc: $of_libc"
echo "rustix 1.1.6: $said"
[ "$said" = "kernel's calls: moved; libc: EINVAL" ]
