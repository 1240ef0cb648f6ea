"""Checkpoints of arrays: what is read again is what was there, and what cannot be is refused before anything changes."""

import itertools
import json
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time

import conftest
import hugekit
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("serves")

MIB = 1 << 20


def some(shape, dtype="f8", order="C"):
    return np.asarray((np.arange(int(np.prod(shape))) % 251).astype(dtype).reshape(shape), order=order)


def equal(one, other):
    """Whether two trees are the same, arrays by their bytes."""
    if isinstance(one, np.ndarray):
        return (
            isinstance(other, np.ndarray)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and one.tobytes() == other.tobytes()
        )
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and (one == other or one != one)


def copied(tree):
    if isinstance(tree, np.ndarray):
        return tree.copy(order="K")
    if isinstance(tree, dict):
        return {key: copied(value) for key, value in tree.items()}
    return type(tree)(map(copied, tree)) if isinstance(tree, (list, tuple)) else tree


def arrays_of(tree):
    if isinstance(tree, np.ndarray):
        yield tree
    elif isinstance(tree, (dict, list, tuple)):
        for value in tree.values() if isinstance(tree, dict) else tree:
            yield from arrays_of(value)


def a_tree(pool):
    """Everything that can be saved, in memory of every kind."""
    flat = np.zeros(6 * MIB, "u1")
    several = [np.ones(4 * MIB + number, "u1") for number in range(3)]
    return {
        "big": some((3000, 1001)),
        "fortran": some((700, 900), "f4", "F"),
        "permuted": some((60, 70, 80)).transpose(2, 0, 1),
        "small": some(5, "i2"),
        "number": np.array(3.5),
        "none of them": np.zeros((0, 3)),
        "dates": np.zeros(300_000, "M8[s]"),
        "records": np.zeros(200_000, [("a", "i4"), ("b", ">f4")]),
        "text": np.array(["ab", "c"]),
        "pool": pool.zeros(500_000),
        "parts of one": [flat[: 2 * MIB], flat[2 * MIB + 1 : 5 * MIB].view("i1"), flat[MIB : 3 * MIB]],
        "several": several,
        7: {"deep": (several[0], {"deeper": [None, True, "ä", 10**30, -1.5, float("nan"), float("inf")]})},
    }


def change(tree, number):
    """Writes here and there."""
    chance = random.Random(number)
    for array in arrays_of(tree):
        if array.size and array.dtype.kind not in "U":
            flat = array.transpose(np.argsort(array.strides)[::-1]).reshape(-1).view("u1")
            assert np.shares_memory(flat, array)
            for _ in range(chance.randrange(4)):
                start = chance.randrange(flat.size)
                flat[start : start + chance.choice([1, 100, 10_000])] ^= chance.randrange(1, 256)
            if chance.random() < 0.1:
                flat[:] = 0


@pytest.mark.parametrize("fault_mode", [None, "in place"])
def test_every_state_of_a_chain_is_read_again(tmp_path, pool, fault_mode):
    tree = a_tree(pool)
    paths, states = [], []
    with hugekit.Checkpointer(tree, fault_mode=fault_mode) as saver:
        for number in range(6):
            paths.append(tmp_path / f"{number}.delta")
            states.append(copied(tree))
            saved = saver.save(paths[-1])
            assert saved.is_full == (number == 0) and (saved.reason is None) == (number > 0)
            assert saved.written == os.path.getsize(paths[-1]) and saved.path == str(paths[-1])
            assert number == 0 or saved.written < MIB
            assert saver.serving == (fault_mode or saver.serving) is not None
            change(tree, number)
    assert sorted(os.listdir(tmp_path)) == [path.name for path in paths]
    for count in range(6, 0, -1):
        assert equal(hugekit.load_checkpoint(paths[:count]), states[count - 1])
        restored = hugekit.restore(paths[:count], tree)
        assert equal(restored, states[count - 1]) and equal(tree, states[count - 1])
        assert restored["big"] is tree["big"]


@pytest.mark.parametrize("fault_mode", [None, "in place"])
def test_arrays_of_pools_have_the_epochs_of_their_regions(tmp_path, fault_mode):
    pool = hugekit.Pool(32 * MIB, backing="base")
    alone = pool.zeros(3 * MIB, "u1")
    region = pool.region(2 * MIB)
    whole = np.frombuffer(region, "u1")
    tree = {
        "alone": alone,
        "a part": pool.zeros(MIB, "u1")[100_001:900_001],
        "one of two": whole[: MIB // 2],
        "the other": whole[MIB:],
    }
    paths = []
    with hugekit.Checkpointer(tree, fault_mode=fault_mode) as saver:
        for number in range(5):
            paths.append(tmp_path / f"{number}.delta")
            state = copied(tree)
            saved = saver.save(paths[-1])
            assert saved.is_full == (number == 0), saved.reason
            assert saver.serving == (fault_mode or saver.serving) is not None
            assert equal(hugekit.load_checkpoint(paths), state)
            # What lies around an array in its region is none of it.
            whole[MIB // 2 : MIB] += 1
            change(tree, number)
            saver.prepare_write(alone[:1000])
            with open("/dev/zero", "rb", buffering=0) as zeroes:
                assert zeroes.readinto(alone[:1000]) == 1000
            fork = hugekit.fork(alone) if number == 2 else None
            alone[-1] += 1
            del fork


def test_two_savers_of_one_region_notice_each_other(tmp_path, pool):
    array = pool.zeros(MIB, "u1")
    one, other = hugekit.Checkpointer({"a": array}), hugekit.Checkpointer({"a": array})
    assert one.save(tmp_path / "one 0").is_full and other.save(tmp_path / "other 0").is_full
    array[5] = 1
    saved = one.save(tmp_path / "one 1")
    assert saved.is_full and "epoch" in saved.reason
    assert hugekit.load_checkpoint(tmp_path / "one 1")["a"][5] == 1


def test_memory_that_arrays_share_is_stored_once(tmp_path):
    base = np.arange(MIB, dtype="f8")
    tree = {"all": base, "again": base, "half": base[: MIB // 2], "other way": base.reshape(1024, -1)}
    saved = hugekit.Checkpointer(tree).save(tmp_path / "full")
    assert base.nbytes < saved.written < base.nbytes + MIB
    found = hugekit.load_checkpoint(tmp_path / "full")
    assert equal(found, tree)
    # An array that is read into several is whole in each.
    apart = {name: np.zeros_like(array) for name, array in tree.items()}
    assert equal(hugekit.restore(tmp_path / "full", apart), tree)


def test_a_delta_has_the_blocks_that_changed(tmp_path):
    array = np.ones(16 * MIB, "u1")
    saver = hugekit.Checkpointer({"array": array, "step": 0})
    assert saver.save(tmp_path / "0").changed >= array.nbytes
    array[5 * MIB] = 2
    array[9 * MIB] = array[9 * MIB]
    saved = saver.save(tmp_path / "1")
    assert not saved.is_full and saved.changed == 4096, saved
    assert saver.save(tmp_path / "2").changed == 0


def test_what_is_written_during_a_save_is_not_in_it(tmp_path):
    array = np.ones(64 * MIB, "u1")
    saver = hugekit.Checkpointer({"array": array}, max_cow_bytes=array.nbytes)
    full = saver.save(tmp_path / "0", wait=False)
    array[:] = 2
    second = saver.save(tmp_path / "1", wait=False)
    array[::4096] = 3
    assert full.done() and full.wait().is_full and not second.wait(60).is_full and second.done()
    assert "done" in repr(second)
    assert (hugekit.load_checkpoint(tmp_path / "0")["array"] == 1).all()
    assert (hugekit.load_checkpoint([tmp_path / "0", tmp_path / "1"])["array"] == 2).all()
    saver.save(tmp_path / "2")
    assert equal(hugekit.load_checkpoint([tmp_path / name for name in "012"])["array"], array)


def test_several_arrays_are_one_moment_for_python_code(tmp_path):
    """A thread counts in all arrays, one after the other and again: the counts of one state differ by one at most."""
    tree = {"counts": [np.zeros(2 * MIB // 8 * factor) for factor in (1, 3, 1)] + [np.zeros(10)]}
    stop = threading.Event()

    def count():
        while not stop.is_set():
            for array in tree["counts"]:
                array[-1] += 1

    thread = threading.Thread(target=count)
    thread.start()
    saver = hugekit.Checkpointer(tree, max_cow_bytes=1 << 30)
    paths = []
    try:
        for number in range(12):
            paths.append(tmp_path / str(number))
            saver.save(paths[-1])
            counts = [int(array[-1]) for array in hugekit.load_checkpoint(paths)["counts"]]
            assert sorted(counts, reverse=True) == counts and counts[0] - counts[-1] <= 1, counts
    finally:
        stop.set()
        thread.join()


def test_other_arrays_are_saved_in_full_and_why(tmp_path):
    tree = {"a": np.ones(2 * MIB), "b": np.ones(3, "i4"), "steps": 0}
    saver = hugekit.Checkpointer(lambda: tree)

    numbers = itertools.count()

    def reason(full=False):
        saved = saver.save(tmp_path / str(next(numbers)), full=full)
        assert saved.is_full == (saved.reason is not None)
        assert not saved.is_full or equal(hugekit.load_checkpoint(saved.path), tree)
        return saved.reason

    assert reason() == "it is the first one" and reason() is None
    tree["steps"] += 1
    assert reason() is None
    tree["c"] = np.zeros(5)
    assert reason() == "c is new" and reason() is None
    del tree["b"]
    assert reason() == "b is gone" and reason() is None
    tree["a"] = tree["a"].reshape(1024, -1)
    assert "float64 of the shape (2097152,) and is numpy float64 of the shape (1024, 2048)" in reason()
    tree["a"] = tree["a"].copy()
    assert reason() == "a lies elsewhere" and reason() is None
    tree["text"] = "x" * 10_000
    assert "outgrown" in reason() and reason() is None
    assert reason(full=True) == "full=True" and reason() is None


def test_a_save_that_failed_is_followed_by_a_full_one(tmp_path):
    array = np.ones(8 * MIB, "u1")
    saver = hugekit.Checkpointer({"array": array}, max_cow_bytes=2 * MIB)
    saver.save(tmp_path / "0")
    with pytest.raises(FileNotFoundError) as missing:
        saver.save(tmp_path / "nowhere" / "1")
    assert missing.value.filename == str(tmp_path / "nowhere" / "1")
    saved = saver.save(tmp_path / "2")
    assert saved.is_full and "the save before failed" in saved.reason and "No such file" in saved.reason
    # A folder cannot be replaced by a file: the bytes were written, and nothing is left of them.
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        saver.save(tmp_path / "folder")
    assert saver.save(tmp_path / "3").is_full
    assert not saver.save(tmp_path / "4").is_full
    assert sorted(os.listdir(tmp_path)) == ["0", "2", "3", "4", "folder"]


def test_a_save_over_a_file_of_its_chain_is_full_so_that_no_change_is_lost(tmp_path):
    """As programs save that have one name for all their checkpoints."""
    array = some(2 * MIB)
    (tmp_path / "link").symlink_to(tmp_path, target_is_directory=True)
    saver = hugekit.Checkpointer({"x": array})
    for number, path in enumerate([tmp_path / "latest", tmp_path / "link" / "latest", os.path.relpath(tmp_path / "latest")]):
        array[number] = -1
        saved = saver.save(path, wait=number != 1)
        saved = saved.wait() if number == 1 else saved
        assert saved.is_full and saved.reason == ("it replaces a file that the changes would need" if number else "it is the first one")
        assert equal(hugekit.load_checkpoint(tmp_path / "latest"), {"x": array})
    # Any of them is needed, not only the full one.
    assert [saver.save(tmp_path / name).is_full for name in ("1", "2", "1", "2", "3")] == [False, False, True, False, False]
    assert equal(hugekit.load_checkpoint([tmp_path / name for name in "123"]), {"x": array})
    # Moved away, it is not replaced.
    (tmp_path / "3").rename(tmp_path / "moved")
    array[9] = -1
    assert not saver.save(tmp_path / "3").is_full
    assert equal(hugekit.load_checkpoint([tmp_path / name for name in ("1", "2", "moved", "3")]), {"x": array})


def test_a_full_device_is_an_error_and_leaves_what_was_there(tmp_path):
    array = np.ones(8 * MIB, "u1")
    saver = hugekit.Checkpointer({"array": array})
    saver.save(tmp_path / "0")
    before = (tmp_path / "0").read_bytes()
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))
    try:
        with pytest.raises(OSError, match="too large"):
            saver.save(tmp_path / "0", full=True)
        with pytest.raises(OSError, match="too large"):
            saver.save(tmp_path / "0", wait=False).wait()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)
    assert (tmp_path / "0").read_bytes() == before and os.listdir(tmp_path) == ["0"]
    assert saver.save(tmp_path / "1").is_full


def test_writers_that_outrun_a_save_lose_it_and_the_next_one_is_full(tmp_path):
    array = np.ones(32 * MIB, "u1")
    saver = hugekit.Checkpointer({"array": array}, max_cow_bytes=2 * MIB, granule="small")
    lost = None
    for number in range(50):
        saving = saver.save(tmp_path / "file", full=True, wait=False)
        array[:] = number
        try:
            saving.wait()
        except hugekit.SnapshotLost as error:
            lost = error
            break
    assert lost is not None and "written faster" in str(lost)
    saved = saver.save(tmp_path / "file")
    assert saved.is_full and "written faster" in saved.reason
    assert equal(hugekit.load_checkpoint(tmp_path / "file")["array"], array)


def test_memory_that_is_taken_away_between_saves_is_saved_in_full_or_as_written(tmp_path):
    memory = mmap.mmap(-1, 8 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.frombuffer(memory, "u1")
    array[:] = 1
    saver = hugekit.Checkpointer([array])
    saver.save(tmp_path / "0")
    memory.madvise(mmap.MADV_DONTNEED, 2 * MIB, MIB)
    saved = saver.save(tmp_path / "1")
    assert not saved.is_full and saved.changed == MIB
    assert equal(hugekit.load_checkpoint([tmp_path / "0", tmp_path / "1"]), [array])
    assert array[: 2 * MIB].all() and not array[2 * MIB : 3 * MIB].any()


@pytest.mark.parametrize(
    "tree, error, says",
    [
        ({"a": {"b": np.array([None])}}, TypeError, "a.b has the dtype object"),
        ({"a": [1, {2}]}, TypeError, "a.1 is a set.*sorted"),
        ({"a": {True: 1}}, TypeError, "a has the key True"),
        ({(1, 2): 1}, TypeError, "the dict has the key"),
        (object(), TypeError, "it is a object"),
    ],
)
def test_what_cannot_be_saved_is_named(tree, error, says):
    with pytest.raises(error, match=says):
        hugekit.Checkpointer(tree)


def test_a_tree_that_contains_itself_is_refused():
    tree = {"a": []}
    tree["a"].append(tree)
    with pytest.raises(ValueError, match="a.0 contains itself"):
        hugekit.Checkpointer(tree)


class Chain:
    """Three files, the arrays that they are of, and what these were."""

    def __init__(self, folder):
        self.tree = {"a": np.ones((MIB // 4, 3)), "b": {"c": np.arange(1000, dtype="i4")}, "step": 1}
        self.saver = hugekit.Checkpointer(self.tree)
        self.paths = [folder / f"{number}.delta" for number in range(3)]
        for path in self.paths:
            self.saver.save(path)
            self.tree["a"][5, 0] += 1
            self.tree["b"]["c"][500:] = 7

    def is_refused(self, paths, *says, error=ValueError):
        """The files are, by all that read them, and no byte changes."""
        before = copied(self.tree)
        for read in (lambda: hugekit.restore(paths, self.tree), lambda: hugekit.load_checkpoint(paths)):
            with pytest.raises(error) as refused:
                read()
            assert all(word in str(refused.value) for word in says), refused.value
        assert equal(before, self.tree)


@pytest.fixture
def chain(tmp_path):
    return Chain(tmp_path)


def test_files_in_another_order_are_refused(chain):
    first, second, third = chain.paths
    chain.is_refused([second], "1.delta", "begins with state", "the base is unknown")
    chain.is_refused([first, third], "2.delta", "begins with state")
    chain.is_refused([first, third, second], "2.delta")
    chain.is_refused([first, second, second], "1.delta")
    chain.is_refused([second, first], "1.delta")
    chain.is_refused([first, second, first], "0.delta", "a full file must be the first")
    chain.is_refused([], "no files")
    chain.is_refused([first, second.with_name("missing")], "missing", error=FileNotFoundError)
    chain.is_refused([first.parent], str(first.parent), "it is not a file")
    os.mkfifo(first.with_name("fifo"))
    chain.is_refused([first.with_name("fifo")], "it is not a file")


def test_output_that_is_no_file_is_refused_and_stays(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="something other than a file"):
        hugekit.Checkpointer([np.zeros(1000)]).save(pipe)
    assert pipe.is_fifo() and os.listdir(tmp_path) == ["pipe"]


def test_a_chain_may_be_longer_than_files_can_be_open(tmp_path):
    resource = pytest.importorskip("resource")
    array, paths = np.zeros(1000), []
    saver = hugekit.Checkpointer([array])
    for number in range(100):
        paths.append(tmp_path / str(number))
        saver.save(paths[-1], fsync=False)
        array[number] = number
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 20, hard))
    try:
        assert hugekit.load_checkpoint(paths)[0].sum() == sum(range(99))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_any_damage_is_refused_with_file_and_byte(chain):
    chance = random.Random(1)
    for path in chain.paths:
        whole = bytearray(path.read_bytes())
        places = {0, 8, 20, 40, 47, len(whole) - 1, len(whole) - 20, *(chance.randrange(len(whole)) for _ in range(30))}
        for place in sorted(places):
            damaged = bytearray(whole)
            damaged[place] ^= 1 << chance.randrange(8)
            path.write_bytes(damaged)
            chain.is_refused(chain.paths, path.name)
        path.write_bytes(whole)
    assert equal(hugekit.load_checkpoint(chain.paths)["b"], {"c": np.r_[np.arange(500), np.full(500, 7)].astype("i4")})


def test_any_truncation_is_refused_with_file_and_byte(chain):
    chance = random.Random(2)
    for path in chain.paths:
        whole = path.read_bytes()
        for length in (0, 7, 8, 47, 48, 80, len(whole) - 1, *(chance.randrange(len(whole)) for _ in range(10))):
            path.write_bytes(whole[:length])
            chain.is_refused(chain.paths, path.name)
        path.write_bytes(whole)


def test_a_file_that_is_replaced_after_it_was_checked_is_an_error(chain, monkeypatch):
    """By another delta of the same base, which is whole."""
    from hugekit import _checkpoints

    other = hugekit.Checkpointer(chain.tree)
    replacement = chain.paths[0].with_name("other")
    other.save(replacement)
    checked = _checkpoints._Stored.refuse_others

    def check_and_replace(stored, leaves):
        checked(stored, leaves)
        os.replace(replacement, chain.paths[0])

    monkeypatch.setattr(_checkpoints._Stored, "refuse_others", check_and_replace)
    with pytest.raises(ValueError, match="0.delta: the file was changed while it was read.*leads to state"):
        hugekit.restore(chain.paths[:1], chain.tree)


def test_other_arrays_than_those_that_were_saved_are_refused_by_name(chain):
    good = chain.tree
    for tree, says in [
        ({**good, "a": np.zeros((3, MIB // 4))}, "a was saved as float64 of the shape (262144, 3), and is float64 of the shape (3"),
        ({**good, "a": np.zeros((MIB // 4, 3), "f4")}, "a was saved as float64"),
        ({**good, "a": np.zeros((MIB // 4, 3), order="F")}, "in memory by the axes"),
        ({"a": good["a"]}, "it has b.c, which the arrays lack"),
        ({**good, "d": np.zeros(3), "e": np.zeros(3)}, "it lacks d, e, which the arrays have"),
        ({**good, "b": {"c": np.zeros(1001, "i4")}}, "b.c"),
    ]:
        before = copied(tree)
        with pytest.raises(ValueError) as refused:
            hugekit.restore(chain.paths, tree)
        assert says in str(refused.value) and "2.delta" in str(refused.value)
        assert equal(before, tree)
    fixed = copied(good)
    fixed["b"]["c"].flags.writeable = False
    with pytest.raises(ValueError, match="b.c is read-only"):
        hugekit.restore(chain.paths, fixed)
    assert equal(fixed, good)


def state_with(text, room=4096, data=b""):
    """A delta of a state with such a header, as a program that writes anything might make it."""
    header = b"HKARRAYS" + room.to_bytes(8, "little") + len(text).to_bytes(8, "little") + text
    return header.ljust(room if room < MIB else 4096, b"\0") + data


DESCRIBED = {"name": "a", "of": "numpy", "dtype": "uint8", "shape": [9], "axes": [0], "offset": 0, "bytes": 9}


@pytest.mark.parametrize(
    "entry, tree",
    [
        ({"shape": [10]}, {"array": 0}),
        ({"shape": [1 << 60, 1 << 60]}, {"array": 0}),
        ({"shape": [-9]}, {"array": 0}),
        ({"shape": [9.0]}, {"array": 0}),
        ({"axes": [1]}, {"array": 0}),
        ({"offset": 1 << 62}, {"array": 0}),
        ({"offset": -1}, {"array": 0}),
        ({"bytes": 1 << 50, "shape": [1 << 50]}, {"array": 0}),
        ({"dtype": "[('a', 'O')]", "bytes": 72}, {"array": 0}),
        ({"dtype": "'O'", "bytes": 72}, {"array": 0}),
        ({"dtype": "'unfinished"}, {"array": 0}),
        ({"dtype": 5}, {"array": 0}),
        ({"dtype": "no such thing", "bytes": 4096}, {"array": 0}),
        ({}, {"array": 1}),
        ({}, {"value": 1}),
        ({}, {"dict": [["x"]]}),
        ({}, {"list": [{"array": 0}, {"nonsense": 0}]}),
        ({}, [1]),
    ],
)
def test_a_description_that_no_checkpointer_writes_is_refused(tmp_path, entry, tree):
    document = {"version": 1, "arrays": [{**DESCRIBED, **entry}], "tree": tree}
    write_delta(tmp_path / "file", state_with(json.dumps(document).encode(), data=bytes(range(1, 10)).ljust(4096, b"\0")))
    with pytest.raises(ValueError):
        hugekit.load_checkpoint(tmp_path / "file")


def test_a_description_in_order_is_read_and_other_memory_is_refused(tmp_path):
    document = {"version": 1, "arrays": [DESCRIBED], "tree": {"array": 0}}
    text = json.dumps(document).encode()
    data = bytes(range(1, 10)).ljust(4096, b"\0")
    write_delta(tmp_path / "file", state_with(text, data=data))
    assert hugekit.load_checkpoint(tmp_path / "file").tolist() == list(range(1, 10))
    for state, says in [
        (b"other memory" * 1000, "not of arrays"),
        (bytes(8192), "not of arrays"),
        (state_with(text, room=1 << 62), "not of arrays"),
        (state_with(text, room=15), "not of arrays"),
        (state_with(b"{"), "cannot be read"),
        (state_with(json.dumps({"version": 3}).encode()), "update it"),
        (state_with(b"[" * 4000), "cannot be read"),
    ]:
        write_delta(tmp_path / "file", state)
        with pytest.raises(ValueError, match=says):
            hugekit.load_checkpoint(tmp_path / "file")


def xxh3(data):
    xxhash = pytest.importorskip("xxhash")
    return xxhash.xxh3_64_intdigest(data)


def write_delta(path, state):
    """A full delta of a state, from its description in docs/delta.md."""
    word = lambda number: number.to_bytes(8, "little")
    opening = b"HKDELTA\0" + (1).to_bytes(4, "little") + bytes(4) + word(len(state)) + bytes(16)
    opening += word(xxh3(opening))
    sums, out = [xxh3(opening)], opening

    def piece(kind, offset, length, payload):
        nonlocal out
        head = kind.to_bytes(4, "little") + bytes(4) + word(offset) + word(length)
        sums.append(xxh3(word(sums[-1]) + head + payload))
        out += head + word(sums[-1]) + payload

    if state.strip(b"\0"):
        piece(1, 0, len(state), state)
    count = len(sums) - 1
    piece(0, count, 0, os.urandom(16))
    path.write_bytes(out)


XXH3_SECRET = np.frombuffer(
    bytes.fromhex(
        "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
        "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
        "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
        "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
    ),
    "u8",
)


def collisions(blocks):
    """Two versions of so many blocks of 4 KiB. XXH3 takes one of them for unchanged, whatever its seed is.

    As in engine/delta/tests/chains/colliding.rs, which says why.
    """
    highest, low = np.uint64(1 << 63), np.uint64((1 << 32) - 1)
    seeds = np.random.default_rng(1).integers(0, 1 << 64, 4096, "u8")
    found = []
    for one in range(24):
        for other in range(one + 2, 24, 2):
            lane = max(other - 15, 0)
            if lane < 8 and one >= lane:
                keys = [XXH3_SECRET[key] + seeds if key % 2 == 0 else XXH3_SECRET[key] - seeds for key in (one, other)]
                differences, counts = np.unique((keys[0] ^ keys[1] ^ highest) & (highest | low), return_counts=True)
                words = [(key - lane) * 8 + lane for key in (one, other)]
                found += [(-count, words, difference) for count, difference in zip(counts.tolist(), differences)]
    found.sort(key=lambda pair: pair[:2])
    versions = np.full((2, blocks, 512), 7, "u8")
    for block, (_, words, difference) in enumerate(found[:blocks]):
        versions[:, block, words] = [[0, difference], [highest, difference ^ highest]]
    return versions


def test_bytes_that_a_client_chose_are_saved(tmp_path):
    versions = collisions(4096)
    memory = mmap.mmap(-1, versions[0].nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.frombuffer(memory, "u8").reshape(versions[0].shape)
    for attempt in range(3):
        saver = hugekit.Checkpointer([array], max_cow_bytes=versions[0].nbytes)
        paths = [tmp_path / f"{attempt}-{number}" for number in range(2)]
        for path, version in zip(paths, versions):
            array[:] = version
            saver.save(path, fsync=False)
        assert equal(hugekit.load_checkpoint(paths), [versions[1]])
        saver.close()


def test_close_ends_it_and_a_closed_one_saves_nothing(tmp_path):
    array = np.ones(8 * MIB, "u1")
    saver = hugekit.Checkpointer([array])
    saving = saver.save(tmp_path / "0", wait=False)
    saver.close()
    assert saving.done() and saver.serving is None
    saver.close()
    with pytest.raises(ValueError, match="closed"):
        saver.save(tmp_path / "1")
    assert os.listdir(tmp_path) == ["0"]


def test_system_calls_write_where_they_were_announced(tmp_path):
    array = np.ones(8 * MIB, "u1")
    saver = hugekit.Checkpointer([array], fault_mode="in place")
    saver.save(tmp_path / "0")
    part = array[2 * MIB : 5 * MIB]
    (tmp_path / "data").write_bytes(bytes([5]) * part.nbytes)
    with open(tmp_path / "data", "rb", buffering=0) as file:
        with pytest.raises(OSError, match="Bad address"):
            file.readinto(part)
        saver.prepare_write(part)
        assert file.readinto(part) == part.nbytes
    assert not saver.save(tmp_path / "1").is_full
    assert equal(hugekit.load_checkpoint([tmp_path / "0", tmp_path / "1"]), [array]) and part.all() and part[0] == 5


def test_an_interrupt_comes_after_the_file_is_complete(tmp_path):
    """Ctrl-C while a save waits: the file is whole, the chain goes on, and so does the program."""
    code = f"""
import os, signal, sys, threading, time, hugekit, numpy as np
array = np.ones(64 << 20, "u1")
saver = hugekit.Checkpointer([array])
threading.Timer(0.02, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    for number in range(1000):
        saver.save({str(tmp_path)!r} + "/0", full=True)
except KeyboardInterrupt:
    pass
else:
    sys.exit("not interrupted")
array[7] = 2
saved = saver.save({str(tmp_path)!r} + "/1")
hugekit.load_checkpoint([{str(tmp_path)!r} + "/1"] if saved.is_full else [{str(tmp_path)!r} + "/0", {str(tmp_path)!r} + "/1"])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


IN_A_HANDLER = """
import signal, sys, hugekit, numpy as np
folder, way = sys.argv[1:]
array, emergencies = np.zeros(16 << 20, "u1"), []

def save_at_once(*_signal):
    path = f"{folder}/emergency{len(emergencies)}"
    try:
        saver.save(path, full=True, fsync=False)
        emergencies.append(path)
    except ValueError as refused:
        assert way == "close" and "was closed" in str(refused), refused

signal.signal(signal.SIGALRM, save_at_once)
for number in range(12):
    array[:] = number
    saver = hugekit.Checkpointer([array])
    signal.setitimer(signal.ITIMER_REAL, 0.001 * (1 + number))
    saving = saver.save(f"{folder}/{number}", full=True, wait=way == "wait", fsync=False)
    if way == "later":
        saving.wait()
    if way == "close":
        saver.close()
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert (hugekit.load_checkpoint(f"{folder}/{number}")[0] == number).all(), number
    saver.close()
assert emergencies
for path in emergencies:
    found = hugekit.load_checkpoint(path)[0]
    assert (found == found[0]).all(), path
"""


@pytest.mark.parametrize("way", ["wait", "later", "close"])
def test_a_handler_of_a_signal_saves_whatever_it_interrupts(way, tmp_path):
    """A job that is told to end saves at once, also while it saves: Python's handlers run in the middle of that."""
    done = subprocess.run([sys.executable, "-c", IN_A_HANDLER, tmp_path, way], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


WITHIN_ITSELF = """
import sys, hugekit, numpy as np
first, second = sys.argv[1] + "/0", sys.argv[1] + "/1"

class Owner(bytearray):
    def __del__(self):
        for use in uses:
            try:
                use()
                refusals.append("accepted")
            except RuntimeError as refused:
                refusals.append(str(refused))

uses, refusals = [], []
saver = hugekit.Checkpointer(lambda: [np.frombuffer(Owner(1 << 20), "u1")])
saver.save(first)
uses += [lambda: saver.save(second), lambda: saver.save(second, wait=False), saver.close]
saver.save(first)
uses.clear()
assert len(refusals) >= 3 and all(refusal.endswith("save after it") for refusal in refusals), refusals
assert hugekit.load_checkpoint(first)[0].size == 1 << 20
"""


def test_a_save_that_is_part_of_another_is_refused(tmp_path):
    done = subprocess.run([sys.executable, "-c", WITHIN_ITSELF, tmp_path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_saves_need_no_thread_and_what_makes_the_state_runs_in_the_thread_that_saves(tmp_path, monkeypatch):
    """At the end of the interpreter no thread can be started."""
    threads, array = [], np.ones(1 << 20)

    def state():
        threads.append(threading.get_ident())
        return [array]

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    saver = hugekit.Checkpointer(state)
    saver.save(tmp_path / "0")
    monkeypatch.setattr(threading.Thread, "start", refuse)
    array[:] = 2
    saving = saver.save(tmp_path / "1", wait=False)
    array[:] = 3
    assert saving.done() and not saving.wait().is_full
    saver.save(tmp_path / "2")
    saver.close()
    with pytest.raises(ValueError, match="was closed"):
        saver.save(tmp_path / "3")
    paths = [tmp_path / str(number) for number in range(3)]
    assert [hugekit.load_checkpoint(paths[: count + 1])[0][7] for count in range(3)] == [1, 2, 3]
    assert set(threads) == {threading.get_ident()}


def test_a_program_that_ends_during_a_save_completes_it(tmp_path):
    code = f"""
import hugekit, numpy as np
array = np.ones(32 << 20, "u1")
hugekit.Checkpointer([array]).save({str(tmp_path)!r} + "/0", wait=False)
array[:] = 2
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert (hugekit.load_checkpoint(tmp_path / "0")[0] == 1).all() and os.listdir(tmp_path) == ["0"]


def test_several_checkpointers_and_snapshots_of_the_same_arrays_know_their_own(tmp_path):
    array = np.zeros(8 * MIB, "u1")
    savers = [hugekit.Checkpointer([array], max_cow_bytes=array.nbytes) for _ in range(3)]
    chains = [[] for _ in savers]
    for step in range(12):
        array[step * MIB // 2] = step
        moment = hugekit.snapshot(array) if step % 3 == 0 else None
        chain, saver = chains[step % 3], savers[step % 3]
        chain.append(tmp_path / f"{step}")
        state = array.copy()
        saving = saver.save(chain[-1], wait=False)
        array[-1] += 1
        assert saving.wait().is_full == (len(chain) == 1)
        assert equal(hugekit.load_checkpoint(chain)[0], state)
        assert moment is None or equal(moment.to_numpy(), state)


def test_many_arrays_of_every_size_are_one_state(tmp_path):
    tree = {f"layer{number}": np.full(1 + number * 7919 % (3 * MIB), number % 251, "u1") for number in range(150)}
    saver = hugekit.Checkpointer(tree)
    paths = [tmp_path / "0", tmp_path / "1"]
    saver.save(paths[0])
    for number, array in enumerate(tree.values()):
        array[-1 if number % 2 else 0] += 1
    saved = saver.save(paths[1])
    # Both ends of an array are in it, and the header may be.
    assert not saved.is_full and saved.changed < 150 * 4 * 4096 + MIB
    assert equal(hugekit.load_checkpoint(paths), tree)


def test_saves_of_several_threads_are_one_chain(tmp_path):
    array = np.zeros(4 * MIB, "u1")
    saver = hugekit.Checkpointer([array])
    done = []

    def save(number):
        for index in range(5):
            array[number * MIB + index] += 1
            done.append(saver.save(tmp_path / f"{number}-{index}", wait=index % 2 == 0, fsync=False))

    threads = [threading.Thread(target=save, args=[number]) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    done = [one.wait() if isinstance(one, hugekit.Saving) else one for one in done]
    assert sum(one.is_full for one in done) == 1 and len({one.path for one in done}) == 20
    # The order is the one that their bases say.
    follows = {}
    for one in done:
        base = open(one.path, "rb").read(40)[24:]
        follows[base] = one
    paths, state = [], bytes(16)
    while state in follows:
        one = follows[state]
        paths.append(one.path)
        state = open(one.path, "rb").read()[-16:]
    assert len(paths) == 20 and equal(hugekit.load_checkpoint(paths), [array])


def test_a_forked_child_begins_anew_and_its_parent_goes_on(tmp_path):
    code = f"""
import os, hugekit, numpy as np
array = np.ones(16 << 20, "u1")
saver = hugekit.Checkpointer({{"array": array}}, max_cow_bytes=16 << 20)
saver.save({str(tmp_path)!r} + "/0")
saving = saver.save({str(tmp_path)!r} + "/1", full=True, wait=False)
child = os.fork()
if child == 0:
    array[5] = 2
    saved = saver.save({str(tmp_path)!r} + "/child")
    assert saved.is_full and "forked" in saved.reason, saved
    array[6] = 2
    assert not saver.save({str(tmp_path)!r} + "/child-1").is_full
    saver.close()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
saving.wait()
array[7] = 3
assert not saver.save({str(tmp_path)!r} + "/2").is_full
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    read = lambda *names: hugekit.load_checkpoint([tmp_path / name for name in names])["array"][5:9].tolist()
    assert read("child", "child-1") == [2, 2, 1, 1] and read("1", "2") == [1, 1, 3, 1]


KILLED = """
import sys, hugekit, numpy as np
folder, seed = sys.argv[1], int(sys.argv[2])
chance = np.random.default_rng(seed)
array, small = np.zeros(6 << 20, "u1"), np.zeros(10, "i8")
saver = hugekit.Checkpointer({"array": array, "small": small})
number = 0
while True:
    path = f"{folder}/{number:04}"
    saver.save(path, full=number % 20 == 0, fsync=False)
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
    number += 1
    # So that a reader knows all of each state from its number.
    array[(number * 7919 * 512) % array.size :][:1000] = number % 255 + 1
    small[:] = number
"""


def killed(folder, seed, wait):
    """
    Kills a process that saves without an end when `wait` returns, with the lines that it has read: all files that have
    their names are whole, and what was said to be saved is there.
    """
    folder.mkdir()
    process = subprocess.Popen([sys.executable, "-c", KILLED, folder, str(seed)], stdout=subprocess.PIPE, text=True)
    lines = [process.stdout.readline(), *wait(process)]
    process.send_signal(signal.SIGKILL)
    said = int([*lines, *process.stdout.read().split()][-1])
    process.wait()
    names = sorted(name for name in os.listdir(folder) if not name.endswith(".partial"))
    assert len(names) in (said + 1, said + 2) and names[-1] == f"{len(names) - 1:04}"
    array, small = np.zeros(6 * MIB, "u1"), np.zeros(10, "i8")
    for number in range(1, len(names)):
        array[(number * 7919 * 512) % array.size :][:1000] = number % 255 + 1
    small[:] = len(names) - 1
    begins = (len(names) - 1) // 20 * 20
    found = hugekit.load_checkpoint([folder / name for name in names[begins:]])
    assert equal(found, {"array": array, "small": small})


def test_a_process_that_is_killed_leaves_whole_files(tmp_path):
    """When it has saved a full file, a delta, and a full file again."""
    for count in [0, 1, 20]:
        killed(tmp_path / str(count), count, lambda process: [process.stdout.readline() for _ in range(count)])


@conftest.nightly("it kills at random moments")
def test_a_process_that_is_killed_at_any_moment_leaves_whole_files(tmp_path):
    chance = random.Random(conftest.SEED)

    def wait(_):
        time.sleep(chance.random() * 0.6)
        return []

    for attempt in range(100):
        killed(tmp_path / str(attempt), attempt, wait)


def test_the_command_reads_the_files(chain, tmp_path):
    """`hugekit delta`, where cargo has built it: merged, the files are one checkpoint."""
    target = os.environ.get("CARGO_TARGET_DIR") or os.path.join(os.path.dirname(__file__), "../../../target")
    commands = [os.path.join(target, profile, "hugekit") for profile in ("debug", "release")]
    knows = lambda command: (
        os.path.exists(command) and not subprocess.run([command, "delta", "--help"], capture_output=True).returncode
    )
    command = next(filter(knows, commands), None)
    if command is None:
        pytest.skip("the command hugekit is not built: cargo build -p hugekit-cli")
    out = tmp_path / "merged"
    subprocess.run([command, "delta", "merge", *chain.paths, "-o", out], check=True, timeout=60)
    assert equal(hugekit.load_checkpoint(out), hugekit.load_checkpoint(chain.paths))


def huge_bytes(array):
    """Bytes of the mappings around an array that are on transparent huge pages."""
    start, end = array.ctypes.data, array.ctypes.data + array.nbytes
    found, inside = 0, False
    with open("/proc/self/smaps") as smaps:
        for line in smaps:
            first, _, rest = line.partition(" ")
            if "-" in first and not first.endswith(":"):
                low, high = (int(part, 16) for part in first.split("-"))
                inside = low < end and start < high
            elif inside and first == "AnonHugePages:":
                found += int(rest.split()[0]) << 10
    return found


def test_arrays_side_by_side_leave_huge_pages_whole(tmp_path):
    memory = mmap.mmap(-1, 32 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    flat = np.frombuffer(memory, "u1")
    flat[:] = 1
    if huge_bytes(flat) < 16 * MIB:
        pytest.skip("memory is not on transparent huge pages here")
    cuts = [0, 5 * MIB + 100, 9 * MIB + 8, 17 * MIB - 3, 32 * MIB]
    tree = {"parts": [flat[start:end] for start, end in zip(cuts, cuts[1:])]}
    before, paths = huge_bytes(flat), []
    saver = hugekit.Checkpointer(tree)
    if saver.save(tmp_path / "first") and saver.serving == "in place":
        pytest.skip("neighbours are taken together where threads serve writers")
    for number in range(3):
        paths.append(tmp_path / str(number))
        saver.save(paths[-1], full=number == 0)
        for cut in cuts[1:-1]:
            flat[cut - 1 : cut + 1] += 1
    # The ends of the buffer share their huge pages with other memory.
    assert huge_bytes(flat) >= before - 4 * MIB
    saver.save(tmp_path / "last")
    assert equal(hugekit.load_checkpoint([*paths, tmp_path / "last"]), tree)


def test_bytes_between_arrays_are_in_no_file(tmp_path):
    """Between two arrays that are taken together lies an allocator's word: it is saved as zeroes."""
    flat, secret = np.ones(8 * MIB, "u1"), b"not an array's.."
    tree = [flat[: 4 * MIB], flat[4 * MIB + 16 :]]
    flat[4 * MIB : 4 * MIB + 16] = np.frombuffer(secret, "u1")
    # One granule suits both then, wherever there are huge pages.
    saver = hugekit.Checkpointer(tree, granule="small")
    saver.save(tmp_path / "0")
    flat[4 * MIB - 1] = flat[4 * MIB + 16] = 2
    saver.save(tmp_path / "1")
    files = [(tmp_path / name).read_bytes() for name in "01"]
    assert not any(secret in file for file in files) and bytes([1, 2] + [0] * 16 + [2, 1]) in files[1]
    assert equal(hugekit.load_checkpoint([tmp_path / "0", tmp_path / "1"]), tree)


@pytest.mark.parametrize("seed", range(6))
def test_any_steps_follow_the_model(tmp_path, seed):
    """Saves of every kind, failures, arrays that change, move, come and go: each chain is what the arrays were."""
    chance = random.Random(seed)
    sizes = [10, 4096, MIB - 1, MIB, 3 * MIB + 17, 9 * MIB]
    new = lambda: np.full(chance.choice(sizes), chance.randrange(256), "u1")
    tree = {"a": new(), "b": [new(), new()], "step": 0}
    saver = hugekit.Checkpointer(lambda: tree, max_cow_bytes=64 * MIB)
    chain, running = [], []

    def look():
        """Waits for what is under way, and reads all of the chain."""
        for saving, path, state in running:
            try:
                saved = saving.wait(60)
            except (OSError, ValueError):
                assert not path.exists() or path.is_dir()
                continue
            if saved.is_full:
                chain.clear()
            chain.append((path, state))
        running.clear()
        for count in range(1, len(chain) + 1):
            assert equal(hugekit.load_checkpoint([path for path, _ in chain[:count]]), chain[count - 1][1])

    for step in range(40):
        tree["step"] = step
        arrays = list(arrays_of(tree))
        what = chance.randrange(12)
        if what < 6:
            array = chance.choice(arrays)
            start = chance.randrange(array.size)
            array[start : start + chance.choice([1, 5000, MIB])] += 1
        elif what == 6:
            tree["b"][chance.randrange(2)] = new()
        elif what == 7:
            tree[chance.choice("cd")] = new()
        elif what == 8 and len(chain) > 1:
            found = saver.restore([path for path, _ in chain]) if list(copied(tree)) == list(chain[-1][1]) and all(
                one.shape == other.shape for one, other in zip(arrays_of(tree), arrays_of(chain[-1][1]))
            ) else None
            assert found is None or equal(found, chain[-1][1])
        else:
            path = tmp_path / ("nowhere/x" if chance.random() < 0.15 else str(step))
            state = copied(tree)
            try:
                saving = saver.save(path, full=chance.random() < 0.2, wait=False)
            except OSError:
                continue
            running.append((saving, path, state))
            if chance.random() < 0.5:
                look()
    look()
    saver.close()


def test_saves_under_a_reserve_take_no_other_memory(tmp_path):
    array, reserve = np.zeros(16 * MIB, "u1"), hugekit.Reserve(16 * MIB)
    saver = hugekit.Checkpointer([array], reserve=reserve, max_cow_bytes=16 * MIB)
    paths = []
    for number in range(4):
        paths.append(tmp_path / str(number))
        saving = saver.save(paths[-1], wait=False)
        array += 1
        saving.wait()
        assert (hugekit.load_checkpoint(paths)[0] == number).all()
