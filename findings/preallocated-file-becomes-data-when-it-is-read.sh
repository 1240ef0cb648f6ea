#!/bin/sh
# Linux, ext4: lseek(SEEK_DATA) calls preallocated, unwritten blocks a hole until they are read. Then the pages that are
# in the cache are data, although they were never written and are clean, and they are a hole again when the cache has
# dropped them. So an unchanged file has other holes from one minute to the next, and `tar --sparse` makes an archive of
# 10 KiB or of 16 MiB of it. `qemu-img map` (7.2) calls data what its own look at the format has read ahead, the first
# 80 KiB. Holes that were never allocated stay holes when they are read.
#
# Seen with Python 3.11.7, GNU tar 1.34 and Linux 6.18.44, ext4, a file of 32 MiB of which fallocate(2) has allocated
# 16, or none; KiB of an archive of `tar --sparse`:
#   allocated: new 10, read 16390, dropped 10; not allocated: new 10, read 10, dropped 10
#
# Needs python3, GNU tar, and ext4 below /var/tmp. Exits with 1 if the behaviour differs.
set -eu
folder=$(mktemp -d /var/tmp/finding.XXXXXX)
trap 'rm -rf "$folder"' EXIT
if [ "$(stat --file-system --format %T "$folder")" != ext2/ext3 ]; then
    echo "no ext4: not tried"
    exit 0
fi
cd "$folder"
python3 - <<'PYTHON'
import os
import platform
import subprocess

LEN = 32 << 20


def archive():
    command = ["tar", "--sparse", "--format=gnu", "-cf", "-", "data"]
    return len(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout) >> 10


def sizes(allocated):
    with open("data", "wb+") as file:
        if allocated:
            os.posix_fallocate(file.fileno(), 0, allocated)
        os.ftruncate(file.fileno(), LEN)
        os.fsync(file.fileno())
        answer = {"new": archive()}
        assert not any(file.read())
        answer["read"] = archive()
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        answer["dropped"] = archive()
    return answer


allocated, free = sizes(LEN // 2), sizes(0)
print(f"Linux {platform.release()}, KiB: allocated: {allocated}; not allocated: {free}")
assert allocated["read"] > 16000 and max(allocated["new"], allocated["dropped"]) < 100, allocated
assert max(free.values()) < 100, free
PYTHON
