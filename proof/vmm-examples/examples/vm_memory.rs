//! A region as the guest memory of a VMM that is made of the rust-vmm crates.
//!
//! ```sh
//! cargo run --release -p hugekit-vmm-examples --example vm_memory -- [SOCKET BYTES]
//! ```
//!
//! `vm-memory` describes a guest's memory to vCPUs, devices and loaders as a `GuestMemoryMmap`. It maps that memory
//! itself, or takes a mapping that exists: a [`SharedRegion`](hugekit::SharedRegion) is one, cleared or leased before the
//! VMM asked. With arguments, it is leased from the `hugekit broker` that listens there.
#![allow(unsafe_code)]

use std::error::Error;

use hugekit::{Pool, SharedRegion};
use vm_memory::mmap::{GuestRegionMmap, MmapRegion};
use vm_memory::{Address, Bytes, GuestAddress, GuestMemory, GuestMemoryMmap};

const MIB: usize = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let (pool, bytes) = match &arguments[..] {
        [socket, bytes] => {
            let bytes = bytes.parse()?;
            (Pool::builder(bytes).broker(socket).build()?, bytes)
        }
        _ => (Pool::builder(64 * MIB).build()?, 64 * MIB),
    };
    let region = pool.region(bytes)?.share();
    let memory = guest_memory(&region)?;
    let (kernel, last) = (GuestAddress(MIB as u64), memory.last_addr());
    memory.write_slice(b"vmlinux", kernel)?;
    let mut read = [0; 7];
    memory.read_slice(&mut read, kernel)?;
    assert_eq!((&read, memory.read_obj::<u8>(last)?), (b"vmlinux", 0));
    // Both see the same bytes: the region is what forks, snapshots and snapshots' readers go by.
    let mut seen = [0; 7];
    region.read_at(MIB, &mut seen)?;
    assert_eq!(&seen, b"vmlinux");
    println!(
        "{} MiB of guest memory up to {:#x} on {}",
        bytes / MIB,
        last.raw_value(),
        pool.backing()
    );
    Ok(())
}

/// The region as all of a guest's memory, from address 0 on. The region has to outlive it.
fn guest_memory(region: &SharedRegion) -> Result<GuestMemoryMmap, Box<dyn Error>> {
    let (read_write, shared) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    let address = region.as_ptr().cast();
    // SAFETY: the region's own mapping, which outlives the guest's memory in this program, and is accessed by the
    // volatile accesses of vm-memory and those of the region, which expect other writers. It is not unmapped by
    // vm-memory, which knows that it did not map it.
    let mapping = unsafe { MmapRegion::build_raw(address, region.len(), read_write, shared) }?;
    let guest =
        GuestRegionMmap::new(mapping, GuestAddress(0)).ok_or("addresses beyond the last")?;
    Ok(GuestMemoryMmap::from_regions(vec![guest])?)
}
