"""States of which every byte is rewritten while they are saved: none is lost by default, and each file holds what was."""

import os
import pathlib
import re
import subprocess
import sys

import hugekit
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("serves")

MIB = 1 << 20
ROOT = pathlib.Path(__file__).parents[3]


def programs():
    """Those of the pages that save something."""
    for page in ["README.md", "docs/python.md", "bindings/py/README.md"]:
        found = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
        saving = [program for program in found if "snapshot(" in program or "Checkpointer(" in program]
        assert saving
        for number, program in enumerate(saving):
            yield pytest.param(program, id=f"{page} {number}")


@pytest.mark.parametrize("program", list(programs()))
def test_a_program_of_a_page_with_a_state_of_any_size(program, size, tmp_path):
    """Its arrays are made so big; those that it changes in part are rewritten as a whole."""
    larger, count = re.subn(r"\(4096, (4096|1024)\)", lambda shape: f"({size // 4 // int(shape[1])}, {shape[1]})", program)
    assert count > 0
    larger = re.sub(r'(saver\.save\([^\n]*wait=False\)[^\n]*)', r'\1; state["weights"] *= 0.5; state["weights"] *= 2', larger)
    done = subprocess.run([sys.executable, "-c", larger], capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def state_of(size):
    """Arrays that lie apart in memory, as those of a model do."""
    return {name: np.full(size // 3 // 4, number, "f4") for number, name in enumerate("abc")}


def rewrite(arrays):
    for array in arrays.values():
        array += 10


def assert_is(found, arrays):
    assert found.keys() == arrays.keys()
    for number, name in enumerate("abc"):
        assert found[name].size == arrays[name].size and (found[name] == number).all(), name


@pytest.mark.parametrize("reserve", [None, 16 * MIB, 2.0], ids=["no reserve", "16 MiB", "more than the state"])
@pytest.mark.parametrize("fault_mode", ["threaded", "in place"])
def test_a_snapshot_holds_what_was_before_everything_was_rewritten(size, fault_mode, reserve, tmp_path):
    arrays = state_of(size)
    reserve = None if reserve is None else hugekit.Reserve(int(reserve if reserve > 8 else reserve * size))
    try:
        moment = hugekit.snapshot(arrays, fault_mode=fault_mode, reserve=reserve)
    except PermissionError as refused:
        pytest.skip(str(refused))
    # Nothing was read yet: all of it is held.
    rewrite(arrays)
    if reserve is not None:
        assert moment.stats()["reserved"] >= min(reserve.nbytes, size) - 3 * MIB
    moment.savez(tmp_path / "state.npz")
    with np.load(tmp_path / "state.npz") as found:
        assert_is(dict(found), arrays)


@pytest.mark.parametrize("reserve", [None, 16 * MIB], ids=["no reserve", "16 MiB"])
def test_a_checkpoint_holds_what_was_before_everything_was_rewritten(size, reserve, tmp_path):
    arrays = state_of(size)
    with hugekit.Checkpointer(arrays, reserve=reserve and hugekit.Reserve(reserve)) as saver:
        for path in ("0.delta", "1.delta"):
            save_what_is_rewritten(saver, arrays, tmp_path / path)
    assert_is(hugekit.load_checkpoint([tmp_path / "0.delta", tmp_path / "1.delta"]), arrays)


def save_what_is_rewritten(saver, arrays, path):
    """Everything is rewritten before any of it is read, and then again what it was."""
    _, moment, *_ = saver._take(*saver._described(), False)
    rewrite(arrays)
    saver._layout.chain.write(moment, path, False)
    for array in arrays.values():
        array -= 10


def test_a_view_shows_what_was_before_everything_was_rewritten(size):
    arrays = state_of(size)
    with hugekit.snapshot(arrays) as moment:
        views = moment.view()
        rewrite(arrays)
        assert_is({name: np.asarray(view) for name, view in views.items()}, arrays)


@pytest.mark.parametrize("arrays", [1, 3])
def test_the_example_that_saves_while_it_trains(size, arrays, tmp_path):
    """Each step rewrites an array."""
    size = f"{size / (1 << 30)}", "--touched", f"{size // MIB}", "--arrays", f"{arrays}"
    example = ROOT / "bindings/py/examples/checkpoint.py"
    command = [sys.executable, example, "--rounds", "1", "--steps", "2", "--folder", tmp_path, "--no-reserve", "--gigabytes", *size]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0 and "byte for byte" in done.stdout, done.stdout + done.stderr


def test_a_reserve_counts_whatever_the_limit_is():
    arrays = state_of(24 * MIB)
    with hugekit.snapshot(arrays, max_cow_bytes=2 * MIB, reserve=hugekit.Reserve(24 * MIB)) as moment:
        rewrite(arrays)
        assert_is(moment.to_numpy(), arrays)


@pytest.mark.parametrize("options", [{"max_cow_bytes": 8 * MIB}, {"max_cow_bytes": 2 * MIB, "reserve": 24 * MIB}], ids=str)
def test_the_limit_of_a_checkpointer_is_one_of_each_array_and_a_reserve_counts(options, tmp_path):
    arrays = state_of(24 * MIB)
    options = options | ({"reserve": hugekit.Reserve(options["reserve"])} if "reserve" in options else {})
    with hugekit.Checkpointer(arrays, **options) as saver:
        for path in ("0.delta", "1.delta"):
            save_what_is_rewritten(saver, arrays, tmp_path / path)
    assert_is(hugekit.load_checkpoint([tmp_path / "0.delta", tmp_path / "1.delta"]), arrays)


def test_a_lost_snapshot_names_an_option_and_a_value_that_works(tmp_path):
    array = np.zeros(24 * MIB, "u1")

    def lost(save):
        with pytest.raises(hugekit.SnapshotLost, match="written faster") as caught:
            save()
        return caught.value

    moment = hugekit.snapshot(array, max_cow_bytes=2 * MIB)
    array[:] = 1
    error = lost(lambda: moment.save_npy(tmp_path / "array.npy"))
    (remedy,) = [note for note in error.__notes__ if note.startswith("remedy: set max_cow_bytes to ")]
    works = int(re.search(r"to (\d+),", remedy)[1])
    with hugekit.snapshot(array, max_cow_bytes=works) as moment:
        array[:] = 2
        assert (moment.to_numpy() == 1).all()


@pytest.fixture
def group():
    """A control group that permits 500 MiB of memory."""
    for mount, limit, more in (("memory", "memory.limit_in_bytes", []), ("", "memory.max", ["memory.swap.max"])):
        path = pathlib.Path("/sys/fs/cgroup", mount, f"hugekit-test-{os.getpid()}")
        try:
            path.mkdir()
        except OSError:
            continue
        try:
            (path / limit).write_text(str(500 * MIB))
            [(path / name).write_text("0") for name in more if (path / name).exists()]
            yield path
            return
        except OSError:
            pass
        finally:
            path.rmdir()
    pytest.skip("no control group of memory can be made here")


IN_A_GROUP = """
import os, sys
open(sys.argv[1] + "/cgroup.procs", "w").write(str(os.getpid()))
import hugekit, numpy as np
arrays = [np.ones(100 << 20, "u1") for _ in range(3)]

def lost(read):
    for array in arrays:
        array += 1
    try:
        read()
    except hugekit.SnapshotLost as error:
        (remedy,) = error.__notes__
        assert "are available" in remedy and "max_cow_bytes" not in remedy, remedy
    else:
        raise AssertionError("there was memory")

moment = hugekit.snapshot(arrays)
lost(moment.to_numpy)
del moment
saver = hugekit.Checkpointer(arrays)
_, moment, *_ = saver._take(*saver._described(), False)
lost(lambda: saver._layout.chain.write(moment, sys.argv[2], False))
"""


def test_a_group_whose_memory_does_not_suffice_for_copies_loses_the_snapshot_and_not_the_process(group, tmp_path):
    done = subprocess.run([sys.executable, "-c", IN_A_GROUP, group, tmp_path / "0"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
