#!/bin/sh
# linux-loader 0.14.0 (crates.io), Elf::load: kernel_end, documented as the end of the kernel in guest memory behind
# which an initrd or a device tree may be loaded, does not count a loadable segment that has no bytes in the file. Such
# a segment is the .bss of a kernel whose linker gives it a segment of its own. A VMM that loads behind kernel_end loads
# into it. Nor does the loader clear a .bss, whether or not it is part of a segment with bytes: guest memory that was
# used before, as on a reboot in place, keeps its old bytes there. A .bss at the end of a segment with bytes is counted.
#
# Seen with linux-loader 0.14.0, vm-memory 0.18.0, x86-64; 16 bytes at 0x100000, 8 KiB in memory; a .bss of 1 MiB at
# 0x200000:
#   one segment: end 0x102000; with .bss: end 0x102000; a used byte behind the 16: kept
#
# Needs cargo, x86-64. Exits with 1 if the behaviour differs.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkdir "$folder/src"
cat > "$folder/Cargo.toml" <<'TOML'
[package]
name = "loads"
version = "0.0.0"
edition = "2021"

[dependencies]
linux-loader = { version = "=0.14.0", default-features = false, features = ["elf"] }
vm-memory = { version = "=0.18.0", features = ["backend-mmap"] }
TOML
cat > "$folder/src/main.rs" <<'RUST'
use linux_loader::loader::{elf::Elf, KernelLoader};
use std::io::Cursor;
use vm_memory::{Bytes, GuestAddress, GuestMemoryMmap};

const HEADER: usize = 64;
const SEGMENT: usize = 56;
const CODE: u64 = 0x1000;

/// A loadable segment: where it lies in the file and in memory, and its size in both.
fn segment(offset: u64, address: u64, in_file: u64, in_memory: u64) -> Vec<u8> {
    let mut bytes = [1u32.to_le_bytes(), 6u32.to_le_bytes()].concat();
    for word in [offset, address, address, in_file, in_memory, 0x1000] {
        bytes.extend(word.to_le_bytes());
    }
    bytes
}

/// An executable of x86-64 with these segments and 16 bytes of code.
fn kernel(segments: &[Vec<u8>]) -> Cursor<Vec<u8>> {
    let mut bytes = vec![0x7f, b'E', b'L', b'F', 2, 1, 1];
    bytes.resize(16, 0);
    bytes.extend([2u16.to_le_bytes(), 62u16.to_le_bytes()].concat());
    bytes.extend(1u32.to_le_bytes());
    for word in [0x10_0000, HEADER as u64, 0] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(0u32.to_le_bytes());
    for half in [HEADER, SEGMENT, segments.len(), 0, 0, 0] {
        bytes.extend((half as u16).to_le_bytes());
    }
    bytes.extend(segments.concat());
    bytes.resize(CODE as usize, 0);
    bytes.extend([0x90; 16]);
    Cursor::new(bytes)
}

fn main() {
    let code = segment(CODE, 0x10_0000, 16, 0x2000);
    let bss = segment(CODE + 16, 0x20_0000, 0, 0x10_0000);
    let memory = GuestMemoryMmap::<()>::from_ranges(&[(GuestAddress(0), 16 << 20)]).unwrap();
    let used = GuestAddress(0x10_0010);
    memory.write_obj(7u8, used).unwrap();
    let end = |segments: &[Vec<u8>]| Elf::load(&memory, None, &mut kernel(segments), None).unwrap().kernel_end;
    let (one, both) = (end(&[code.clone()]), end(&[code, bss]));
    let kept = if memory.read_obj::<u8>(used).unwrap() == 7 { "kept" } else { "cleared" };
    println!("one segment: end {one:#x}; with .bss: end {both:#x}; a used byte behind the 16: {kept}");
}
RUST
cd "$folder"
export CARGO_TARGET_DIR="$folder/target" RUSTFLAGS=
said=$(cargo run --quiet)
echo "linux-loader 0.14.0: $said"
[ "$said" = "one segment: end 0x102000; with .bss: end 0x102000; a used byte behind the 16: kept" ]
