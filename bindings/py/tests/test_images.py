"""Images: loaded from files and deltas, mapped privately, given to other programs. No numpy is needed."""

import gc
import os
import signal
import subprocess
import sys
import threading

import hugekit
import pytest

MIB = 1 << 20
# No two pages are alike, and the length is odd.
BYTES = b"".join(number.to_bytes(8, "little") for number in range(5 * MIB // 8)) + b"end"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "memory.bin"
    path.write_bytes(BYTES)
    return path


def mappings():
    return open("/proc/self/maps").read().count("hugekit:of-test")


def test_mappings_have_the_bytes_and_share_no_writes(file):
    image = hugekit.Image.load(file)
    one, other = image.map(), image.map()
    assert isinstance(one, memoryview) and not one.readonly and len(one) == image.nbytes == len(BYTES)
    one[:] = bytes(len(one))
    assert other == BYTES and one == bytes(len(BYTES))
    assert file.read_bytes() == BYTES


def test_memory_of_zeroes_is_left_out(tmp_path):
    path = tmp_path / "sparse"
    with open(path, "wb") as sparse:
        sparse.truncate(64 * MIB)
        sparse.seek(32 * MIB)
        sparse.write(b"x")
    image = hugekit.Image.load(path)
    assert image.present_bytes <= 2 * MIB and image.huge_bytes <= 2 * MIB
    assert image.map()[32 * MIB - 1 : 32 * MIB + 2].tobytes() == b"\0x\0"
    assert "67108864" in repr(image)


def test_deltas_are_applied(tmp_path):
    np = pytest.importorskip("numpy")
    array = np.arange(1 << 20)
    paths = [tmp_path / f"{number}.delta" for number in range(3)]
    with hugekit.Checkpointer([array]) as saver:
        states = []
        for path in paths:
            states.append(saver.save(path).state)
            array[5] += 1
    expected = hugekit.Image.load(*paths).map()
    assert hugekit.load_checkpoint(paths)[0].tobytes() in bytes(expected)
    # The first one is full, so its bytes are a memory file that the others follow.
    raw = tmp_path / "raw"
    raw.write_bytes(hugekit.Image.load(paths[0]).map())
    assert hugekit.Image.load(raw, *paths[1:]).map() == expected
    assert hugekit.Image.load(raw, *paths[1:], state=states[0]).map() == expected
    for wrong in [lambda: hugekit.Image.load(raw, *paths[1:], state=states[1]),
                  lambda: hugekit.Image.load(paths[0], paths[2]),
                  lambda: hugekit.Image.load(raw, paths[2], paths[1]),
                  lambda: hugekit.Image.load(raw, raw),
                  lambda: hugekit.Image.load(paths[1])]:
        with pytest.raises(ValueError, match=str(tmp_path)):
            wrong()
    with pytest.raises(ValueError, match="hexadecimal"):
        hugekit.Image.load(raw, state="x")


def test_files_that_make_no_image_are_refused_by_name(tmp_path):
    with pytest.raises(FileNotFoundError) as refused:
        hugekit.Image.load(tmp_path / "missing")
    assert refused.value.filename == str(tmp_path / "missing")
    (tmp_path / "empty").touch()
    with pytest.raises(ValueError, match="nothing"):
        hugekit.Image.load(tmp_path / "empty")
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, "/dev/zero"):
        with pytest.raises(ValueError, match=f"{path}: .*regular"):
            hugekit.Image.load(path)
    with pytest.raises(TypeError):
        hugekit.Image()


def test_no_broker_is_an_error_with_its_remedy(tmp_path):
    with pytest.raises(OSError, match="no broker listens"):
        hugekit.Image.of_broker(tmp_path / "broker.sock", "web")


def test_progress_is_told_and_its_exception_ends_the_load(file):
    told = []
    hugekit.Image.load(file, progress=lambda done, total: told.append((done, total)))
    assert told and told == sorted(told) and told[-1] == (len(BYTES), len(BYTES))

    def refuse(done, total):
        raise KeyError(done)

    with pytest.raises(KeyError):
        hugekit.Image.load(file, progress=refuse)
    with pytest.raises(ValueError, match="progress"):
        hugekit.Image.load(file, progress=5)


def test_signals_are_heard_during_a_load(tmp_path):
    (tmp_path / "file").write_bytes(bytes(range(256)) * (256 << 10))
    code = f"""
import signal, hugekit
heard = 0
def hear(number, frame):
    global heard
    heard += 1
signal.signal(signal.SIGALRM, hear)
signal.setitimer(signal.ITIMER_REAL, 2e-4, 2e-4)
most = 0
for _ in range(50):
    heard = 0
    hugekit.Image.load({str(tmp_path / "file")!r}, threads=1)
    # Two may be heard between Python's instructions before and behind the load.
    most = max(most, heard)
    if most > 2:
        break
signal.setitimer(signal.ITIMER_REAL, 0)
assert most > 2, most
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 2e-4)
try:
    while True:
        hugekit.Image.load({str(tmp_path / "file")!r}, threads=1)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout == "interrupted\n", done.stderr


def test_other_programs_read_it_by_its_path(file):
    image = hugekit.Image.load(file)
    assert subprocess.check_output(["cat", image.path]) == BYTES
    number = image.fileno()
    path = f"/proc/self/fd/{number}"
    assert subprocess.check_output(["cat", path], pass_fds=[number]) == BYTES
    with pytest.raises(OSError):
        os.write(number, b"x")


def test_memory_goes_when_the_last_view_goes(file):
    before = mappings()
    view = hugekit.Image.load(file, name="of-test").map()[5:10]
    gc.collect()
    assert mappings() == before + 1 and view == BYTES[5:10]
    del view
    gc.collect()
    assert mappings() == before


def test_forked_children_have_their_own_bytes(file):
    image = hugekit.Image.load(file)
    memory = image.map()
    memory[0] = 7
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(60)
            good = memory[0] == 7 and image.map()[:8] == BYTES[:8]
            memory[:] = bytes(len(memory))
            os._exit(0 if good else 1)
        finally:
            os._exit(2)
    assert os.waitpid(child, 0)[1] == 0
    assert memory[0] == 7 and memory[1:] == BYTES[1:]


def test_threads_load_and_map_at_once(file):
    failures = []

    def work():
        for _ in range(5):
            memory = hugekit.Image.load(file).map()
            if memory != BYTES:
                failures.append(memory)

    threads = [threading.Thread(target=work) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not failures


def test_the_interpreter_ends_with_a_mapping(file):
    code = f"import hugekit; image = hugekit.Image.load({str(file)!r}); memory = image.map(); memory[0] = 1"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
