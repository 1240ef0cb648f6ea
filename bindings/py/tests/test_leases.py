"""Memory of another process: adopted, and asked for."""

import fcntl
import os

import hugekit
import pytest

F_ADD_SEALS = 1033
F_SEAL_SHRINK, F_SEAL_GROW = 2, 4


def memory(length, seals=F_SEAL_SHRINK | F_SEAL_GROW):
    file = os.memfd_create("adopted", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    os.ftruncate(file, length)
    fcntl.fcntl(file, F_ADD_SEALS, seals)
    return file


def test_a_file_is_adopted():
    pool = hugekit.Pool(4 << 20, adopt=memory(4 << 20))
    array = pool.zeros(1 << 20, "u1")
    assert pool.capacity == 4 << 20 and not array.any()
    array[5] = 7


def test_a_file_that_does_not_fit_is_refused_and_closed():
    for file, words in (
        (memory(2 << 20), "4 MiB were asked for"),
        (memory(4 << 20, F_SEAL_GROW), "not sealed"),
        (os.open("/proc/self/exe", os.O_RDONLY), "memfd_create"),
    ):
        with pytest.raises(ValueError, match=words):
            hugekit.Pool(4 << 20, adopt=file)
        with pytest.raises(OSError):
            os.fstat(file)
    with pytest.raises(ValueError, match="no open descriptor"):
        hugekit.Pool(4 << 20, adopt=-1)


def test_no_broker_is_an_error_with_its_remedy(tmp_path):
    with pytest.raises(OSError, match="no broker listens") as refused:
        hugekit.Pool(4 << 20, broker=tmp_path / "broker.sock")
    assert "hugekit broker" in str(getattr(refused.value, "__notes__", "")) + str(refused.value)
    with pytest.raises(ValueError, match="from one of them"):
        hugekit.Pool(4 << 20, broker="x", adopt=memory(4 << 20))
