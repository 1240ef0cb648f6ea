//! A guest that has guests: what its archive needs to boot a Linux kernel in Firecracker, by an emulated CPU's
//! virtualization.

use std::env;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};

use super::boot::{archive, write};

/// The module of the guest's kernel that makes `/dev/kvm`.
pub(super) const MODULE: &str = "kvm-amd";

/// The part of the guest's script that names what the tests look for.
pub(super) const SCRIPT: &str = "export HUGEKIT_FIRECRACKER=/firecracker HUGEKIT_LINUX=/linux";

/// Adds Firecracker, and the guest's kernel with a first process for guests of the guest.
pub(super) fn add(stage: &Path, kernel: &Path, busybox: &Path) -> Result<()> {
    let firecracker = env::var_os("HUGEKIT_FIRECRACKER").filter(|path| !path.is_empty());
    let firecracker = firecracker.context("HUGEKIT_FIRECRACKER names no Firecracker")?;
    write(stage, "/firecracker", &fs::read(firecracker)?)?;
    write(stage, "/linux/vmlinux", &vmlinux(&fs::read(kernel)?)?)?;
    let inner = stage.with_extension("inner");
    write(&inner, "/init", include_bytes!("nested_init.sh"))?;
    write(&inner, "/bin/busybox", &fs::read(busybox)?)?;
    archive(busybox, &inner, &stage.join("linux/initrd"))?;
    Ok(fs::remove_dir_all(inner)?)
}

/// The kernel as an ELF file, which Firecracker boots, of a bzImage: its boot protocol names the part that is compressed.
fn vmlinux(image: &[u8]) -> Result<Vec<u8>> {
    const SECTOR: usize = 512;
    /// The frame of LZ4's first releases, which the kernel's build uses.
    const LZ4: [u8; 4] = [0x02, 0x21, 0x4c, 0x18];
    /// Bytes of each block; the last one may have fewer.
    const BLOCK: usize = 8 << 20;
    ensure!(image.get(0x202..0x206) == Some(b"HdrS"), "the kernel is no bzImage");
    let sectors = usize::from(image[0x1f1]);
    let start = (sectors + 1) * SECTOR + word(image, 0x248)?;
    // The kernel's build appends the length of the whole.
    let end = (start + word(image, 0x24c)?).saturating_sub(4);
    let mut left = image.get(start..end).context("the kernel is cut off")?;
    if left.get(..4) != Some(&LZ4) {
        bail!("the kernel is not compressed by LZ4");
    }
    left = &left[4..];
    let mut kernel = Vec::new();
    while left.len() > 4 {
        let len = word(left, 0)?;
        let block = left.get(4..4 + len).context("a block of the kernel is cut off")?;
        kernel.extend(lz4_flex::block::decompress(block, BLOCK)?);
        left = &left[4 + len..];
    }
    ensure!(kernel.starts_with(b"\x7fELF"), "the kernel is no ELF file");
    Ok(kernel)
}

fn word(bytes: &[u8], at: usize) -> Result<usize> {
    let bytes = bytes.get(at..at + 4).context("the kernel is cut off")?;
    Ok(u32::from_le_bytes(bytes.try_into()?) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_is_found_in_its_image() {
        let elf = [b"\x7fELF".as_slice(), &[7; 3000]].concat();
        let block = lz4_flex::block::compress(&elf);
        let mut payload = vec![0x02, 0x21, 0x4c, 0x18];
        payload.extend((block.len() as u32).to_le_bytes());
        payload.extend(block);
        payload.extend((elf.len() as u32).to_le_bytes());
        let mut image = vec![0; 2 * 512 + 16];
        image[0x1f1] = 1;
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x248] = 16;
        image[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        image.extend(&payload);
        assert_eq!(vmlinux(&image).unwrap(), elf);
        assert!(vmlinux(&image[..image.len() - 8]).is_err());
        image[0x202] = 0;
        assert!(vmlinux(&image).is_err());
    }
}
