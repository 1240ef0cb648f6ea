"""Arrays that forked children keep."""

import gc
import pickle
import subprocess
import sys

import hugekit
import numpy as np
import pytest


def succeeds(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("nbytes", [8, 1 << 20, 5 << 20])
@pytest.mark.parametrize("order", ["C", "F"])
def test_they_are_zeros_of_their_own_memory(nbytes, order):
    array = hugekit.zeros((nbytes // 8, 1), "f8", order=order, shared=True)
    assert not array.any() and array.flags.writeable and array.flags.f_contiguous
    array += 1
    assert array.sum() == array.size
    like = hugekit.zeros_like(array, "f4", shared=True)
    assert like.shape == array.shape and like.dtype == np.float32 and "SharedMemory" in repr(like.base)
    assert "SharedMemory" in repr(hugekit.empty_like(array, shared=True).base)
    assert "SharedMemory" in repr(hugekit.empty(3, shared=True).base)
    assert hugekit.zeros((0, 5), shared=True).shape == (0, 5)


def test_what_they_cannot_do_is_refused_with_the_way(pool, serves):
    array = hugekit.zeros(1 << 20, shared=True)
    with pytest.raises(ValueError, match="leave out one"):
        hugekit.zeros(5, pool=pool, shared=True)
    with pytest.raises(ValueError, match="not shared"):
        hugekit.fork(array)
    with pytest.raises(ValueError, match="unless they are shared"):
        hugekit.region_of(array)
    with pytest.raises(OSError, match="shared") as caught:
        hugekit.snapshot(array, strict=True)
    assert any("copy" in note for note in caught.value.__notes__)
    hugekit.clear(array)
    hugekit.copy(array, np.ones_like(array))
    assert array.sum() == array.size


def test_pickled_they_are_copies():
    array = hugekit.zeros(1000, shared=True)
    copy = pickle.loads(pickle.dumps(array))
    copy += 1
    assert array.sum() == 0 and copy.sum() == 1000


def test_the_memory_goes_when_the_array_goes():
    def mapped():
        return open("/proc/self/maps").read().count("hugekit:shared")

    gc.collect()
    before = mapped()
    array = hugekit.zeros(1 << 20, shared=True)
    row = array[5:10]
    assert mapped() == before + 1
    del array
    gc.collect()
    assert mapped() == before + 1
    del row
    gc.collect()
    assert mapped() == before


def test_what_a_forked_child_writes_the_parent_reads():
    succeeds("""
import gc, os, hugekit
array, pooled = hugekit.zeros(1 << 20, shared=True), hugekit.zeros(1000)
array[0] = 1
child = os.fork()
if child == 0:
    array[1] = array[0] + 1
    del array
    gc.collect()
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
assert array[:3].tolist() == [1, 2, 0]
""")


def test_a_pool_of_forked_workers_fills_an_array():
    succeeds("""
import multiprocessing, hugekit
array = hugekit.zeros((8, 100_000), shared=True)
def work(row):
    array[row] = row
with multiprocessing.get_context("fork").Pool(2) as workers:
    workers.map(work, range(8))
assert [int(row.min()) for row in array] == [int(row.max()) for row in array] == list(range(8))
""")


def test_workers_of_a_data_loader_read_and_write_it():
    pytest.importorskip("torch", reason="torch is not installed: pip install hugekit[torch]")
    succeeds("""
import hugekit, torch
class Samples(torch.utils.data.Dataset):
    def __init__(self, samples):
        self.samples = samples
        self.seen = torch.from_numpy(hugekit.zeros(len(samples), "i8", shared=True))
    def __len__(self):
        return len(self.samples)
    def __getitem__(self, index):
        self.seen[index] += 1
        return self.samples[index]
array = hugekit.zeros((64, 1000), "f4", shared=True)
array += range(1000)
samples = Samples(torch.from_numpy(array))
loader = torch.utils.data.DataLoader(samples, batch_size=8, num_workers=2, multiprocessing_context="fork")
assert sum(float(batch.sum()) for batch in loader) == float(array.sum())
assert samples.seen.tolist() == [1] * 64
""")
