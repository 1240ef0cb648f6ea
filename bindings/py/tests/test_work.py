"""Clearing and copying: bytes, refusals, progress."""

import array
import mmap

import hugekit
import numpy as np
import pytest
from tqdm import tqdm


@pytest.mark.parametrize("size", [0, 1, 8, 4095, 100_000, 5 << 20])
@pytest.mark.parametrize("threads", [None, 1, 2])
def test_clear_and_copy_are_numpys(size, threads):
    source = np.arange(size, dtype="u4")
    target = np.full(size + 2, 7, "u4")
    hugekit.copy(target[1:-1], source, threads=threads)
    assert (target[1:-1] == source).all() and target[0] == target[-1] == 7
    hugekit.clear(target[1:-1], threads=threads)
    assert not target[1:-1].any() and target[0] == target[-1] == 7


@pytest.mark.parametrize(
    "memory",
    [
        bytearray(b"x" * 5000),
        array.array("d", [1.5] * 1000),
        np.ones((3, 4), order="F"),
        np.ones(10, [("a", "i4"), ("OOO", "f8")]),
        np.full(10, "2020-01-01", "M8[D]"),
        np.full((3, 4), 5, "m8[s]").T,
        np.ones(()),
        hugekit.zeros(100),
    ],
    ids=lambda memory: type(memory).__name__,
)
def test_anything_with_contiguous_bytes(memory):
    same = np.array(memory, copy=True, order="K") if isinstance(memory, np.ndarray) else bytearray(bytes(memory))
    copy = np.empty_like(memory) if isinstance(memory, np.ndarray) else bytearray(len(same))
    hugekit.copy(copy, memory)
    assert bytes(memoryview_of(copy)) == bytes(memoryview_of(same))
    hugekit.clear(memory)
    assert not any(memoryview_of(memory))


def memoryview_of(memory):
    if isinstance(memory, np.ndarray):
        return memory.ravel(order="K").view("u1").tobytes()
    return bytes(memory)


def test_mapped_memory():
    with mmap.mmap(-1, 1 << 20) as mapped:
        mapped[:] = b"x" * (1 << 20)
        hugekit.clear(mapped, threads=2)
        assert mapped[:] == bytes(1 << 20)


def test_what_is_no_memory_to_write_is_refused():
    base = np.ones((10, 10))
    fixed = np.ones(5)
    fixed.flags.writeable = False
    for wrong, error in [
        (base[:, ::2], (ValueError, BufferError)),
        (base[:, :5], (ValueError, BufferError)),
        (fixed, (ValueError, BufferError)),
        (b"fixed", (BufferError, ValueError)),
        (np.array([None, 1]), TypeError),
        (np.zeros(3, [("a", "i4"), ("b", "O")]), TypeError),
        (np.array(["2020"] * 4, "M8[Y]")[::2], ValueError),
        (5, TypeError),
        (None, TypeError),
    ]:
        with pytest.raises(error):
            hugekit.clear(wrong)
    assert (base == 1).all() and (fixed == 1).all()
    with pytest.raises(ValueError, match="thread"):
        hugekit.clear(base, threads=0)
    with pytest.raises(ValueError, match="progress"):
        hugekit.clear(base, progress=5)


def test_copies_of_what_differs_are_refused():
    a = np.ones((4, 6))
    for other in (np.ones((6, 4)), np.ones((4, 6), order="F"), np.ones((4, 6), "i8"), np.ones(24)):
        with pytest.raises(ValueError, match="shape|dtype|order"):
            hugekit.copy(other, a)
    with pytest.raises(ValueError, match="lengths"):
        hugekit.copy(bytearray(5), b"123456")
    memory = np.arange(1000, dtype="u1")
    with pytest.raises(ValueError, match="overlap"):
        hugekit.copy(memory[10:], memory[:-10])
    with pytest.raises(TypeError):
        hugekit.copy(np.array([None]), np.array([None]))
    assert (memory == np.arange(1000, dtype="u1")).all()


@pytest.mark.parametrize("threads", [1, 2])
def test_progress_of_either_kind(threads):
    memory = np.ones(64 << 20, "u1")
    told = []
    hugekit.clear(memory, threads=threads, progress=lambda *at: told.append(at))
    assert told == sorted(told) and len(told) > 1 and told[-1] == (memory.nbytes, memory.nbytes)
    with tqdm(unit="B", file=open("/dev/null", "w")) as bar:
        hugekit.copy(np.empty_like(memory), memory, threads=threads, progress=bar)
        assert bar.n == memory.nbytes == bar.total


@pytest.mark.parametrize("threads", [1, 2])
def test_an_exception_in_a_callback_stops_and_is_raised(threads):
    memory = np.ones(64 << 20, "u1")

    def fail(done, total):
        raise KeyError("from the callback")

    with pytest.raises(KeyError, match="from the callback") as raised:
        hugekit.clear(memory, threads=threads, progress=fail)
    assert memory.any() and not memory.all()
    done = raised.value.hugekit_done
    assert sum(end - start for start, end in done) == (memory == 0).sum()
    assert all((memory[start:end] == 0).all() for start, end in done)
    with pytest.raises(KeyError) as raised:
        hugekit.copy(np.empty_like(memory), memory, threads=threads, progress=fail)
    assert len(raised.value.hugekit_done) >= 1


def test_clears_and_copies_with_learning_on_and_off_are_right():
    source = np.arange(10_000_001, dtype="u4")
    for enabled in [False, True, False, True]:
        hugekit.set_learning(enabled)
        target = np.ones_like(source)
        hugekit.copy(target, source)
        assert (target == source).all()
        hugekit.clear(target)
        assert not target.any()
