"""Bytes of a snapshot go where the file object would put them, and each count that it returns is believed or refused."""

import gzip
import io
import os
import socket
import ssl
import subprocess
import threading

import hugekit
import numpy as np
import pytest


@pytest.fixture
def array():
    return np.random.default_rng(1).integers(0, 256, 3 << 20, "u1")


class Turned(io.RawIOBase):
    """A stream that changes each byte on the way to a file, and has the descriptor of that file."""

    def __init__(self, file):
        self.file = file

    def writable(self):
        return True

    def fileno(self):
        return self.file.fileno()

    def write(self, data):
        return self.file.write(bytes(np.frombuffer(data, "u1") ^ 255))


class SubclassedFile(io.FileIO):
    def write(self, data):
        return super().write(bytes(np.frombuffer(data, "u1") ^ 255))


class SubclassedBuffer(io.BufferedWriter):
    def write(self, data):
        return super().write(bytes(np.frombuffer(data, "u1") ^ 255))


def with_own_write(file):
    file.write = lambda data, write=file.write: write(bytes(np.frombuffer(data, "u1") ^ 255))
    return file


@pytest.mark.parametrize(
    "opened",
    [
        lambda path: io.BufferedWriter(Turned(open(path, "wb", buffering=0))),
        lambda path: io.BufferedRandom(type("Turned", (Turned,), {"seekable": lambda _: True, "readable": lambda _: True, "seek": lambda _, *at: 0, "tell": lambda _: 0})(open(path, "wb", buffering=0))),
        lambda path: SubclassedFile(path, "wb"),
        lambda path: SubclassedBuffer(open(path, "wb", buffering=0)),
        lambda path: io.BufferedWriter(SubclassedFile(path, "wb")),
        lambda path: with_own_write(open(path, "wb")),
        lambda path: with_own_write(open(path, "wb", buffering=0)),
        lambda path: io.BufferedWriter(with_own_write(open(path, "wb", buffering=0))),
    ],
    ids=["raw", "random", "file", "buffer", "buffer over file", "own write", "own write, raw", "own write below"],
)
def test_streams_that_change_bytes_have_their_way(opened, array, tmp_path, serves):
    with opened(tmp_path / "file") as file:
        hugekit.snapshot(array).write_to(file)
    assert (tmp_path / "file").read_bytes() == (array ^ 255).tobytes()


def test_streams_over_other_streams(array, tmp_path, serves):
    inner = io.BytesIO()
    outer = io.BufferedWriter(inner)
    hugekit.snapshot(array).write_to(outer)
    outer.flush()
    assert inner.getvalue() == array.tobytes()
    with gzip.open(tmp_path / "z", "wb", compresslevel=1) as zipped, io.BufferedWriter(zipped) as file:
        hugekit.snapshot(array).write_to(file)
    assert gzip.open(tmp_path / "z").read() == array.tobytes()


def test_nothing_goes_below_tls(array, tmp_path, serves):
    made = subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", tmp_path / "key", "-out", tmp_path / "cert", "-days", "2", "-subj", "/CN=localhost"],
        capture_output=True,
    )
    if made.returncode:
        pytest.skip("no openssl makes a certificate")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    ours, theirs = socket.socketpair()
    got = []

    def serve():
        with server.wrap_socket(theirs, server_side=True) as stream:
            while part := stream.recv(1 << 16):
                got.append(part)

    peer = threading.Thread(target=serve)
    peer.start()
    with client.wrap_socket(ours) as stream, stream.makefile("wb") as file:
        hugekit.snapshot(array).write_to(file)
    peer.join()
    assert b"".join(got) == array.tobytes()


def test_plain_files_continue_where_they_were(array, tmp_path, serves):
    path = tmp_path / "file"
    path.write_bytes(bytes(100) + b"x" * (4 << 20))
    with open(path, "r+b") as file:
        assert file.read(50) == bytes(50)
        hugekit.snapshot(array).write_to(file)
        # What the buffer remembers of the position must have moved with the descriptor.
        assert file.read(10) == b"x" * 10
        file.seek(52)
        assert file.read(4) == array[2:6].tobytes()
        assert file.tell() == 56
        file.seek(50)
        file.write(b"over")
    assert path.read_bytes()[48:58] == b"\0\0over" + array[4:8].tobytes()
    # Appended, whatever the position is.
    path.write_bytes(b"first")
    with open(path, "a+b") as file:
        file.seek(0)
        hugekit.snapshot(array).write_to(file)
        file.write(b"last")
    assert path.read_bytes() == b"first" + array.tobytes() + b"last"
    # A descriptor that was moved below its object.
    with open(path, "wb") as file:
        file.write(b"0123456789")
        file.flush()
        os.lseek(file.fileno(), 3, os.SEEK_SET)
        hugekit.snapshot(array).write_to(file)
    assert array.tobytes() in path.read_bytes()


@pytest.mark.parametrize("mode", ["closed", "reading"])
def test_files_that_cannot_be_written_are_refused_before_the_snapshot_ends(mode, array, tmp_path, serves):
    (tmp_path / "file").write_bytes(b"kept")
    file = open(tmp_path / "file", "rb", buffering=0)
    if mode == "closed":
        file.close()
    moment = hugekit.snapshot(array)
    with pytest.raises((ValueError, OSError)):
        moment.write_to(file)
    assert not moment.closed and (tmp_path / "file").read_bytes() == b"kept"
    assert (moment.to_numpy() == array).all()


class Parts:
    """Takes as much of each call as it is told, and returns whatever it is told."""

    def __init__(self, take, answer=lambda taken: taken):
        self.take, self.answer, self.parts, self.calls = take, answer, [], 0

    def write(self, data):
        self.calls += 1
        part = data[: self.take(len(data))]
        self.parts.append(bytes(part))
        return self.answer(len(part))


def test_short_counts_are_continued(array, serves):
    for take in (lambda given: 70_001, lambda given: max(1, given // 3), lambda given: min(given, 5000)):
        file = Parts(take)
        hugekit.snapshot([array, array[:1000]]).write_to(file)
        assert b"".join(file.parts) == array.tobytes() + array[:1000].tobytes()
    # A number of numpy's is one, and an object that says nothing took all.
    for answer in (np.int64, lambda taken: None):
        file = Parts(lambda given: given, answer)
        hugekit.snapshot(array).write_to(file)
        assert b"".join(file.parts) == array.tobytes()


@pytest.mark.parametrize(
    "answer, raised",
    [
        (lambda taken: 0, OSError),
        (lambda taken: -1, ValueError),
        (lambda taken: taken + 1, ValueError),
        (lambda taken: 1 << 70, ValueError),
        (lambda taken: 1 << 200, TypeError),
        (lambda taken: True, TypeError),
        (lambda taken: "all", TypeError),
        (lambda taken: float(taken), TypeError),
    ],
    ids=["0", "-1", "more", "much more", "huge", "True", "text", "float"],
)
def test_nonsense_is_an_error(answer, raised, array, serves):
    file = Parts(lambda given: given, answer)
    with pytest.raises(raised, match="the file's write"):
        hugekit.snapshot(array).write_to(file)
    assert file.calls == 1


def full_pipe():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    return reading, writing


class Wrapping:
    """Passes on the answers of a stream."""

    def __init__(self, file):
        self.write, self.fileno = file.write, file.fileno


BLOCKING = {
    "raw": lambda file: file,
    "buffered": io.BufferedWriter,
    "wrapped": Wrapping,
    "counted": lambda file: type("Counting", (), {"write": lambda _, data: file.write(data)})(),
}
# An object that has no descriptor and has counted nothing yet may say None because it has nothing to say.
CASES = [(kind, fill) for kind in BLOCKING for fill in (False, True) if (kind, fill) != ("counted", True)]


@pytest.mark.parametrize("kind, fill", CASES)
def test_files_that_would_block_say_how_far_they_came(kind, fill, array, serves):
    reading, writing = full_pipe()
    file = open(writing, "wb", buffering=0)
    if fill:
        while file.write(bytes(4096)) is not None:
            pass
    before = 65536 if fill else 0
    stream = BLOCKING[kind](file)
    with pytest.raises(BlockingIOError) as caught:
        hugekit.snapshot([array[:16384], array]).write_to(stream)
    assert caught.value.errno == 11
    os.set_blocking(reading, False)
    arrived = os.read(reading, 1 << 24)[before:]
    expected = array[:16384].tobytes() + array.tobytes()
    assert expected.startswith(arrived)
    # A buffer has taken what it has not written yet.
    assert len(arrived) <= caught.value.characters_written <= len(arrived) + 8192
    if not isinstance(stream, io.BufferedWriter):
        assert caught.value.characters_written == len(arrived)
    else:
        stream.raw.close()
    os.close(reading)


def test_sockets_that_do_not_block(array, serves):
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with pytest.raises(BlockingIOError) as caught:
        hugekit.snapshot(array).write_to(ours.makefile("wb", buffering=0))
    ours.close()
    arrived = b""
    while part := theirs.recv(1 << 20):
        arrived += part
    assert 0 < len(arrived) == caught.value.characters_written < array.nbytes and array.tobytes().startswith(arrived)
