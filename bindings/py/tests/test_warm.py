"""Files whose page cache is put on huge pages. Whether there are huge pages is a matter of the machine and file system."""

import mmap
import os

import hugekit
import pytest

UNIT = 2 << 20
UNITS = 4


@pytest.fixture
def file(tmp_path):
    """A file on small pages of the cache."""
    path = tmp_path / "weights.bin"
    with open(path, "wb", buffering=0) as out:
        for number in range(UNITS * UNIT // 4096):
            out.write(bytes([number % 251 + 1]) * 4096)
        os.fsync(out.fileno())
    return path


def test_file_is_counted_and_made_huge_and_keeps_its_bytes(file):
    before = file.read_bytes()
    found = hugekit.warm(file, check=True)
    assert (found["units"], found["huge"], found["holes"], found["bytes"]) == (UNITS, 0, 0, UNITS * UNIT)
    assert found["left"] == {"units": UNITS, "why": {"reason": "not_made", "on_small_pages": UNITS, "not_in_memory": 0}}
    told = []
    report = hugekit.warm(file, progress=lambda done, total: told.append((done, total)))
    assert told == [(UNITS * UNIT, UNITS * UNIT)] and report["seconds"] > 0
    assert file.read_bytes() == before
    if report["left"] is None:
        assert (report["huge"], report["made_huge"]) == (UNITS, UNITS)
        assert hugekit.warm(file, check=True)["huge"] == UNITS
    else:
        assert report["left"]["why"]["reason"] in ("fragmented", "file_system")


def test_file_that_this_process_maps_on_small_pages_is_busy(file):
    with open(file, "rb") as opened, mmap.mmap(opened.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[::4096]
        left = hugekit.warm(file)["left"]
        if left is None:
            pytest.skip("this kernel collapses mapped files")
        assert left["why"]["reason"] == "busy"


def test_holes_are_filled_only_if_asked(tmp_path):
    path = tmp_path / "sparse"
    with open(path, "wb") as sparse:
        sparse.truncate(4 * UNIT)
        sparse.write(b"x")
    report = hugekit.warm(path)
    assert (report["units"], report["holes"]) == (1, 3)
    assert hugekit.warm(path, fill_holes=True)["units"] == 4


def test_other_files_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError) as missing:
        hugekit.warm(tmp_path / "missing")
    assert missing.value.filename.endswith("missing")
    with pytest.raises(ValueError, match="character device"):
        hugekit.warm("/dev/zero")
    short = tmp_path / "short"
    short.write_bytes(b"short")
    with pytest.raises(ValueError, match="short: the file has 5 bytes"):
        hugekit.warm(short)


def test_exception_of_a_callback_ends_the_call(file):
    def stop(done, total):
        raise LookupError("stop")

    with pytest.raises(LookupError, match="stop"):
        hugekit.warm(file, progress=stop)
