"""Workers, as those of a DataLoader: forked or spawned, while the parent allocates, takes snapshots and saves.

Each program runs in a process of its own, and each child has an alarm: nothing hangs.
"""

import subprocess
import sys

import hugekit
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("serves")

METHODS = ["fork", "spawn", "forkserver"]


def succeeds(code, *arguments, folder):
    """As a program of its own, which start methods other than fork import in their workers."""
    program = folder / "program.py"
    program.write_text(code)
    command = [sys.executable, "-W", "ignore::DeprecationWarning", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=folder)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


BUSY = """
import gc, os, signal, threading
import hugekit, numpy as np

MIB = 1 << 20
saved, taken, copied = (np.ones(4 * MIB, "u1") for _ in range(3))
saver, reserve = hugekit.Checkpointer({"saved": saved, "small": np.ones(5)}), hugekit.Reserve(2 * MIB)
stop = threading.Event()

def save():
    saver.save("parent", fsync=False)
    saved[::4096] += 1

def take():
    with hugekit.snapshot(taken, reserve=reserve) as moment:
        taken[::4096] += 1
        moment.to_numpy()

def allocate():
    array = hugekit.zeros(3 * MIB, "u1")
    other = hugekit.fork(array)
    other += 1

def copy():
    hugekit.copy(copied, copied.copy(), threads=2)

def until_stopped(work):
    while not stop.is_set():
        work()

def child():
    signal.alarm(100)
    array = hugekit.zeros(2 * MIB, "u1")
    array += 1
    was = saved.copy()
    with hugekit.snapshot(saved, reserve=reserve) as moment:
        saved[:] = 0
        assert (moment.to_numpy() == was).all()
    assert saver.save("child").is_full
    saved[:5] = 1
    assert not saver.save("child.1", wait=False).wait().is_full
    hugekit.copy(copied, copied.copy(), threads=2)
    other = hugekit.fork(array)
    other[:] = 3
    assert (array == 1).all()
    saver.close()
    hugekit.trim()
    gc.collect()

threads = [threading.Thread(target=until_stopped, args=(work,)) for work in (save, take, allocate, copy)]
[thread.start() for thread in threads]
try:
    for _ in range(20):
        process = os.fork()
        if process == 0:
            try:
                child()
                os._exit(0)
            except BaseException as error:
                print(repr(error), flush=True)
                os._exit(1)
        assert os.waitpid(process, 0)[1] == 0
finally:
    stop.set()
    [thread.join() for thread in threads]
"""


def test_children_of_a_process_whose_threads_are_busy_work(tmp_path):
    succeeds(BUSY, folder=tmp_path)


UNDER_WAY = """
import os, signal, sys, threading
import hugekit, numpy as np

big = np.ones(64 << 20, "u1")
saver = hugekit.Checkpointer([big])
os.mkfifo("pipe")
saving = {saving}
process = os.fork()
if process == 0:
    signal.alarm(60)
    refused = 0
    for ask in (saving.wait, lambda: saving.wait(5), saving.done):
        try:
            ask()
        except RuntimeError as error:
            assert "forked" in str(error), error
            refused += 1
    assert repr(saving) == "<hugekit.Saving, under way>"
    assert saver.save("child").is_full
    saver.close()
    os._exit(0 if refused == 3 else 1)
assert os.waitpid(process, 0)[1] == 0
gate.set()
assert saving.wait().is_full and saving.done() and "done" in repr(saving)
process = os.fork()
if process == 0:
    signal.alarm(60)
    os._exit(0 if saving.wait().is_full and saving.done() else 1)
assert os.waitpid(process, 0)[1] == 0
"""


def test_a_save_that_is_under_way_is_not_waited_for_in_a_forked_child(tmp_path):
    # Its thread goes on when the parent says so.
    held = """None
gate = threading.Event()
from hugekit import _checkpoints
class Chain:
    def __init__(self, chain):
        self.chain = chain
    def __getattr__(self, name):
        return getattr(self.chain, name)
    def write(self, *arguments):
        gate.wait()
        return self.chain.write(*arguments)
array_chain = _checkpoints.ArrayChain
_checkpoints.ArrayChain = lambda *arguments: Chain(array_chain(*arguments))
saving = saver.save("parent", wait=False)
_checkpoints.ArrayChain = array_chain
"""
    succeeds(UNDER_WAY.replace("{saving}", held), folder=tmp_path)


SENT = """
import multiprocessing, sys
import hugekit, numpy as np

def work(array):
    return float(np.asarray(array).sum())

if __name__ == "__main__":
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as workers:
        pooled, shared = hugekit.zeros(1000), hugekit.zeros(1000, shared=True)
        pooled += 1
        shared += 2
        assert workers.map(work, [pooled, shared, pooled[5:]]) == [1000, 2000, 995]
        array = np.ones(1 << 20)
        with hugekit.snapshot(array) as moment, hugekit.Checkpointer([array]) as saver:
            things = [moment, moment.view(), saver, saver.save("0", wait=False), hugekit.Reserve(1), hugekit.region_of(pooled)[0]]
            for thing in [*things, hugekit.Pool(2 << 20, backing="base")]:
                try:
                    workers.map(work, [thing])
                except TypeError as refused:
                    assert type(thing).__name__ in str(refused), refused
                else:
                    raise AssertionError(f"{thing} was sent")
"""


@pytest.mark.parametrize("method", METHODS)
def test_arrays_are_sent_as_copies_and_what_stays_in_its_process_is_refused(method, tmp_path):
    succeeds(SENT, method, folder=tmp_path)


LOADER = """
import sys, warnings
warnings.simplefilter("ignore")
import hugekit, numpy as np, torch

class Samples(torch.utils.data.Dataset):
    def __init__(self, samples, held=None):
        self.samples, self.held = samples, held
    def __len__(self):
        return len(self.samples)
    def __getitem__(self, index):
        # Read first: a worker's own pool may get the addresses of one that it has not inherited.
        sample = self.samples[index].clone()
        # All that a worker may do for itself.
        room = torch.from_numpy(hugekit.zeros(sample.shape, "f4"))
        room.copy_(sample)
        with hugekit.snapshot(room) as moment:
            room += 1
            was = moment.to_numpy()
        with hugekit.Checkpointer({"room": room}) as saver:
            saver.save(f"{index}.delta", fsync=False)
        hugekit.restore(f"{index}.delta", {"room": room})
        assert (room.numpy() == was + 1).all()
        return room - 1

def loader(samples, **options):
    return torch.utils.data.DataLoader(samples, batch_size=4, num_workers=2, multiprocessing_context=sys.argv[1], timeout=100, **options)

if __name__ == "__main__":
    own = torch.ones(32, 300_000)
    own += torch.arange(32).reshape(32, 1)
    expected = float(own[:, 0].sum())
    # To send a tensor, torch moves it to shared memory, which a snapshot of it does not survive.
    samples = own if sys.argv[1] == "fork" else own.clone()
    state = {"own": own, "more": torch.zeros(3_000_000)}
    with hugekit.Checkpointer(state) as saver, hugekit.snapshot(state) as moment:
        saving = saver.save("parent.delta", wait=False, fsync=False)
        for persistent in (False, True):
            found = sum(float(batch[:, 0].sum()) for batch in loader(Samples(samples), persistent_workers=persistent))
            assert found == expected, found
        saving.wait()
        assert (moment.to_numpy()["own"][:, 0] == own[:, 0].numpy()).all()
    pooled = torch.from_numpy(hugekit.zeros((32, 1000), "f4"))
    try:
        found = sum(float(batch.sum()) for batch in loader(Samples(pooled)))
        assert sys.argv[1] != "fork" and found == 0
    except RuntimeError as died:
        assert sys.argv[1] == "fork" and "exited unexpectedly" in str(died), died
    if sys.argv[1] != "fork":
        try:
            next(iter(loader(Samples(samples, hugekit.Checkpointer(state)))))
        except TypeError as refused:
            assert "hugekit.Checkpointer stays in its process" in str(refused), refused
        else:
            raise AssertionError("sent")
"""


@pytest.mark.parametrize("method", METHODS)
def test_workers_of_a_data_loader_do_what_any_process_does(method, tmp_path):
    pytest.importorskip("torch", reason="torch is not installed: pip install hugekit[torch]")
    succeeds(LOADER, method, folder=tmp_path)


STAGER = """
import os, signal, torch
from hugekit.torch import SnapshotStager
# OpenMP's threads stay in the parent, and torch's own operations would wait for them.
torch.set_num_threads(1)
stager, tensor = SnapshotStager(), torch.ones(1 << 20)
assert float(stager.stage({"t": tensor}).result(60)["t"].mean()) == 1
process = os.fork()
if process == 0:
    signal.alarm(60)
    stager.synchronize_staging()
    assert float(stager.stage({"t": tensor}).result(30)["t"].mean()) == 1
    stager.close()
    os._exit(0)
assert os.waitpid(process, 0)[1] == 0
stager.close()
"""


def test_a_stager_that_was_forked_stages(tmp_path):
    pytest.importorskip("torch", reason="torch is not installed: pip install hugekit[torch]")
    succeeds(STAGER, folder=tmp_path)


def test_an_interrupted_wait_is_waited_for_again(tmp_path):
    saving = hugekit.Checkpointer([np.ones(64 << 20, "u1")]).save(tmp_path / "0", wait=False)
    for timeout in (0, 1e-9, -1):
        try:
            saving.wait(timeout)
        except TimeoutError as late:
            assert "not complete" in str(late)
    assert saving.wait().is_full
