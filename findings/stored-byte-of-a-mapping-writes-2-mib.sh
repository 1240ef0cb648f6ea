#!/bin/sh
# Linux, page cache of ext4 (from 6.16 on): one byte that a program stores through a shared mapping makes all blocks of
# its folio dirty, and a folio may have 2 MiB. So the byte writes 2 MiB to the disk, and in a sparse file it allocates 2
# MiB. One byte by pwrite(2) into the same folio writes one block. Databases on a mapped file, numpy.memmap(mode="r+")
# and guests on a mapped file are such writers. The size of the folios, and thereby the cost of a store, depends on the
# program that wrote the file (in large or small pieces), or on MADV_HUGEPAGE of the mapping.
#
# Seen with Python 3.11.7 and Linux 6.18.44, ext4, sparse file of 32 MiB, one byte in each 2 MiB; KiB that are
# allocated:
#   huge folios, stored: 32768; huge folios, pwrite: 68
# (A file with data on a loop device, 64 MiB, 32 bytes: 65536 KiB were written for stores, 128 KiB for pwrite. XFS:
# 61440, 128.)
#
# Needs python3, and ext4 below /var/tmp of Linux 6.16. Exits with 1 if the behaviour differs.
set -eu
folder=$(mktemp -d /var/tmp/finding.XXXXXX)
trap 'rm -rf "$folder"' EXIT
if [ "$(stat --file-system --format %T "$folder")" != ext2/ext3 ] ||
    [ "$(printf '%s\n6.16\n' "$(uname -r)" | sort -V | head -n 1)" != 6.16 ]; then
    echo "no ext4, or Linux $(uname -r) is older than 6.16: not tried"
    exit 0
fi
cd "$folder"
python3 - <<'PYTHON'
import mmap
import os
import platform

MIB = 1 << 20
HUGE, LEN = 2 * MIB, 32 * MIB
POPULATE_READ = 22  # MADV_POPULATE_READ of linux/mman.h


def allocated(change):
    file = os.open("data", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    os.ftruncate(file, LEN)
    with mmap.mmap(file, LEN) as memory:
        memory.madvise(mmap.MADV_HUGEPAGE)
        memory.madvise(POPULATE_READ)
        assert os.fstat(file).st_blocks == 0
        for at in range(12345, LEN, HUGE):
            change(file, memory, at)
        os.fsync(file)
    try:
        return os.fstat(file).st_blocks // 2
    finally:
        os.close(file)


def store(_file, memory, at):
    memory[at] = 1


def write(file, _memory, at):
    os.pwrite(file, b"\1", at)


stored, written = allocated(store), allocated(write)
print(f"Linux {platform.release()}: huge folios, stored: {stored}; huge folios, pwrite: {written}")
# Few free blocks of 2 MiB make some folios smaller: half is enough to tell them apart.
assert stored >= 16384 and written <= 256, (stored, written)
PYTHON
