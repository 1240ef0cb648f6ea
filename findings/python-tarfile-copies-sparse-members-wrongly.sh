#!/bin/sh
# tarfile of Python 3.10 to 3.13: a sparse member that GNU tar has written is read right. Copying it into another archive,
# addfile(member, source.extractfile(member)), writes all bytes and keeps marks of a sparse member, without an error.
# tarfile then reads no bytes (from GNU format), other bytes (PAX with sparse 0.1 to PAX), or cannot open the copy (PAX with
# sparse 1.0, the default of `tar --sparse --format=posix`, to PAX, the default of tarfile). Only PAX to GNU is right. Go's
# archive/tar (1.26.8) copies PAX members right, and copies GNU members into an archive that it cannot read itself. Memory
# files of VMs in backups and in layers of images are such members.
#
# Seen with Python 3.10.13, 3.11.7, 3.12.1, 3.13.0 and GNU tar 1.34; a file with a hole, member read, copy to GNU
# format, to PAX:
#   gnu: right, empty, empty; posix 0.1: right, right, wrong; posix 1.0: right, right, ValueError
#
# Needs python3 and GNU tar. Exits with 1 if the behaviour differs.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
truncate -s 1M memory
printf bytes | dd of=memory bs=1 seek=524288 conv=notrunc status=none
tar --sparse --format=gnu -cf gnu.tar memory
tar --sparse --format=posix --sparse-version=0.1 -cf "posix 0.1.tar" memory
tar --sparse --format=posix --sparse-version=1.0 -cf "posix 1.0.tar" memory
cat > members.py <<'PYTHON'
import platform
import tarfile

with open("memory", "rb") as file:
    BYTES = file.read()


def read(path):
    try:
        with tarfile.open(path) as archive:
            found = archive.extractfile("memory").read()
    except (tarfile.TarError, ValueError) as error:
        return type(error).__name__
    return "right" if found == BYTES else "wrong" if found else "empty"


def copied(path, form):
    with tarfile.open(path) as source, tarfile.open("copy.tar", "w", format=form) as copy:
        for member in source:
            copy.addfile(member, source.extractfile(member))
    return read("copy.tar")


said = []
for name in ("gnu", "posix 0.1", "posix 1.0"):
    path = f"{name}.tar"
    answers = (read(path), copied(path, tarfile.GNU_FORMAT), copied(path, tarfile.PAX_FORMAT))
    said.append(f"{name}: {', '.join(answers)}")
print(f"Python {platform.python_version()}: {'; '.join(said)}")
assert said == ["gnu: right, empty, empty", "posix 0.1: right, right, wrong", "posix 1.0: right, right, ValueError"]
PYTHON
python3 members.py
