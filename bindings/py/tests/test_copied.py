"""What cannot be protected is copied at once, at the moment of the rest, and counted; with strict it is refused."""

import io
import mmap
import multiprocessing.shared_memory
import os
import subprocess
import sys

import hugekit
import numpy as np
import pytest

try:
    import torch
except ImportError:
    torch = None

MIB = 1 << 20
COUNT = MIB // 2
needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed: pip install hugekit[torch]")
GAPS = "its elements do not lie side by side"
SHARED = "it is shared, and others could write to it"
FILE = "it maps a file"


def written(path):
    np.arange(COUNT, dtype="f8").tofile(path)
    return path


def arrays(tmp_path):
    """Arrays that cannot be protected, all of them larger than what is always copied, and the reasons."""
    path = written(tmp_path / "file")
    np.save(tmp_path / "file.npy", np.arange(COUNT, dtype="f8"))
    base = np.arange(4 * COUNT, dtype="f8")
    held = multiprocessing.shared_memory.SharedMemory(create=True, size=4 * MIB)
    held.unlink()
    # The arrays on it are there when it goes.
    held.close = lambda: None
    image = hugekit.Image.load(path)
    found = {
        "memmap r+": (np.memmap(path, "f8", "r+"), SHARED),
        "memmap c": (np.memmap(path, "f8", "c"), FILE),
        "memmap r": (np.memmap(path, "f8", "r"), SHARED),
        "load c": (np.load(tmp_path / "file.npy", mmap_mode="c"), FILE),
        "mmap": (np.frombuffer(mmap.mmap(-1, 4 * MIB), "u1"), SHARED),
        "private mmap": (np.frombuffer(mmap.mmap(os.open(path, os.O_RDONLY), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE), "f8"), FILE),
        "shared_memory": (np.frombuffer(held.buf, "u1"), SHARED),
        "zeros shared": (hugekit.zeros(COUNT, shared=True), SHARED),
        "image": (np.frombuffer(image.map(), "f8"), FILE),
        "step": (base[::2], GAPS),
        "backwards": (base[COUNT:2 * COUNT][::-1], GAPS),
        "columns": (base.reshape(2048, 1024)[:, 100:900], GAPS),
        "axes": (base.reshape(128, 128, 128).transpose(0, 2, 1), GAPS),
        "repeated": (np.broadcast_to(base[:1000], (300, 1000)), GAPS),
        "field": (np.ones(COUNT, [("a", "i1"), ("b", "f8")])["b"], GAPS),
        "dates": (np.arange(COUNT).astype("M8[s]")[::-3], GAPS),
        "records": (np.ones(COUNT, [("a", "i1"), ("b", "f4")])[::2], GAPS),
    }
    found["keep"] = (np.ones(2 * MIB), None)
    found["small"] = (np.ones(3), None)
    return found


def change(array):
    if array.flags.writeable:
        array.view("u1" if array.flags.c_contiguous else array.dtype)[...] = np.zeros((), "u1" if array.flags.c_contiguous else array.dtype)


def test_a_snapshot_copies_and_says_so(tmp_path, serves):
    found = arrays(tmp_path)
    state = {name: array for name, (array, _) in found.items()}
    before = {name: array.copy() for name, array in state.items()}
    reasons = {name: reason for name, (_, reason) in found.items() if reason}
    moments = [hugekit.snapshot(state) for _ in range(4)]
    for moment in moments:
        assert moment.copied == reasons
        assert moment.copied_bytes == sum(state[name].nbytes for name in reasons)
        assert moment.serving is not None
    for array in state.values():
        change(array)
    views = moments[0].view()
    for name, array in moments[1].to_numpy().items():
        for shown in (array, np.asarray(views[name])):
            assert shown.dtype == before[name].dtype and shown.shape == before[name].shape
            assert shown.tobytes() == before[name].tobytes(), name
    file = io.BytesIO()
    moments[2].write_to(file)
    assert file.getvalue() == b"".join(array.tobytes() for array in before.values())
    moments[3].savez(tmp_path / "saved")
    with np.load(tmp_path / "saved.npz") as saved:
        assert all(saved[name].tobytes() == before[name].tobytes() for name in state)
    moments[0].prepare_write()


def test_a_copy_is_of_the_same_bytes_as_by_numpy(tmp_path, serves):
    found = arrays(tmp_path)
    for array, _ in found.values():
        hugekit.snapshot(array).save_npy(tmp_path / "h.npy")
        np.save(tmp_path / "n.npy", np.asarray(array))
        assert (tmp_path / "h.npy").read_bytes() == (tmp_path / "n.npy").read_bytes()


def test_strict_refuses_each_by_its_name(tmp_path, serves):
    found = arrays(tmp_path)
    for name, (array, reason) in found.items():
        for use in (
            lambda: hugekit.snapshot(array, strict=True),
            lambda: hugekit.snapshot({"own": np.ones(MIB), "x": array}, strict=True),
            lambda: hugekit.Checkpointer({"own": np.ones(MIB), "x": array}, strict=True).save(tmp_path / "s"),
        ):
            if reason is None or name == "axes" and "Checkpointer" in use.__code__.co_names:
                # A checkpoint has the order of the axes.
                use()
            else:
                with pytest.raises(ValueError if reason == GAPS else OSError, match="contiguous|side by side|gaps|cannot be snapshotted"):
                    use()


def test_a_checkpointer_copies_at_each_save(tmp_path, serves):
    found = arrays(tmp_path)
    # One file under one address: what is shared is stored once.
    state = {name: array for name, (array, _) in found.items()}
    # A checkpoint has the order of the axes.
    reasons = {name: reason for name, (_, reason) in found.items() if reason and name != "axes"}
    paths = []
    with hugekit.Checkpointer(state) as saver:
        for step in range(3):
            saving = saver.save(tmp_path / str(step), wait=False)
            before = {name: array.copy() for name, array in state.items()}
            for name in ("memmap r+", "step", "keep", "mmap"):
                state[name][step * 1000 : step * 1000 + 7] = step + 50
            saved = saving.wait()
            assert saved.copied == reasons and saved.copied_bytes == sum(state[name].nbytes for name in reasons)
            assert saved.is_full == (step == 0), saved.reason
            paths.append(saved.path)
            loaded = hugekit.load_checkpoint(paths)
            for name, array in before.items():
                assert loaded[name].dtype == array.dtype and loaded[name].tobytes() == array.tobytes(), (step, name)
        assert saved.written < 1 * MIB
        # After one that failed, each is copied once.
        with pytest.raises(FileNotFoundError):
            saver.save(tmp_path / "absent" / "x")
        again = saver.save(tmp_path / "again")
        assert again.is_full and again.copied == reasons
        assert hugekit.load_checkpoint(again.path)["memmap r+"].tobytes() == state["memmap r+"].tobytes()
    writable = {name: array for name, array in state.items() if array.flags.writeable}
    hugekit.Checkpointer(writable).save(tmp_path / "all")
    before = {name: array.copy() for name, array in writable.items()}
    for array in writable.values():
        change(array)
    hugekit.restore(tmp_path / "all", writable)
    for name, array in writable.items():
        assert array.tobytes() == before[name].tobytes(), name
    with pytest.raises(ValueError, match="read-only"):
        hugekit.Checkpointer({"x": state["repeated"]}).save(tmp_path / "r")
        hugekit.restore(tmp_path / "r", {"x": state["repeated"]})


def test_memory_that_becomes_unsuitable_is_copied_from_then_on(tmp_path, serves):
    """Its pages are replaced by those of a file; the chain goes on with a full file, and then with deltas."""
    import ctypes

    memory = mmap.mmap(-1, 8 * MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    array = np.frombuffer(memory, "f8")
    array[:] = 1
    with hugekit.Checkpointer({"x": array}) as saver:
        assert saver.save(tmp_path / "0").copied == {}
        written(tmp_path / "file")
        with open(tmp_path / "file", "r+b") as file:
            file.truncate(8 * MIB)
            libc = ctypes.CDLL(None, use_errno=True)
            libc.mmap.restype = ctypes.c_void_p
            libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
            assert libc.mmap(array.ctypes.data, 8 * MIB, 3, mmap.MAP_PRIVATE | 0x10, file.fileno(), 0) == array.ctypes.data
        second = saver.save(tmp_path / "1")
        assert second.is_full and second.copied == {"x": FILE}
        array[5] = 77
        third = saver.save(tmp_path / "2")
        assert not third.is_full and third.copied == {"x": FILE} and third.written < 100_000
        loaded = hugekit.load_checkpoint([tmp_path / "1", tmp_path / "2"])["x"]
        assert loaded.tobytes() == array.tobytes() and loaded[5] == 77 and loaded[6] == 6


MERGEABLE = """
import ctypes, sys
if ctypes.CDLL(None).prctl(67, 1, 0, 0, 0):
    sys.exit(77)
import numpy as np, hugekit
array = np.ones(1 << 20)
for mode in (None, "in place"):
    moment = hugekit.snapshot(array, fault_mode=mode)
    array += 1
    print(moment.copied, (moment.to_numpy() == array - 1).all())
with hugekit.Checkpointer({"x": array}) as saver:
    saver.save(sys.argv[1] + "/0"); array[3] = 0
    saved = saver.save(sys.argv[1] + "/1")
    print(saved.is_full, saved.copied)
# The program's memory is as it was.
print(" mg" in "".join(line for line in open("/proc/self/smaps") if line.startswith("VmFlags")))
try:
    hugekit.snapshot(array, strict=True)
except OSError as error:
    print(error, error.__notes__)
"""


def test_memory_that_may_be_merged_is_copied(tmp_path, serves):
    done = subprocess.run([sys.executable, "-c", MERGEABLE, tmp_path], capture_output=True, text=True)
    if done.returncode == 77:
        pytest.skip("this kernel merges no pages of a process (PR_SET_MEMORY_MERGE, Linux 6.4)")
    reason = "the kernel may merge its pages with equal ones (KSM)"
    lines = done.stdout.splitlines()
    assert lines[:2] == [f"{{'arr_0': '{reason}'}} True"] * 2, (done.stdout, done.stderr)
    assert lines[2:4] == [f"False {{'x': '{reason}'}}", "True"]
    assert reason in lines[4] and "PR_SET_MEMORY_MERGE" in lines[4]


LIMITED = """
import resource, sys, numpy as np, hugekit
array = np.ones(300 << 20, "u1")
fields = dict(line.split(":") for line in open("/proc/self/status") if line.startswith("Vm"))
which, used = {"AS": (resource.RLIMIT_AS, "VmSize"), "DATA": (resource.RLIMIT_DATA, "VmData")}[sys.argv[1]]
limit = (int(fields[used].split()[0]) << 10) + (200 << 20)
resource.setrlimit(which, (limit, resource.RLIM_INFINITY))
with hugekit.snapshot(array) as moment:
    array[0] = 2
    print(moment.stats()["cap"] >> 20)
with hugekit.Checkpointer({"a": array}) as saver:
    print(saver.save(sys.argv[2] + "/0").is_full)
    array[7] = 2
    print(saver.save(sys.argv[2] + "/1").is_full)
try:
    hugekit.snapshot(array, max_cow_bytes=300 << 20)
except MemoryError as error:
    print(error, error.__notes__)
"""


@pytest.mark.parametrize("which", ["AS", "DATA"])
def test_a_process_with_few_addresses_has_a_smaller_limit(which, tmp_path, serves):
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", LIMITED, which, tmp_path], capture_output=True, text=True, env=environment)
    cap, first, second, *refused = done.stdout.splitlines()
    assert 64 <= int(cap) <= 100 and (first, second) == ("True", "False"), (done.stdout, done.stderr)
    assert f"RLIMIT_{which} (ulimit -{'v' if which == 'AS' else 'd'}), which leaves" in refused[0]


@needs_torch
def test_weights_that_map_their_file(tmp_path, serves):
    from hugekit.torch import SnapshotStager

    linear = torch.nn.Linear(1024, 1024)
    torch.save(linear.state_dict(), tmp_path / "l.pt")
    linear.load_state_dict(torch.load(tmp_path / "l.pt", mmap=True), assign=True)
    shared = torch.ones(MIB).share_memory_()
    conv = torch.nn.Conv2d(256, 256, 3).to(memory_format=torch.channels_last)
    state = {"linear": linear.state_dict(), "shared": shared, "conv": conv.state_dict(), "own": torch.ones(MIB), "part": torch.ones(2 * MIB)[::2]}
    with torch.no_grad():
        linear.weight.add_(1)
    flat = {"weight": linear.weight, "shared": shared, "conv": conv.weight, "part": state["part"]}
    moment = hugekit.snapshot(flat)
    assert moment.copied == {"weight": FILE, "shared": SHARED, "conv": GAPS, "part": GAPS}
    before = {name: tensor.detach().clone() for name, tensor in flat.items()}
    stager = SnapshotStager()
    staging = stager.stage(state)
    with torch.no_grad():
        [tensor.zero_() for tensor in flat.values()]
    staged = staging.result()
    assert stager.copied == {"linear.weight": FILE, "shared": SHARED} and stager.copied_bytes >= 8 * MIB
    assert torch.equal(staged["linear"]["weight"], before["weight"]) and torch.equal(staged["part"], before["part"])
    assert staged["conv"]["weight"].is_contiguous(memory_format=torch.channels_last)
    for name, array in moment.to_numpy().items():
        assert (array == before[name].numpy()).all() and array.shape == tuple(before[name].shape)
    stager.stage({"own": state["own"]}).result()
    assert stager.copied == {} and stager.copied_bytes == 0
    strict = SnapshotStager(strict=True)
    with pytest.raises(OSError, match="cannot be snapshotted"):
        strict.stage(state)
    stager.close()
    with hugekit.Checkpointer(state) as saver:
        saved = saver.save(tmp_path / "0")
        assert saved.copied == {"linear.weight": FILE, "shared": SHARED, "part": GAPS}
        state["shared"][5] = 3
        assert not saver.save(tmp_path / "1").is_full
    loaded = hugekit.load_checkpoint([tmp_path / "0", tmp_path / "1"])
    assert loaded["shared"][5] == 3 and loaded["conv"]["weight"].is_contiguous(memory_format=torch.channels_last)


@needs_torch
def test_a_safetensors_model_is_saved(tmp_path, serves):
    safetensors = pytest.importorskip("safetensors.torch")
    from hugekit.torch import SnapshotStager

    safetensors.save_file({f"w{number}": torch.full((MIB,), float(number)) for number in range(4)}, tmp_path / "m.safetensors")
    loaded = safetensors.load_file(tmp_path / "m.safetensors")
    assert len(hugekit.snapshot(loaded).copied) in (0, 4)
    saved = hugekit.Checkpointer(loaded).save(tmp_path / "m.delta")
    again = hugekit.load_checkpoint(saved.path)
    stager = SnapshotStager()
    staged = stager.stage(loaded).result()
    stager.close()
    for name, tensor in loaded.items():
        assert torch.equal(again[name], tensor) and torch.equal(staged[name], tensor)
