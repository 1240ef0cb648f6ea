"""Files of results appear whole, under their name, once: with the rights of the file that they replace, and through links as numpy's."""

import os
import resource
import signal
import stat
import subprocess
import sys
import textwrap

import hugekit
import numpy as np
import pytest

ARRAY = np.arange(1 << 18, dtype="f8")
IS_ROOT = os.geteuid() == 0


def save_npy(path):
    hugekit.snapshot(ARRAY).save_npy(path)


def savez(path):
    hugekit.snapshot([ARRAY]).savez(path)


def save_delta(path):
    with hugekit.Checkpointer([ARRAY]) as saver:
        saver.save(path)


def loaded(path):
    """The array of a file, by the beginning of the file."""
    opening = open(path, "rb").read(6)
    if opening == b"\x93NUMPY":
        return np.load(path)
    if opening[:2] == b"PK":
        return np.load(path)["arr_0"]
    return hugekit.load_checkpoint([path])[0]


def is_whole(path):
    return (loaded(path) == ARRAY).all()


# What writes a file, and a name to which numpy appends nothing.
WRITERS = {"npy": (save_npy, "f.npy"), "npz": (savez, "f.npz"), "delta": (save_delta, "f.delta")}


@pytest.fixture(params=WRITERS)
def writer(request, serves):
    return WRITERS[request.param]


def test_a_link_stays_and_its_target_is_written(writer, tmp_path):
    save, name = writer
    (tmp_path / "inner").mkdir()
    (tmp_path / name).symlink_to("inner/one")
    (tmp_path / "inner/one").symlink_to(tmp_path / "inner/file")
    for _ in range(2):
        # A dangling one the first time, as numpy.save writes it.
        save(tmp_path / name)
        assert (tmp_path / name).is_symlink() and (tmp_path / "inner/one").is_symlink()
        assert is_whole(tmp_path / "inner/file") and sorted(os.listdir(tmp_path / "inner")) == ["file", "one"]
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to(name)
    with pytest.raises(OSError) as caught:
        save(tmp_path / name)
    assert caught.value.errno == 40


def test_the_rights_of_the_replaced_file_stay(writer, tmp_path):
    save, name = writer
    path = tmp_path / name
    mask = os.umask(0o022)
    try:
        save(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        path.chmod(0o600)
        if IS_ROOT:
            os.chown(path, 12345, 23456)
        save(path)
    finally:
        os.umask(mask)
    found = path.stat()
    assert stat.S_IMODE(found.st_mode) == 0o600 and is_whole(path)
    assert not IS_ROOT or (found.st_uid, found.st_gid) == (12345, 23456)


def test_names_may_be_as_long_as_files_have_them(writer, tmp_path):
    save, name = writer
    suffix = os.path.splitext(name)[1]
    path = tmp_path / ("x" * (255 - len(suffix)) + suffix)
    for _ in range(2):
        save(path)
        assert os.listdir(tmp_path) == [path.name] and is_whole(path)


def test_only_files_are_replaced(writer, tmp_path, monkeypatch):
    save, name = writer
    path = tmp_path / name
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        save(path)
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(OSError, match="a pipe"):
        save(path)
    path.unlink()
    for device in ("/dev/null", "/dev/full", "/dev/stdout", "/proc/self/fd/1"):
        path.symlink_to(device)
        with pytest.raises(OSError, match="other than a file"):
            save(path)
        path.unlink()
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileNotFoundError):
        save("absent/" + name)
    assert os.listdir(tmp_path) == []


def test_links_that_were_prepared_are_not_followed(writer, tmp_path):
    save, name = writer
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "out").mkdir()
    for number in range(100):
        (tmp_path / f"out/{name}.{os.getpid()}.{number}.partial").symlink_to(victim)
    save(tmp_path / "out" / name)
    assert victim.read_text() == "precious" and not (tmp_path / "out" / name).is_symlink()


def run(program, *arguments, before=()):
    program = "import os, sys, hugekit, numpy\n" + textwrap.dedent(program)
    return subprocess.run([*before, sys.executable, "-c", program, *map(str, arguments)], capture_output=True, text=True, timeout=120)


def unshared(*flags):
    """A command that runs another one in namespaces of its own."""
    before = ["unshare", *flags, "--"]
    try:
        refused = subprocess.run([*before, "true"], capture_output=True).returncode
    except FileNotFoundError:
        refused = True
    if refused:
        pytest.skip("needs root and unshare(1)")
    return before


SAVE_AS = """
value, folder = float(sys.argv[1]), sys.argv[2]
array = numpy.full(1 << 20, value)
open(f"{folder}/ready.{value}", "w").close()
while len([name for name in os.listdir(folder) if name.startswith("ready")]) < 2:
    pass
print(os.getpid())
hugekit.snapshot(array).save_npy(f"{folder}/a.npy")
with hugekit.Checkpointer([array]) as saver:
    saver.save(f"{folder}/a.delta")
"""


def test_two_containers_with_the_same_process_number_have_a_file_each(tmp_path, serves):
    before = unshared("--pid", "--fork", "--mount-proc")
    for attempt in range(3):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        program = "import os, sys, hugekit, numpy\n" + SAVE_AS
        pair = [
            subprocess.Popen([*before, sys.executable, "-c", program, value, folder], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for value in ("1", "2")
        ]
        told = [process.communicate(timeout=120) for process in pair]
        assert [process.returncode for process in pair] == [0, 0], told
        assert [out for out, _ in told] == ["1\n", "1\n"]
        for array in (np.load(folder / "a.npy"), hugekit.load_checkpoint([folder / "a.delta"])[0]):
            assert len(np.unique(array)) == 1 and len(array) == 1 << 20
        assert sorted(os.listdir(folder)) == ["a.delta", "a.npy", "ready.1.0", "ready.2.0"]


FULL = """
folder = sys.argv[1]
os.system(f"mount -t tmpfs -o size=1m none {folder}") and sys.exit("cannot mount")
array = numpy.ones(1 << 18)
open(f"{folder}/a.npy", "w").write("kept")
for save in (
    lambda: hugekit.snapshot(array).save_npy(f"{folder}/a.npy"),
    lambda: hugekit.snapshot(array).savez(f"{folder}/b.npz"),
    lambda: hugekit.Checkpointer([array]).save(f"{folder}/c.delta"),
):
    try:
        save()
        print("no error")
    except OSError as error:
        print(error.errno)
print(os.listdir(folder), open(f"{folder}/a.npy").read())
os.remove(f"{folder}/a.npy")
# The room of the file that was given up is there again.
hugekit.snapshot(array[: 100 << 10 >> 3]).save_npy(f"{folder}/small.npy")
"""


def test_a_full_disk_leaves_what_was_there(tmp_path, serves):
    done = run(FULL, tmp_path, before=unshared("--mount"))
    assert done.stdout.splitlines() == ["28", "28", "28", "['a.npy'] kept"], done.stderr
    assert done.returncode == 0, done.stderr


def test_a_limit_of_the_process_leaves_what_was_there(writer, tmp_path):
    save, name = writer
    save(tmp_path / name)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        with pytest.raises(OSError) as caught:
            save(tmp_path / name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert caught.value.errno == 27
    assert os.listdir(tmp_path) == [name] and is_whole(tmp_path / name)


def test_a_killed_process_leaves_nothing(tmp_path, serves):
    killed = run(
        """
        def kill(done, total):
            os.kill(os.getpid(), 9)
        hugekit.snapshot(numpy.ones(1 << 20)).save_npy(sys.argv[1] + "/a.npy", progress=kill)
        """,
        tmp_path,
    )
    assert killed.returncode == -9
    assert os.listdir(tmp_path) == []


AS_NOBODY = """
folder = sys.argv[1]
import ctypes
array = numpy.ones(1 << 18)
hugekit.snapshot(array).save_npy(f"{folder}/imported.npy")
os.setgroups([]), os.setgid(65534), os.setuid(65534)
# /proc/self belongs to the new user, as after an exec.
ctypes.CDLL(None).prctl(4, 1)
def tried(name):
    try:
        hugekit.snapshot(array).save_npy(f"{folder}/{name}.npy", fsync=True)
        return "saved"
    except OSError as error:
        return type(error).__name__
print(*(tried(name) for name in ("closed/new", "closed/there", "unreadable/new", "own", "shared/link", "shared/roots", "foreign/there")))
print(oct(os.stat(f"{folder}/foreign/there.npy").st_mode & 0o777))
"""


@pytest.mark.skipif(not IS_ROOT, reason="needs root, to make folders of others")
def test_users_without_rights(tmp_path, serves):
    for above in (tmp_path, *tmp_path.parents):
        if not above.stat().st_mode & 0o001:
            above.chmod(above.stat().st_mode | 0o011)
    for name, mode in {"closed": 0o755, "unreadable": 0o733, "shared": 0o1777, "foreign": 0o777}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
    for name in ("closed/there.npy", "own.npy", "foreign/there.npy"):
        (tmp_path / name).write_bytes(b"old")
    # Whoever may write to the file, but to no folder, is told before anything is written.
    (tmp_path / "closed/there.npy").chmod(0o666)
    # A group that this user is not in keeps no rights, because there is another in its place.
    (tmp_path / "foreign/there.npy").chmod(0o660)
    for link in ("link", "roots"):
        (tmp_path / f"shared/{link}.npy").symlink_to(tmp_path / "unreadable/victim.npy")
    os.chown(tmp_path / "shared/link.npy", 12345, 12345, follow_symlinks=False)
    done = run(AS_NOBODY, tmp_path)
    refused = "PermissionError"
    assert done.stdout.split() == [refused, refused, "saved", refused, refused, "saved", "saved", "0o600"], (done.stdout, done.stderr)
    assert (tmp_path / "closed/there.npy").read_bytes() == b"old"
    assert not [name for _, _, names in os.walk(tmp_path) for name in names if name.endswith("partial")]
