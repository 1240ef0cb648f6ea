"""Snapshots of arrays: one moment, whatever is written afterwards."""

import gc
import gzip
import io
import os
import threading

import hugekit
import numpy as np
import pytest
from tqdm import tqdm

pytestmark = pytest.mark.usefixtures("serves")


def some(shape, dtype="f8", order="C"):
    count = int(np.prod(shape)) if shape != () else 1
    return np.asarray((np.arange(count) % 251).astype(dtype).reshape(shape, order=order), order=order)


@pytest.mark.parametrize("dtype", ["f8", "u1", "c8", "M8[s]", [("a", "i4"), ("b", "f4")]])
@pytest.mark.parametrize("shape", [(1000, 1001), (5,), (), (0, 3), (3 << 20,)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_files_are_numpys_byte_for_byte(tmp_path, dtype, shape, order):
    array = np.zeros(shape, dtype, order=order) if isinstance(dtype, list) else some(shape, dtype, order)
    before = array.copy(order="K")
    with hugekit.snapshot(array) as moment:
        hugekit.clear(array)
        moment.save_npy(tmp_path / "ours")
    np.save(tmp_path / "numpys.npy", before)
    assert (tmp_path / "ours.npy").read_bytes() == (tmp_path / "numpys.npy").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["numpys.npy", "ours.npy"]


def test_one_several_named(tmp_path, pool):
    arrays = [some((600, 700)), np.asfortranarray(some((50, 60), "i4")), pool.zeros(100_000), np.ones(3)]
    arrays[2][:] = 5
    before = [array.copy(order="K") for array in arrays]

    def change():
        for array in arrays:
            array += 1

    for given in (arrays, tuple(arrays), dict(zip("abcd", arrays))):
        for array, was in zip(arrays, before):
            array[...] = was
        with hugekit.snapshot(given) as moment:
            assert moment.nbytes == sum(array.nbytes for array in arrays) and not moment.closed
            change()
            copies = moment.to_numpy()
        copies = list(copies.values()) if isinstance(copies, dict) else copies
        assert all(np.array_equal(copy, was) for copy, was in zip(copies, before))
        assert all(copy.flags.f_contiguous == was.flags.f_contiguous for copy, was in zip(copies, before))
        for array, was in zip(arrays, before):
            array[...] = was
        with hugekit.snapshot(given) as moment:
            change()
            moment.savez(tmp_path / "saved")
        with np.load(tmp_path / "saved.npz") as saved:
            names = list("abcd") if isinstance(given, dict) else [f"arr_{index}" for index in range(4)]
            assert saved.files == names
            assert all(np.array_equal(saved[name], was) for name, was in zip(names, before))


@pytest.mark.parametrize("memory", [bytearray(b"abc" * 1_000_000), memoryview(bytearray(b"x" * 100))])
def test_buffers_that_are_no_arrays(memory):
    before = bytes(memory)
    with hugekit.snapshot(memory) as moment:
        memory[0] = 0
        assert moment.to_numpy().tobytes() == before


def test_writing_to_files_of_every_kind(tmp_path):
    array = some((1000, 777))
    before = array.tobytes()
    for opened in (
        lambda: open(tmp_path / "file", "wb"),
        lambda: open(tmp_path / "file", "wb", buffering=0),
        lambda: open(tmp_path / "file", "w+b"),
    ):
        with opened() as file, hugekit.snapshot(array) as moment:
            file.write(b"header")
            moment.write_to(file)
            file.write(b"trailer")
        assert (tmp_path / "file").read_bytes() == b"header" + before + b"trailer"
    with gzip.open(tmp_path / "file", "wb", compresslevel=1) as file:
        hugekit.snapshot(array).write_to(file)
    assert gzip.open(tmp_path / "file").read() == before
    file = io.BytesIO()
    hugekit.snapshot([array, array[5:7]]).write_to(file)
    assert file.getvalue() == before + array[5:7].tobytes()
    reading, writing = os.pipe()
    read = []
    reader = threading.Thread(target=lambda: read.append(open(reading, "rb").read()))
    reader.start()
    with open(writing, "wb") as pipe:
        hugekit.snapshot(array).write_to(pipe)
    reader.join()
    assert read == [before]


def test_files_that_fail(tmp_path):
    array = some((1000, 777))

    class Full:
        def write(self, data):
            raise OSError(28, "no space left, says the file")

    with pytest.raises(OSError, match="says the file"):
        hugekit.snapshot(array).write_to(Full())
    with pytest.raises(OSError) as caught:
        with open("/dev/full", "wb", buffering=0) as full:
            hugekit.snapshot(array).write_to(full)
    assert caught.value.errno == 28
    with pytest.raises(FileNotFoundError):
        hugekit.snapshot(array).save_npy(tmp_path / "no" / "folder")
    (tmp_path / "kept.npy").write_bytes(b"kept")

    def fail(done, total):
        raise RuntimeError("stop")

    for save in ("save_npy", "savez"):
        with pytest.raises(RuntimeError, match="stop"):
            getattr(hugekit.snapshot(array), save)(tmp_path / "kept", progress=fail)
    assert os.listdir(tmp_path) == ["kept.npy"] and (tmp_path / "kept.npy").read_bytes() == b"kept"


def test_progress_over_all_arrays(tmp_path):
    arrays = [some((1000, 1000)), hugekit.zeros(5 << 20, "u1"), np.ones(10)]
    total = sum(array.nbytes for array in arrays)
    for take in (
        lambda moment, told: moment.to_numpy(progress=told),
        lambda moment, told: moment.write_to(io.BytesIO(), progress=told),
        lambda moment, told: moment.savez(tmp_path / "x", progress=told),
    ):
        told = []
        take(hugekit.snapshot(arrays), lambda *at: told.append(at))
        assert told == sorted(told) and told[-1] == (total, total)
        with tqdm(file=open(os.devnull, "w")) as bar:
            take(hugekit.snapshot(arrays), bar)
            assert bar.n == total == bar.total


def test_it_ends_once():
    array = some((1000, 1000))
    moment = hugekit.snapshot(array)
    moment.to_numpy()
    assert moment.closed and moment.stats()["cap"] > 0
    for take in (moment.to_numpy, lambda: moment.write_to(io.BytesIO()), lambda: moment.save_npy("/tmp/x")):
        with pytest.raises(ValueError, match="ended"):
            take()
    assert not os.path.exists("/tmp/x.npy")
    moment.close()
    with hugekit.snapshot(array) as moment:
        pass
    with pytest.raises(ValueError, match="ended"):
        moment.to_numpy()


def test_the_memory_stays_while_the_snapshot_does():
    memory = bytearray(4 << 20)
    moment = hugekit.snapshot(memory)
    with pytest.raises(BufferError):
        memory.extend(b"x")
    moment.close()
    memory.extend(b"x")
    array = some((1000, 1000))
    moment = hugekit.snapshot(array)
    before = array.copy()
    del array
    gc.collect()
    assert np.array_equal(moment.to_numpy(), before)


def test_arrays_of_a_pool_and_their_parts(pool):
    array = pool.zeros((1000, 1000), "u1")
    array[:] = 3
    with hugekit.snapshot([array[:500], array[700:], array]) as moment:
        array[:] = 4
        first, last, whole = moment.to_numpy()
    assert (first == 3).all() and first.shape == (500, 1000)
    assert (last == 3).all() and last.shape == (300, 1000) and (whole == 3).all()
    region = pool.region(1 << 20)
    memoryview(region)[:3] = b"abc"
    with region.snapshot() as moment:
        memoryview(region)[:3] = b"xyz"
        assert moment.to_numpy()[:3].tobytes() == b"abc"
    del array, region
    gc.collect()
    assert pool.stats()["in_use"] == 0


def test_a_snapshot_that_is_outrun_is_lost_and_the_writer_is_not():
    array = np.ones(256 << 20, "u1")
    with hugekit.snapshot(array, granule="small", hold_at_most=4 << 20) as moment:
        array[:] = 2
        with pytest.raises(hugekit.SnapshotLost, match="faster"):
            moment.to_numpy()
    assert issubclass(hugekit.SnapshotLost, OSError) and (array == 2).all()


@pytest.mark.parametrize("handling", ["threaded", "in place"])
def test_one_moment_while_threads_write(handling):
    arrays = [np.zeros(2 << 20, "i8") for _ in range(3)]
    stop = threading.Event()

    def write():
        # All arrays are equal whenever this holds the GIL between two rounds.
        while not stop.is_set():
            for array in arrays:
                array[::1000] += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(5):
            with hugekit.snapshot(arrays, handling=handling, hold_at_most=1 << 30) as moment:
                assert moment.serving == handling
                first, second, third = moment.to_numpy()
            assert (first[::1000] >= second[::1000]).all() and (second[::1000] >= third[::1000]).all()
            assert (first[::1000] - third[::1000] <= 1).all()
    finally:
        stop.set()
        thread.join()


def test_a_system_call_into_what_is_served_in_place(tmp_path):
    array = np.ones(8 << 20, "u1")
    (tmp_path / "data").write_bytes(b"x" * array.nbytes)
    with open(tmp_path / "data", "rb", buffering=0) as file, hugekit.snapshot(array, handling="in place") as moment:
        # What lies before the first whole granule was copied at once, and may be written.
        try:
            assert file.readinto(array) < array.nbytes
        except OSError as refused:
            assert refused.errno == 14
        file.seek(0)
        assert (moment.to_numpy() == 1).all()
        assert file.readinto(array) == array.nbytes
    with open(tmp_path / "data", "rb", buffering=0) as file, hugekit.snapshot(array, handling="threaded"):
        assert file.readinto(array) == array.nbytes


def test_what_cannot_be_snapshotted(tmp_path):
    import mmap

    for wrong, error in [
        (np.ones((10, 10))[:, ::2], (ValueError, BufferError)),
        (np.array([None]), TypeError),
        ({5: np.ones(3)}, TypeError),
        (5, TypeError),
    ]:
        with pytest.raises(error):
            hugekit.snapshot(wrong)
    shared = np.frombuffer(mmap.mmap(-1, 8 << 20), "u1")
    with pytest.raises(OSError, match="shared"):
        hugekit.snapshot(shared)
    with pytest.raises(ValueError):
        hugekit.snapshot(np.ones(5), granule="medium")
    with pytest.raises(ValueError, match="savez"):
        hugekit.snapshot([np.ones(5)]).save_npy(tmp_path / "x")
    with pytest.raises(TypeError, match="arrays"):
        hugekit.snapshot(bytearray(5)).save_npy(tmp_path / "x")
    assert os.listdir(tmp_path) == []
