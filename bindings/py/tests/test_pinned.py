"""Pinned tensors. No GPU is needed: CUDA's registrations are recorded by an object in place of torch.cuda.cudart().

What a device sees of memory that is pinned, forked and given back is tested by engine/hugekit/tests/pinned.rs, with the
kernel as the device.
"""

import ctypes
import gc
import os
import resource
import subprocess
import sys
import threading

import hugekit
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install hugekit[torch]")
from hugekit import _pinned  # noqa: E402
from hugekit.torch import SnapshotStager, pinned  # noqa: E402

MIB = 1 << 20


class Cudart:
    """Records what would be registered, and can refuse the nth call."""

    def __init__(self):
        self.calls = []
        self.registered = {}
        self.refused = None
        self.error = 2
        self.unregister_error = 0
        # Called while a registration ends.
        self.at_end = lambda: None

    def cudaHostRegister(self, pointer, size, flags):
        self.calls.append("register")
        assert pointer % 4096 == 0 and size > 0 and flags == 1
        if self.calls.count("register") == self.refused:
            return self.error
        assert not any(pointer < start + length and start < pointer + size for start, length in self.registered.items())
        self.registered[pointer] = size
        return 0

    def cudaHostUnregister(self, pointer):
        self.calls.append("unregister")
        self.at_end()
        if not self.unregister_error:
            del self.registered[pointer]
        return self.unregister_error

    def cudaGetErrorString(self, error):
        return {2: "out of memory"}.get(error, "invalid argument")


@pytest.fixture
def cudart(monkeypatch):
    cudart = Cudart()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(_pinned, "_clear_error", lambda: cudart.calls.append("clear"))
    monkeypatch.setattr(torch._C, "_cuda_hasPrimaryContext", lambda device: device == 1, raising=False)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: cudart.calls.append(f"wait for {device}"))
    yield cudart
    assert not cudart.registered, "a test has left memory registered"


def in_use(pool):
    return pool.stats()["in_use"] * pool.page_size


@pytest.mark.parametrize("size", [(7,), ((7,),), (3, 4), ([3, 4],), (torch.Size([2, 3, 4]),), ((),), (np.int64(5),), (0,), ((5, 0),)])
@pytest.mark.parametrize("dtype", [None, torch.float16, torch.bfloat16, torch.bool, torch.complex128, torch.int64, torch.float8_e4m3fn])
def test_it_is_what_torch_zeros_makes(size, dtype, cudart, pool):
    expected = torch.zeros(*size, dtype=dtype)
    tensor = pinned(*size, dtype=dtype, pool=pool)
    assert (tensor.shape, tensor.dtype, tensor.stride()) == (expected.shape, expected.dtype, expected.stride())
    assert tensor.device.type == "cpu" and not tensor.view(torch.uint8 if tensor.dim() else dtype or torch.float32).any()
    tensor.fill_(1)
    assert sum(cudart.registered.values()) == tensor.nbytes


def test_all_is_registered_by_one_call_on_memory_of_the_pool(cudart, pool):
    tensor = pinned(3 * MIB + 5, dtype=torch.uint8, pool=pool)
    assert cudart.registered == {tensor.data_ptr(): 3 * MIB + 5} and cudart.calls == ["register"]
    region, offset = hugekit.region_of(tensor.numpy())
    assert offset == 0 and region.pool.capacity == pool.capacity and in_use(pool) >= tensor.nbytes
    assert pinned(10).numel() == 10  # of a process-wide pool


def test_pieces_lie_side_by_side_and_cover_all_of_it(cudart, pool):
    tensor = pinned(5 * MIB + 5, dtype=torch.uint8, pool=pool, piece=2 * MIB)
    start = tensor.data_ptr()
    assert cudart.registered == {start: 2 * MIB, start + 2 * MIB: 2 * MIB, start + 4 * MIB: MIB + 5}
    del tensor
    assert not cudart.registered


@pytest.mark.parametrize("piece", [0, -4096, 4095, MIB + 1])
def test_a_piece_that_would_share_pages_is_refused(piece, cudart):
    with pytest.raises(ValueError, match=f"piece is {piece} bytes, and must be a multiple"):
        pinned(MIB, piece=piece)
    assert not cudart.calls


@pytest.mark.parametrize(
    "derive",
    [
        lambda tensor: tensor[5:7],
        lambda tensor: tensor.view(torch.int32)[::2],
        lambda tensor: tensor.untyped_storage(),
        lambda tensor: tensor.numpy()[3:],
        lambda tensor: torch.nn.Parameter(tensor),
        lambda tensor: memoryview(tensor.numpy()),
    ],
)
def test_registrations_end_after_the_last_view_and_before_the_memory_is_free(derive, cudart, pool):
    seen = []
    tensor = pinned(4, MIB // 4, pool=pool, piece=2 * MIB)
    cudart.at_end = lambda: seen.append(in_use(pool))
    derived = derive(tensor)
    del tensor
    gc.collect()
    assert cudart.calls == ["register"] * 2 and in_use(pool) >= 4 * MIB
    del derived
    gc.collect()
    assert cudart.calls[2:] == ["wait for 1", "unregister", "unregister"] and not cudart.registered
    assert min(seen) >= 4 * MIB and in_use(pool) == 0
    assert not pool.zeros(4 * MIB, "u1").any()


def test_a_cycle_and_another_thread_can_delete_it(cudart, pool):
    cycle = [pinned(MIB, pool=pool)]
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert not cudart.registered
    tensors = [pinned(MIB, pool=pool)]
    thread = threading.Thread(target=tensors.clear)
    thread.start()
    thread.join()
    assert not cudart.registered and in_use(pool) == 0


@pytest.mark.parametrize("nth", [1, 2, 4])
@pytest.mark.parametrize("number, error", [(2, MemoryError), (1, RuntimeError)])
def test_a_refused_piece_ends_the_others_and_frees_the_memory(nth, number, error, cudart, pool, monkeypatch):
    cudart.refused, cudart.error = nth, number
    monkeypatch.setattr(resource, "getrlimit", lambda which: {resource.RLIMIT_MEMLOCK: (65536, 65536)}[which])
    with pytest.raises(error) as caught:
        pinned(4 * MIB, dtype=torch.uint8, pool=pool, piece=MIB)
    # While the error is still there.
    assert not cudart.registered and in_use(pool) == 0
    assert cudart.calls == ["register"] * nth + ["clear", "wait for 1"] + ["unregister"] * (nth - 1)
    said = f"CUDA did not pin {MIB} bytes at offset {(nth - 1) * MIB} of {4 * MIB}: {cudart.cudaGetErrorString(number)}"
    assert str(caught.value) == f"{said} (error {number}). RLIMIT_MEMLOCK is 65536 bytes"
    assert "remedy: pin less memory" in caught.value.__notes__[0]


def test_an_error_of_cuda_itself_is_said(pool, monkeypatch):
    """By its own runtime, which without a GPU refuses everything."""
    if torch.cuda.is_available() or not hasattr(torch._C, "_cudart"):
        pytest.skip("needs a PyTorch that was built for CUDA, on a machine without a GPU")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: torch._C._cudart)
    with pytest.raises(RuntimeError, match=r"CUDA did not pin \d+ bytes at offset 0 of \d+: [\w ]+ \(error \d+\)"):
        pinned(MIB, pool=pool)
    assert in_use(pool) == 0


def test_the_limit_may_be_none(cudart, pool, monkeypatch):
    cudart.refused = 1
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY,) * 2)
    with pytest.raises(MemoryError, match="RLIMIT_MEMLOCK is unlimited"):
        pinned(MIB, pool=pool)


def test_memory_that_cannot_be_unregistered_is_never_given_back(serves, cudart, pool, monkeypatch):
    monkeypatch.setattr(_pinned, "_kept", [])
    tensor = pinned(MIB, dtype=torch.uint8, pool=pool)
    region, _ = hugekit.region_of(tensor.numpy())
    cudart.unregister_error = 1
    with pytest.warns(RuntimeWarning, match=rf"did not unpin {MIB} bytes, which are kept.*invalid argument \(error 1\)"):
        del tensor
    assert region.fork().shared_bytes == 0
    del region
    assert in_use(pool) >= MIB
    cudart.registered.clear()


def test_memory_that_a_gpu_may_still_write_is_never_given_back(cudart, pool, monkeypatch):
    monkeypatch.setattr(_pinned, "_kept", [])

    def refuse(device):
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    monkeypatch.setattr(torch.cuda, "synchronize", refuse)
    tensor = pinned(MIB, dtype=torch.uint8, pool=pool)
    with pytest.warns(RuntimeWarning, match="stream is capturing"):
        del tensor
    assert in_use(pool) >= MIB and "unregister" not in cudart.calls
    cudart.registered.clear()


def test_a_registration_that_cuda_has_forgotten_is_over(cudart, pool):
    tensor = pinned(MIB, pool=pool)
    cudart.unregister_error = 713
    del tensor
    assert in_use(pool) == 0
    cudart.registered.clear()


def test_without_cuda_nothing_is_pinned(pool, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"no memory can be pinned.*is_available\(\) is False.*torch.from_numpy"):
        pinned(MIB, pool=pool)
    assert pool.stats()["allocations"] == 0


def test_a_shortage_in_the_pool_registers_nothing(cudart, pool):
    with pytest.raises(MemoryError):
        pinned(17 * MIB, dtype=torch.uint8, pool=pool)
    assert not cudart.calls


def test_forks_and_snapshots_copy_it_at_once_and_leave_it_its_pages(serves, cudart):
    pool = hugekit.Pool(16 << 20, backing="base")
    tensor = pinned(MIB, pool=pool).fill_(1)
    region, _ = hugekit.region_of(tensor.numpy())
    fork = hugekit.fork(tensor.numpy())
    assert region.shared_bytes == 0
    with hugekit.snapshot(tensor) as moment:
        assert region.shared_bytes == 0
        tensor.fill_(2)
        assert float(moment.to_numpy().max()) == 1
    assert float(fork.max()) == 1 and float(tensor.min()) == 2
    del fork, region
    del tensor
    assert not cudart.registered and in_use(pool) == 0


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_checkpoints_of_it_have_what_was_there(serves, cudart, tmp_path, monkeypatch):
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    tensor = pinned(MIB).fill_(1)
    # PyTorch itself would look for the GPU.
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    stager = SnapshotStager()
    saving = dcp.async_save({"t": tensor}, checkpoint_id=tmp_path / "dcp", async_stager=stager, no_dist=True)
    with hugekit.Checkpointer({"t": tensor}) as saver:
        saver.save(tmp_path / "0")
        tensor.fill_(2)
        saving.upload_completion.result(60)
        saver.save(tmp_path / "1")
    stager.close()
    staged = {"t": torch.zeros(MIB)}
    dcp.load(staged, checkpoint_id=tmp_path / "dcp", no_dist=True)
    first = hugekit.load_checkpoint(tmp_path / "0")
    second = hugekit.load_checkpoint([tmp_path / "0", tmp_path / "1"])
    for state, value in (staged, 1), (first, 1), (second, 2):
        assert bool((state["t"] == value).all())
    del tensor, saver, saving, stager
    assert not cudart.registered


def test_a_forked_child_ends_nothing(cudart, pool):
    tensor = pinned(MIB, pool=pool)
    child = os.fork()
    if child == 0:
        cudart.calls.clear()
        del tensor
        gc.collect()
        os._exit(len(cudart.calls))
    assert os.waitpid(child, 0)[1] == 0
    assert cudart.registered
    del tensor


def test_nothing_is_unregistered_when_the_interpreter_ends():
    """CUDA may be gone then."""
    code = """
import os
class Cudart:
    def cudaHostRegister(self, pointer, size, flags):
        return 0
    def cudaHostUnregister(self, pointer):
        os.write(1, b"unregistered ")
        return 0
import torch
from hugekit.torch import pinned
cudart = Cudart()
torch.cuda.is_available = lambda: True
torch.cuda.cudart = lambda: cudart
torch.cuda.device_count = lambda: 0
pinned(1 << 20)
kept = [pinned(1 << 20), pinned(1 << 20)]
kept.append(kept)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "unregistered ", "")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU was found")
def test_a_gpu_copies_from_and_to_it():
    tensor = pinned(4 << 20, dtype=torch.float32)
    assert tensor.is_pinned() and tensor[5:].is_pinned() and tensor.view(torch.int32).is_pinned()
    tensor.copy_(torch.arange(4 << 20))
    there = tensor.to("cuda", non_blocking=True)
    there += 1
    tensor.copy_(there, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(tensor, torch.arange(4 << 20, dtype=torch.float32) + 1)
    copied = torch.empty_like(there)
    copied.copy_(tensor, non_blocking=True)
    del tensor  # waits for the copy
    assert torch.equal(copied, there)
