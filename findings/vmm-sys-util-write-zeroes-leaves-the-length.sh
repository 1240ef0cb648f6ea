#!/bin/sh
# vmm-sys-util 0.15.0 (crates.io), write_zeroes and write_zeroes_at of a File: whether zeroes behind the end enlarge the
# file depends on the file system. On ext4 the call uses fallocate(2) with FALLOC_FL_KEEP_SIZE, answers Ok with all
# bytes, moves the position of the file, and leaves its length as it is. tmpfs has no FALLOC_FL_ZERO_RANGE, so there the
# call writes, and the file grows. The documentation says that zeroes are written to the stream. A disk image, a
# snapshot or a padded file that ends in zeroes is shorter on disk than in the test on tmpfs.
#
# Seen with vmm-sys-util 0.15.0, Linux 6.18.44; a file of 10 bytes, write_all_zeroes(100) at its end; position, length:
#   ext4: 110, 10; tmpfs: 110, 110
#
# Needs cargo, ext4 below /var/tmp and tmpfs below /dev/shm. Exits with 1 if the behaviour differs.
set -eu
if [ "$(stat --file-system --format %T /var/tmp)" != ext2/ext3 ] ||
    [ "$(stat --file-system --format %T /dev/shm)" != tmpfs ]; then
    echo "no ext4 below /var/tmp, or no tmpfs below /dev/shm: not tried"
    exit 0
fi
folder=$(mktemp -d /var/tmp/finding.XXXXXX)
memory=$(mktemp -d /dev/shm/finding.XXXXXX)
trap 'rm -rf "$folder" "$memory"' EXIT
mkdir "$folder/src"
cat > "$folder/Cargo.toml" <<'TOML'
[package]
name = "zeroes"
version = "0.0.0"
edition = "2021"

[dependencies]
vmm-sys-util = "=0.15.0"
TOML
cat > "$folder/src/main.rs" <<'RUST'
use std::fs::File;
use std::io::{Seek, Write};
use vmm_sys_util::write_zeroes::WriteZeroes;

fn main() -> std::io::Result<()> {
    let path = std::env::args().nth(1).expect("a path");
    let mut file = File::create(path)?;
    file.write_all(b"ten bytes.")?;
    file.write_all_zeroes(100)?;
    println!("{}, {}", file.stream_position()?, file.metadata()?.len());
    Ok(())
}
RUST
cd "$folder"
export CARGO_TARGET_DIR="$folder/target" RUSTFLAGS=
cargo build --quiet
said="ext4: $(target/debug/zeroes "$folder/file"); tmpfs: $(target/debug/zeroes "$memory/file")"
echo "vmm-sys-util 0.15.0: $said"
[ "$said" = "ext4: 110, 10; tmpfs: 110, 110" ]
