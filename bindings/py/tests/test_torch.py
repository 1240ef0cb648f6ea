"""Tensors of PyTorch: in snapshots and checkpoints as they are, and staged for its distributed checkpoints."""

import gc
import pathlib
import re
import subprocess
import sys
import threading
import warnings

import hugekit
import numpy as np
import pytest

MIB = 1 << 20


def test_without_torch_the_import_says_what_to_install():
    code = """
import sys
sys.modules["torch"] = None
try:
    import hugekit.torch
except ImportError as refused:
    assert "pip install hugekit[torch]" in str(refused), refused
else:
    raise AssertionError("imported")
import hugekit, numpy, tempfile
with tempfile.TemporaryDirectory() as folder:
    hugekit.Checkpointer([numpy.ones(5)]).save(folder + "/0")
    assert hugekit.load_checkpoint(folder + "/0")[0].sum() == 5
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


torch = pytest.importorskip("torch", reason="torch is not installed: pip install hugekit[torch]")
pytestmark = pytest.mark.usefixtures("serves")

DTYPES = [
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex32,
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int64,
    torch.uint16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]


def bits(tensor):
    """The bytes of a tensor's elements, in the order of its indices."""
    return bytes(tensor.detach().contiguous().flatten().view(torch.uint8).numpy())


def some(shape, dtype):
    count = int(np.prod(shape))
    size = torch.empty(0, dtype=dtype).element_size()
    raw = torch.arange(count * size) % (2 if dtype == torch.bool else 120)
    return raw.to(torch.uint8).view(dtype).reshape(shape)


def same(one, other):
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
            and bits(one) == bits(other)
        )
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return one == other


def copied(tree):
    if isinstance(tree, torch.Tensor):
        return torch.empty_like(tree, memory_format=torch.preserve_format).copy_(tree.detach())
    if isinstance(tree, dict):
        return {key: copied(value) for key, value in tree.items()}
    return type(tree)(map(copied, tree)) if isinstance(tree, (list, tuple)) else tree


@pytest.mark.filterwarnings("ignore:ComplexHalf")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0, 5), (7,), (3, MIB)], ids=str)
def test_a_tensor_of_any_dtype_is_saved_and_read_again(tmp_path, dtype, shape):
    tensor = some(shape, dtype)
    before = tensor.clone()
    saver = hugekit.Checkpointer({"t": tensor, "transposed": some((600, 700), dtype).T})
    saver.save(tmp_path / "0")
    if tensor.numel():
        tensor.view(-1)[-1:].view(torch.uint8).zero_()
        assert saver.save(tmp_path / "1").changed <= 3 * 4096
    else:
        saver.save(tmp_path / "1")
    found = hugekit.load_checkpoint(tmp_path / "0")
    assert same(found["t"], before) and found["transposed"].T.is_contiguous()
    assert same(found["transposed"], some((600, 700), dtype).T)
    assert same(hugekit.load_checkpoint([tmp_path / "0", tmp_path / "1"])["t"], tensor)
    assert hugekit.restore(tmp_path / "0", {"t": tensor, "transposed": found["transposed"]})["t"] is tensor
    assert same(tensor, before)
    arrays = hugekit.load_checkpoint(tmp_path / "0", as_numpy=True)
    assert isinstance(arrays["t"], np.ndarray) and arrays["t"].shape == shape
    assert arrays["t"].tobytes() == bits(before)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*[torch.nn.Linear(600, 600) for _ in range(4)])
        self.images = torch.nn.Conv2d(16, 32, 3).to(memory_format=torch.channels_last)
        self.short = torch.nn.Linear(1000, 1000).to(torch.bfloat16)
        self.norm = torch.nn.BatchNorm1d(600)
        self.tied = torch.nn.Linear(600, 600)
        self.tied.weight = self.layers[0].weight

    def forward(self, x):
        images = self.images(x[:, :16, None, None].expand(-1, -1, 4, 4)).mean()
        return self.norm(self.tied(self.layers(x))).sum() * 0.01 + images + self.short(x[:1, :1].repeat(1, 1000).bfloat16()).sum()


class Training:
    def __init__(self, seed):
        torch.manual_seed(seed)
        self.model = Model()
        self.optimizer = torch.optim.Adam(self.model.parameters(), amsgrad=True)
        self.step()

    def step(self):
        self.optimizer.zero_grad()
        (self.model(torch.randn(8, 600)) ** 2).backward()
        self.optimizer.step()

    def state(self):
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "names": ["a", None]}


def test_training_goes_on_from_a_checkpoint_as_if_it_had_not_stopped(tmp_path):
    training = Training(1)
    saver = hugekit.Checkpointer(training.state)
    paths, states = [], []
    for number in range(4):
        paths.append(tmp_path / str(number))
        saving = saver.save(paths[-1], wait=False)
        states.append(copied(training.state()))
        training.step()
        assert saving.wait().is_full == (number == 0)
    for count in range(1, 5):
        assert same(hugekit.load_checkpoint(paths[:count]), states[count - 1])
    # In another process nothing would be there but the files.
    torch.manual_seed(5)
    training.step()
    training.step()
    other = Training(2)
    saver.save(tmp_path / "4")
    found = hugekit.load_checkpoint([*paths, tmp_path / "4"])
    other.model.load_state_dict(found["model"])
    other.optimizer.load_state_dict(found["optimizer"])
    for each in (training, other):
        torch.manual_seed(6)
        each.step()
    assert same(training.state(), other.state())
    # And into the tensors that are there.
    found = saver.restore(paths[:2])
    assert same(training.model.state_dict(), states[1]["model"])
    assert same(found, states[1])
    training.optimizer.load_state_dict(found["optimizer"])
    assert same(training.state(), states[1])


def test_tied_weights_are_stored_once(tmp_path):
    model = torch.nn.ModuleDict({"a": torch.nn.Linear(1000, 1000), "b": torch.nn.Linear(1000, 1000)})
    apart = hugekit.Checkpointer(model.state_dict()).save(tmp_path / "apart").written
    model["b"].weight = model["a"].weight
    tied = hugekit.Checkpointer(model.state_dict()).save(tmp_path / "tied").written
    assert apart - tied > 3_900_000
    assert same(hugekit.load_checkpoint(tmp_path / "tied"), dict(model.state_dict()))


def test_tensors_and_arrays_of_one_dtype_are_read_into_each_other(tmp_path):
    array = np.arange(300_000, dtype="f4").reshape(3, -1)
    hugekit.Checkpointer({"x": array}).save(tmp_path / "array")
    tensor = torch.zeros(3, 100_000)
    hugekit.restore(tmp_path / "array", {"x": tensor})
    assert np.array_equal(tensor.numpy(), array)


@pytest.mark.parametrize(
    "make, error, says",
    [
        (lambda: torch.eye(3).to_sparse(), TypeError, r"x is sparse.*to_dense\(\)"),
        (lambda: torch.empty(3, device="meta"), TypeError, "x is on the device meta"),
        (lambda: torch.ones(3, dtype=torch.complex64).conj(), TypeError, r"resolve_conj\(\)"),
        (lambda: torch.ones(3, dtype=torch.complex64).conj().imag, TypeError, r"resolve_neg\(\)"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.quint8), TypeError, r"int_repr\(\)"),
        (lambda: torch.nn.Linear(2, 2), TypeError, r"x is a Linear: write linear\.state_dict\(\)"),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_what_cannot_be_saved_is_refused_with_what_to_write(make, error, says):
    with pytest.raises(error, match=says):
        hugekit.Checkpointer({"x": make()})


def test_a_tensor_of_another_device_is_refused_with_what_to_write(monkeypatch):
    tensor = torch.ones(3)
    if torch.cuda.is_available():
        tensor = tensor.cuda()
    else:
        # There is no device here to put it on.
        tensor = torch.ones(3, device="meta")
    for refused in (lambda: hugekit.Checkpointer({"x": tensor}), lambda: hugekit.snapshot([tensor])):
        with pytest.raises(TypeError, match=r"is on cuda:0.*tensor\.cpu\(\)|is on the device meta.*device='cpu'"):
            refused()


def test_a_state_dict_is_snapshotted_as_it_is(tmp_path):
    model = Model().to(memory_format=torch.contiguous_format)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with hugekit.snapshot(model.state_dict()) as moment:
        with torch.no_grad():
            [tensor.zero_() for tensor in model.state_dict().values()]
        arrays = moment.to_numpy()
    assert arrays.keys() == before.keys()
    for name, array in arrays.items():
        assert array.shape == tuple(before[name].shape) and array.tobytes() == bits(before[name])
    assert arrays["short.weight"].dtype == np.uint16 and arrays["layers.0.weight"].dtype == np.float32
    tensor = torch.ones(3 * MIB)
    with hugekit.snapshot(tensor) as moment:
        hugekit.clear(tensor)
        moment.savez(tmp_path / "saved")
    assert float(tensor.sum()) == 0 and np.load(tmp_path / "saved.npz")["arr_0"].sum() == 3 * MIB
    hugekit.copy(tensor, torch.full((3 * MIB,), 2.0))
    assert float(tensor.mean()) == 2


def test_a_tensor_that_was_replaced_is_saved_in_full(tmp_path):
    tree = {"x": torch.ones(2 * MIB)}
    saver = hugekit.Checkpointer(lambda: tree)
    saver.save(tmp_path / "0")
    tree["x"] = torch.full((2 * MIB,), 2.0)
    gc.collect()
    saved = saver.save(tmp_path / "1")
    assert saved.is_full and saved.reason == "x lies elsewhere"
    assert float(hugekit.load_checkpoint(tmp_path / "1")["x"].mean()) == 2


dcp = pytest.importorskip("torch.distributed.checkpoint")


@pytest.fixture
def stager():
    from hugekit.torch import SnapshotStager

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stager = SnapshotStager()
        yield stager
        stager.close()


def save(state, folder, stager):
    return dcp.async_save(state, checkpoint_id=folder, async_stager=stager, no_dist=True)


def load(like, folder):
    found = copied(like)
    dcp.load(found, checkpoint_id=folder, no_dist=True)
    return found


def test_async_save_has_what_was_there_when_it_was_called(tmp_path, stager):
    training = Training(1)
    for number in range(3):
        before = copied(training.state())
        saving = save(training.state(), tmp_path / str(number), stager)
        for _ in range(3):
            training.step()
        saving.upload_completion.result(60)
        assert saving.staging_completion.done()
        assert same(load(before, tmp_path / str(number)), before)
        assert not same(training.state()["model"]["short.weight"], before["model"]["short.weight"])


def test_what_is_staged_is_that_of_pytorchs_stager(stager):
    from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

    base = torch.arange(3.0 * MIB)
    parameter = torch.nn.Parameter(torch.ones(MIB, dtype=torch.bfloat16))
    state = {
        "all": base,
        "part": base[5 : MIB + 5],
        "gaps": base.reshape(3, MIB)[:, ::2],
        "transposed": base.reshape(3, MIB).T,
        "twice": base[:2].expand(3, 2),
        "small": torch.tensor(3),
        "nothing": torch.empty(0, 4),
        "parameter": parameter,
        "conjugate": torch.ones(MIB, dtype=torch.complex64).conj(),
        "list": [1, (2.5, {"deep": base[1:2]}), "text"],
        "object": np.arange(3),
    }
    default = DefaultStager(StagingOptions(False, False, False, False)).stage(state)
    staged = stager.stage(state).result()
    assert staged.keys() == default.keys()
    assert staged.pop("object").tolist() == default.pop("object").tolist()
    assert torch.equal(staged.pop("conjugate"), default.pop("conjugate"))
    assert same(staged.pop("parameter"), default.pop("parameter").detach())
    assert same(staged, default)
    assert staged["all"].untyped_storage()._cdata == staged["part"].untyped_storage()._cdata
    base.zero_()
    assert float(staged["all"][-1]) == 3 * MIB - 1 and float(staged["list"][1][1]["deep"]) == 1


def test_staging_beside_writers_is_one_moment_of_python_code(stager):
    tensors = [torch.zeros(2 * MIB) for _ in range(3)]
    stop = threading.Event()

    def count():
        while not stop.is_set():
            for tensor in tensors:
                tensor[-1] += 1

    thread = threading.Thread(target=count)
    thread.start()
    try:
        for _ in range(20):
            counts = [int(tensor[-1]) for tensor in stager.stage({"t": tensors}).result()["t"]]
            assert counts == sorted(counts, reverse=True) and counts[0] - counts[-1] <= 1, counts
    finally:
        stop.set()
        thread.join()


def test_a_staging_beside_steps_that_write_everything_has_what_was(stager):
    """However far the steps outrun the thread that copies."""
    tensors = [torch.ones(size) for size in (16 * MIB, 300_000, 5 * MIB + 7)]
    for number in range(20):
        staging = stager.stage({"t": tensors})
        for tensor in reversed(tensors) if number % 2 else tensors:
            tensor.add_(1)
        staged = staging.result()["t"]
        assert all(bool((tensor == number + 1).all()) for tensor in staged)


def test_a_state_is_in_memory_twice_and_no_more():
    """In a process of its own, for its peak."""
    code = """
import resource, torch
from hugekit.torch import SnapshotStager
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
tensors = [torch.ones(1 << 24) for _ in range(4)]
stager, before = SnapshotStager(), peak()
for _ in range(3):
    staging = stager.stage({"t": tensors})
    for tensor in tensors:
        tensor.add_(1)
    del staging
    stager.synchronize_staging()
    stager._staging = None
stager.close()
print((peak() - before) / (1 << 28))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 1.2, done.stdout


def test_a_state_for_which_memory_is_short_is_refused_with_figures(stager):
    code = """
import resource, torch
from hugekit.torch import SnapshotStager
tensor = torch.ones(1 << 26)
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, ((pages << 12) + (1 << 27),) * 2)
try:
    SnapshotStager().stage({"t": tensor})
except MemoryError as short:
    print(short)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0 and "268435456" in done.stdout, (done.stdout, done.stderr)


def test_a_stager_that_was_closed_stages_again(stager):
    for number in range(2):
        tensor = torch.full((MIB,), float(number))
        staged = stager.stage({"t": tensor})
        stager.close()
        assert staged.done() and float(staged.result()["t"].mean()) == number
    stager.synchronize_staging()


def test_a_tensor_that_processes_share_is_staged_and_refused_by_a_checkpointer(tmp_path):
    """In a process of its own, which is a group of one."""
    code = f"""
import warnings; warnings.simplefilter("ignore")
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.tensor import distribute_tensor, init_device_mesh, Shard
import hugekit
from hugekit.torch import SnapshotStager
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
mesh = init_device_mesh("cpu", (1,))
state = {{"d": distribute_tensor(torch.ones(1000, 1000), mesh, [Shard(0)]), "t": torch.ones(1000, 1000)}}
try:
    hugekit.Checkpointer(state)
except TypeError as refused:
    assert "d is a DTensor" in str(refused) and "to_local()" in str(refused), refused
else:
    raise AssertionError("taken")
stager = SnapshotStager()
saving = dcp.async_save(state, checkpoint_id={str(tmp_path)!r}, async_stager=stager)
for tensor in state.values():
    tensor.mul_(2)
saving.upload_completion.result(60)
dcp.load(state, checkpoint_id={str(tmp_path)!r})
assert float(state["t"].mean()) == 1 and float(state["d"].to_local().mean()) == 1
stager.close()
dist.destroy_process_group()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_the_example_of_the_module():
    import doctest

    import hugekit.torch

    text = hugekit.torch.__doc__
    names = {"hugekit": hugekit, "torch": torch, "tempfile": __import__("tempfile")}
    example = doctest.DocTestParser().get_doctest(text, names, "example", None, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = doctest.DocTestRunner(verbose=False).run(example)
    assert result.attempted > 3 and result.failed == 0


PAGE = pathlib.Path(__file__).parents[3] / "docs/pytorch.md"
PROGRAMS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_recipe_of_the_page_runs_as_a_program(program, tmp_path):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


# Three layers, as those of a model lie in memory.
LARGE = "torch.nn.Sequential(torch.nn.Linear(1024, {0}), torch.nn.Linear({0}, 1024), torch.nn.Linear(1024, {0}))"
SAVING = [program for program in PROGRAMS if re.search(r"snapshot\(|Checkpointer\(|SnapshotStager\(", program)]


@pytest.mark.parametrize("reserve", [None, "reserve=None", "reserve=hugekit.Reserve({})"], ids=["its own", "none", "all of it"])
@pytest.mark.parametrize("number", range(len(SAVING)))
def test_a_recipe_that_saves_does_so_at_any_size_while_each_step_rewrites_all_of_it(number, reserve, size, tmp_path):
    program = SAVING[number]
    model = LARGE.format(size // 4 // 3 // 1024)
    assert program.count("torch.nn.Linear(1024, 1024)") == 1
    program = program.replace("torch.nn.Linear(1024, 1024)", model)
    # The names of the first layer, and all layers where one was written.
    program = program.replace("model.weight.detach", "model[0].weight.detach").replace('found["weight"]', 'found["0.weight"]')
    program = program.replace("model.weight.data += 1", "[parameter.data.add_(1) for parameter in model.parameters()]")
    # The file is written while steps go on.
    program = program.replace("        saving.wait()  ", "        step and saving.wait()  ").replace("Adam", "SGD")
    if reserve is not None:
        given = reserve.format(size + (16 << 20))
        program, count = re.subn(r"reserve=(hugekit\.Reserve\([^)]*\)|reserve)", given, program)
        if not count:
            program = program.replace("Checkpointer(state)", f"Checkpointer(state, {given})")
        assert given in program
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=600, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("reserve", [None, 16, 2000])
def test_a_stage_of_which_all_is_rewritten_is_what_was(reserve, size):
    from hugekit.torch import SnapshotStager

    tensors = [torch.full((size // 3,), number, dtype=torch.uint8) for number in range(3)]
    stager = SnapshotStager(reserve=reserve and hugekit.Reserve(min(reserve * MIB, 2 * size)))
    staging = stager.stage({"tensors": tensors})
    for tensor in tensors:
        tensor.add_(10)
    for number, tensor in enumerate(staging.result(300)["tensors"]):
        assert bool((tensor == number).all())
    stager.close()


def test_a_stager_with_a_number_of_bytes_says_what_to_write():
    from hugekit.torch import SnapshotStager

    with pytest.raises(TypeError, match=r"reserve is of type int, and must be a hugekit.Reserve: write hugekit.Reserve\(nbytes\)"):
        SnapshotStager(reserve=1 << 30)
