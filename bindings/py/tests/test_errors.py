"""What goes wrong in other code keeps its class: nothing is swallowed, and nothing is renamed but what a program gave wrong."""

import errno
import io
import json
import os
import subprocess
import sys

import hugekit
import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("serves")

MIB = 1 << 20


class Odd(UnicodeError):
    """Made of two arguments, as numpy's memory error is."""

    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


class OddValue(ValueError):
    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


def raising(error, *names):
    """An object whose attributes of these names raise an error."""

    def fail(_self, *_arguments):
        raise error

    return type("Object", (), {name: property(fail) for name in names})()


ERRORS = [MemoryError("no memory left"), OddValue(1, 2), Odd(1, 2), RuntimeError("not now"), OSError(5, "broken")]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "call",
    [
        lambda error: hugekit.clear(raising(error, "dtype")),
        lambda error: hugekit.snapshot(raising(error, "dtype")),
        lambda error: hugekit.snapshot({"layer": raising(error, "dtype")}),
        lambda error: hugekit.snapshot([np.ones(5), raising(error, "dtype")]),
        lambda error: hugekit.clear(np.ones(5), progress=raising(error, "update")),
        lambda error: hugekit.zeros(index(error)),
        lambda error: hugekit.zeros((5, index(error))),
        lambda error: hugekit.snapshot(np.ones(5)).view()[index(error)],
        lambda error: hugekit.snapshot(np.ones(5)).view()[index(error) :],
        lambda error: hugekit.snapshot(np.ones(5), max_cow_bytes=index(error)),
        lambda error: hugekit.snapshot(np.ones(MIB)).write_to(Writer(error)),
        lambda error: hugekit.Checkpointer(lambda: fail(error)),
    ],
)
def test_an_error_of_the_programs_own_is_raised_as_it_is(call, error):
    with pytest.raises(type(error)) as caught:
        call(error)
    assert caught.value is error or str(caught.value) == str(error)


def fail(error):
    raise error


def index(error):
    return type("Index", (), {"__index__": lambda _self: fail(error)})()


class Writer:
    """Keeps what it is given, and raises."""

    def __init__(self, error):
        self.kept, self.error = [], error

    def write(self, data):
        self.kept.append(memoryview(data)[1:])
        if len(self.kept) > 2:
            raise self.error
        return len(data)


def test_an_error_about_one_of_several_arrays_has_its_name():
    with pytest.raises(OddValue) as caught:
        hugekit.snapshot({"layer": raising(OddValue(1, 2), "dtype")})
    assert caught.value.__notes__ == ["the array: layer"]


def test_a_file_may_keep_what_it_was_given_to_write():
    array = np.arange(MIB)
    writer = Writer(OSError(5, "broken"))
    with pytest.raises(OSError, match="broken"):
        hugekit.snapshot(array).write_to(writer)
    array[:] = 0
    kept = np.frombuffer(b"\0" + bytes(writer.kept[0]), "i8")
    assert (kept == np.arange(len(kept))).all()


def test_a_name_that_is_no_text_says_so():
    with pytest.raises(UnicodeEncodeError):
        hugekit.snapshot({"\udc80": np.ones(5)})


@pytest.mark.parametrize("save", ["save_npy", "savez"])
def test_a_folder_that_is_missing_is_named(save, tmp_path):
    path = tmp_path / "nowhere" / "file.npz"
    with pytest.raises(FileNotFoundError) as caught:
        getattr(hugekit.snapshot(np.ones(5)), save)(path)
    assert caught.value.errno == errno.ENOENT and caught.value.filename.startswith(str(path))


@pytest.mark.parametrize("save", ["save_npy", "savez"])
def test_a_device_that_is_full_is_an_error_with_its_number(save, tmp_path):
    moment = hugekit.snapshot(np.ones(4 * MIB))
    code = f"""
import hugekit, numpy as np, resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    hugekit.snapshot(np.ones({MIB})).{save}({str(tmp_path / "file")!r})
except OSError as error:
    assert error.errno == {errno.EFBIG}, error.errno
else:
    raise AssertionError("written")
"""
    succeeds(code)
    assert os.listdir(tmp_path) == []
    moment.close()


def succeeds(code, *arguments):
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


SHORT = """
import sys, resource, numpy, hugekit
path, found = sys.argv[1], None
hugekit.load_checkpoint(path + ".small")
mapped = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (mapped + (32 << 20), resource.RLIM_INFINITY))
try:
    hugekit.load_checkpoint(path)
except MemoryError as error:
    found = error
assert type(found) is MemoryError, found
assert str(found).startswith(path + ": weights: "), found
assert "64.0 MiB" in str(found) or "Unable to allocate" in str(found), found
"""


def test_a_checkpoint_that_does_not_fit_into_memory_is_a_memory_error_with_its_name(tmp_path):
    path = str(tmp_path / "0.delta")
    hugekit.Checkpointer({"weights": np.ones(64 * MIB, "u1")}).save(path)
    hugekit.Checkpointer({"weights": np.ones(5, "u1")}).save(path + ".small")
    succeeds(SHORT, path)


def test_memory_that_ends_while_a_description_is_read_is_a_memory_error(tmp_path, monkeypatch):
    path = tmp_path / "0.delta"
    hugekit.Checkpointer([np.ones(5)]).save(path)
    monkeypatch.setattr(json, "loads", lambda _text: fail(MemoryError("no memory left")))
    with pytest.raises(MemoryError, match="no memory left"):
        hugekit.load_checkpoint(path)


def test_a_header_for_which_memory_ends_is_not_called_damaged(tmp_path):
    path = tmp_path / "0.delta"
    hugekit.Checkpointer([np.ones(5), "x" * 200 * MIB]).save(path)
    code = SHORT.split("try:")[0].replace("import sys", "import sys").replace('hugekit.load_checkpoint(path + ".small")', "")
    code += """
try:
    hugekit.load_checkpoint(path)
except MemoryError as error:
    found = error
assert "header" in str(found), found
"""
    succeeds(code, str(path))


def test_an_ending_of_the_interpreter_is_not_swallowed():
    for stop in (KeyboardInterrupt, SystemExit):
        with pytest.raises(stop):
            hugekit.clear(raising(stop(), "dtype"))
        with pytest.raises(stop):
            hugekit.snapshot(np.ones(5)).write_to(type("File", (io.RawIOBase,), {"write": lambda *_: fail(stop())})())
