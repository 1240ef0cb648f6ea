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


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_view_shows_what_was_there(order):
    array = some((1000, 800), "i4", order)
    before = array.copy(order="K")
    with hugekit.snapshot(array) as moment:
        array += 1
        view = moment.view()
        assert (len(view), view.shape, view.dtype, view.nbytes) == (1000, (1000, 800), np.dtype("i4"), array.nbytes)
        for index in (5, -1, np.int64(7), slice(3, 9), slice(None, None, -3), (2, 3), (Ellipsis, 4), (None, 5), (slice(4), -1), ()):
            shown = view[index]
            assert np.array_equal(shown, before[index]) and type(shown) is type(before[index])
            assert not isinstance(shown, np.ndarray) or not shown.flags.writeable
        assert view[10:10].shape == (0, 800)
        with pytest.raises(IndexError):
            view[1000]
        for wrong in ([1, 2], np.array([True]), True, np.True_, (1, [2]), 1.5):
            with pytest.raises(TypeError, match="asarray"):
                view[wrong]
        rows = view[100:200]
        with pytest.raises(ValueError):
            rows[0] = 1
        # What has been shown stays when everything else has gone.
        del view
    gc.collect()
    assert np.array_equal(rows, before[100:200])
    with hugekit.snapshot(array) as moment:
        view = moment.view()
        assert np.array_equal(np.asarray(view), before + 1)
        assert np.asarray(view, "f8").dtype == "f8" and np.array(view).flags.writeable
        # All of it can still be read; what the view shows is not taken away.
        again = moment.to_numpy()
        assert moment.closed and np.array_equal(view[:], again)
        with pytest.raises(ValueError, match="ended"):
            moment.view()


def test_a_view_reads_no_more_than_it_is_asked_for():
    array = np.ones(64 << 20, "u1")
    with hugekit.snapshot(array, max_cow_bytes=2 << 20, granule="small") as moment:
        view = moment.view()
        assert view[1 << 20] == 1
        array[:] = 2
        assert view[(1 << 20) + 10] == 1
        with pytest.raises(hugekit.SnapshotLost):
            view[32 << 20]


def test_views_of_several_named_and_parts(pool):
    arrays = {"a": some((600, 700)), "dates": some(5, "M8[s]"), "none": np.zeros((0, 3)), "pool": pool.zeros(100_000)}
    arrays["fields"] = np.zeros(10, [("x", "i4"), ("y", "f8")])
    arrays["bytes"] = bytearray(b"abc")
    arrays["part"] = arrays["pool"][500:]
    before = {name: np.array(array) for name, array in arrays.items() if name != "bytes"}
    with hugekit.snapshot(arrays) as moment:
        for array in arrays.values():
            hugekit.clear(array)
        views = moment.view()
        assert list(views) == list(arrays)
        assert all(np.array_equal(views[name], was) for name, was in before.items())
        assert views["bytes"][:].tobytes() == b"abc"
        assert np.array_equal(views["fields"]["y"], before["fields"]["y"])
        assert "View of (10,)" in repr(views["fields"])
    with hugekit.snapshot([arrays["a"]]) as moment:
        assert isinstance(moment.view(), list)


def test_pointers_are_followed_in_a_view():
    import ctypes

    class Node(ctypes.Structure):
        _fields_ = [("next", ctypes.c_size_t), ("number", ctypes.c_size_t)]

    memory = bytearray(8 << 20)
    nodes = (Node * (len(memory) // ctypes.sizeof(Node))).from_buffer(memory)
    start, size = ctypes.addressof(nodes), ctypes.sizeof(Node)
    for at in range(1000):
        nodes[at * 77].number = at
        nodes[at * 77].next = start + (at + 1) * 77 * size if at < 999 else 0
    with hugekit.snapshot(memory) as moment:
        hugekit.clear(memory)
        view, at, count = moment.view(), start, 0
        while at:
            node = Node.from_buffer_copy(view.rebase(at, size))
            assert node.number == count
            at, count = node.next, count + 1
        assert count == 1000
        shown = view.rebase(start, 5)
        assert shown.readonly and len(shown) == 5 and len(view.rebase(start + len(memory), 0)) == 0
        for address, length in [(start - 1, 1), (start + len(memory), 1), (start, len(memory) + 1), (start, 1 << 63)]:
            with pytest.raises(ValueError, match="outside the array"):
                view.rebase(address, length)
    del nodes


def neighbours(count, length, kind="apart"):
    """Arrays of ones that lie side by side: in one mapping, or each with a page's rest and a few words before the next."""
    gap = 4096 if kind == "apart" else 0
    flat = np.zeros(count * (length + gap) + (2 << 20), "u1")
    arrays = [flat[4096 + at * (length + gap) :][:length] for at in range(count)]
    for array in arrays:
        array[:] = 1
    return flat, arrays


@pytest.mark.parametrize("kind", ["apart", "touching"])
@pytest.mark.parametrize("fault_mode", ["threaded", "in place", None])
def test_neighbours_are_read_each_for_itself(tmp_path, kind, fault_mode):
    _flat, arrays = neighbours(4, (5 << 20) + 77, kind)
    arrays = [arrays[at] for at in (2, 0, 3, 1)]
    for at, array in enumerate(arrays):
        array[:] = at
    before = [array.copy() for array in arrays]
    with hugekit.snapshot(arrays, fault_mode=fault_mode, granule="huge", max_cow_bytes=1 << 30) as moment:
        cost = moment.stats()
        views = moment.view()
        for array in arrays:
            array += 10
        assert all(view[12345] == was[12345] for view, was in zip(views, before))
        del views
        told = []
        copies = moment.to_numpy(progress=lambda *at: told.append(at))
    assert all(np.array_equal(copy, was) for copy, was in zip(copies, before))
    assert told[-1] == (moment.nbytes, moment.nbytes)
    # Taken at once, they may hold no more aside than there is, with what lies between them, which is not served in place.
    at_once = kind == "touching" or moment.serving == "threaded"
    between = 3 * 4096 if kind == "apart" else 0
    assert cost["cap"] == (sum(array.nbytes for array in arrays) + between if at_once else 4 << 30)
    with hugekit.snapshot(dict(zip("abcd", arrays)), fault_mode=fault_mode, max_cow_bytes=1 << 30) as moment:
        for array in arrays:
            array += 10
        moment.savez(tmp_path / "x")
    with np.load(tmp_path / "x.npz") as saved:
        assert all(np.array_equal(saved[name], was + 10) for name, was in zip("abcd", before))


def test_a_view_keeps_the_neighbours_apart():
    flat, (first, second) = neighbours(2, 4 << 20)
    with hugekit.snapshot([first, second]) as moment:
        flat[:] = 9
        one, other = moment.view()
        with pytest.raises(ValueError, match="outside the array"):
            one.rebase(second.ctypes.data, 1)
        assert other.rebase(second.ctypes.data, 1)[0] == 1 and one[-1] == 1


def test_a_reserve_is_one_snapshots_at_a_time():
    arrays = [np.ones(8 << 20, "u1"), np.ones(8 << 20, "u1")]
    reserve = hugekit.Reserve(6 << 20)
    assert reserve.nbytes == 6 << 20 and "6291456" in repr(reserve)
    for mark in range(2, 5):
        with hugekit.snapshot(arrays[0], reserve=reserve) as moment:
            assert 0 < moment.stats()["reserved"] <= 6 << 20
            with hugekit.snapshot(arrays[1], reserve=reserve) as other:
                assert other.stats()["reserved"] == 0
                arrays[1][:] = mark
                assert (other.to_numpy() == mark - 1).all()
            arrays[0][:] = mark
            assert (moment.to_numpy() == mark - 1).all()
    moment = hugekit.snapshot(arrays, reserve=reserve, max_cow_bytes=1 << 30)
    del reserve
    for array in arrays:
        array[:] = 9
    assert moment.stats()["reserved"] > 0 and all((copy == 4).all() for copy in moment.to_numpy())
    with pytest.raises(MemoryError):
        hugekit.Reserve(1 << 50)
    with pytest.raises(TypeError):
        hugekit.snapshot(arrays, reserve=5)


def test_a_snapshot_that_is_outrun_is_lost_and_the_writer_is_not():
    array = np.ones(256 << 20, "u1")
    with hugekit.snapshot(array, granule="small", max_cow_bytes=4 << 20) as moment:
        array[:] = 2
        with pytest.raises(hugekit.SnapshotLost, match="faster"):
            moment.to_numpy()
    assert issubclass(hugekit.SnapshotLost, OSError) and (array == 2).all()


@pytest.mark.parametrize("fault_mode", ["threaded", "in place"])
def test_one_moment_while_threads_write(fault_mode):
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
            with hugekit.snapshot(arrays, fault_mode=fault_mode, max_cow_bytes=1 << 30) as moment:
                assert moment.serving == fault_mode
                first, second, third = moment.to_numpy()
            assert (first[::1000] >= second[::1000]).all() and (second[::1000] >= third[::1000]).all()
            assert (first[::1000] - third[::1000] <= 1).all()
    finally:
        stop.set()
        thread.join()


def test_a_system_call_into_what_is_served_in_place(tmp_path):
    array = np.ones(8 << 20, "u1")
    (tmp_path / "data").write_bytes(b"x" * array.nbytes)
    with open(tmp_path / "data", "rb", buffering=0) as file, hugekit.snapshot(array, fault_mode="in place") as moment:
        # What lies before the first whole page was copied at once, and may be written.
        try:
            assert file.readinto(array) < array.nbytes
        except OSError as refused:
            assert refused.errno == 14
        file.seek(0)
        assert (moment.to_numpy() == 1).all()
        assert file.readinto(array) == array.nbytes
    with open(tmp_path / "data", "rb", buffering=0) as file, hugekit.snapshot(array, fault_mode="threaded"):
        assert file.readinto(array) == array.nbytes


@pytest.mark.parametrize("all_of_them", [True, False])
def test_prepare_write_in_place_lets_system_calls_write(tmp_path, all_of_them):
    array, other = np.ones(8 << 20, "u1"), np.ones(8 << 20, "u1")
    (tmp_path / "data").write_bytes(b"x" * array.nbytes)
    with open(tmp_path / "data", "rb", buffering=0) as file:
        moment = hugekit.snapshot([array, other], fault_mode="in place", max_cow_bytes=8 << 20)
        with moment:
            moment.prepare_write(None if all_of_them else array[:])
            assert file.readinto(array) == array.nbytes
            assert moment.stats()["copied_by_others"] >= (8 if all_of_them else 4) - 2
            assert all((was == 1).all() for was in moment.to_numpy())
            with pytest.raises(ValueError):
                moment.prepare_write()


def test_what_cannot_be_snapshotted(tmp_path):
    for wrong, error in [
        (np.array([None]), TypeError),
        ({5: np.ones(3)}, TypeError),
        (5, TypeError),
    ]:
        with pytest.raises(error):
            hugekit.snapshot(wrong)
    with pytest.raises(ValueError):
        hugekit.snapshot(np.ones(5), granule="medium")
    with pytest.raises(ValueError, match="savez"):
        hugekit.snapshot([np.ones(5)]).save_npy(tmp_path / "x")
    with pytest.raises(TypeError, match="bytes have no dtype"):
        hugekit.snapshot(bytearray(5)).save_npy(tmp_path / "x")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("form", [lambda a: a[0], lambda a: a, tuple, lambda a: dict(zip("ab", a))])
def test_a_snapshot_is_read_into_arrays_that_are_there(form):
    arrays = [some((600, 700)), np.asfortranarray(some((50, 60), "i4"))]
    before = [array.copy(order="K") for array in arrays]
    out = [np.empty_like(array) for array in arrays]
    with hugekit.snapshot(form(arrays)) as moment:
        for array in arrays:
            array[...] = 0
        wrong = [np.empty(5), np.empty(7)]
        for other in (form(wrong), [*out, *wrong], {"c": out[0]}, 5):
            with pytest.raises((ValueError, TypeError)):
                moment.to_numpy(out=other)
            assert not moment.closed
        given = form(out)
        found = moment.to_numpy(out=given)
    first = next(iter(found.values())) if isinstance(found, dict) else found if isinstance(found, np.ndarray) else found[0]
    assert first is out[0] and np.array_equal(out[0], before[0])
    assert isinstance(found, np.ndarray) or np.array_equal(out[1], before[1])
