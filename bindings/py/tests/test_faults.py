"""Programs that may serve only the faults of their own code: memory is copied at once, and nothing of theirs fails.

Each program runs as a user without rights. Where the kernel lets that user serve all faults, nothing is copied.
"""

import os
import subprocess
import sys
import textwrap

import pytest

IS_ROOT = os.geteuid() == 0

OPENING = """
import ctypes, faulthandler, os, signal, socket, sys, threading
import numpy
import hugekit

array = numpy.ones(4 << 20)
os.setgroups([]), os.setgid(65534), os.setuid(65534)
if "--still-roots" not in sys.argv:
    # /proc/self belongs to the new user, as after an exec.
    ctypes.CDLL(None).prctl(4, 1)

def check(moment, modes=("copied", "threaded")):
    assert moment.serving in modes, moment.serving
    array[:] = 2
    before = moment.to_numpy()
    assert all((part == 1).all() for part in (before.values() if isinstance(before, dict) else [before]))
    array[:] = 1
"""

pytestmark = pytest.mark.skipif(not IS_ROOT, reason="needs root, to become a user without rights")


def as_nobody(program, *arguments):
    code = OPENING + textwrap.dedent(program)
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    return done


@pytest.fixture
def folder(tmp_path):
    """A folder of any user."""
    for above in (tmp_path, *tmp_path.parents):
        if not above.stat().st_mode & 0o001:
            above.chmod(above.stat().st_mode | 0o011)
    tmp_path.chmod(0o777)
    return tmp_path


def test_reason_is_logged_once_with_its_remedy():
    done = as_nobody(
        """
        for _ in range(2):
            with hugekit.snapshot(array) as moment:
                check(moment)
                print(moment.serving, moment.copied_bytes)
        """
    )
    if "copied" in done.stdout:
        assert done.stdout.split() == ["copied", str(32 << 20)] * 2
        assert done.stderr.count("memory is copied at once") == 1 and "remedy" in done.stderr, done.stderr


def test_system_calls_write_to_arrays_between_saves(folder):
    as_nobody(
        """
        checkpointer = hugekit.Checkpointer({"a": array})
        checkpointer.save(sys.argv[1] + "/first")
        assert checkpointer.serving in ("copied", "threaded"), checkpointer.serving
        mine, other = socket.socketpair()
        sent = numpy.full_like(array, 3).view(numpy.uint8)
        thread = threading.Thread(target=other.sendall, args=(sent,))
        thread.start()
        taken = memoryview(array.view(numpy.uint8))
        while taken:
            taken = taken[mine.recv_into(taken):]
        thread.join()
        with open("/dev/zero", "rb", buffering=0) as zeroes:
            assert zeroes.readinto(array[: 1 << 20]) == 8 << 20
        second = checkpointer.save(sys.argv[1] + "/second")
        array[:] = 9
        hugekit.restore([sys.argv[1] + "/first", sys.argv[1] + "/second"], {"a": array})
        assert (array[: 1 << 20] == 0).all() and (array[1 << 20 :] == 3).all()
        """,
        folder,
    )


def test_thread_that_blocks_all_signals_is_no_obstacle():
    as_nobody(
        """
        def wait(event):
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            event.wait()
        event = threading.Event()
        threading.Thread(target=wait, args=(event,), daemon=True).start()
        with hugekit.snapshot(array) as moment:
            check(moment)
        event.set()
        """
    )


def test_handlers_of_others_come_and_go(folder):
    as_nobody(
        """
        faulthandler.enable()
        checkpointer = hugekit.Checkpointer([array])
        checkpointer.save(sys.argv[1] + "/first")
        faulthandler.disable()
        array[:] = 4
        signal.signal(signal.SIGBUS, signal.SIG_DFL)
        checkpointer.save(sys.argv[1] + "/second")
        array[:] = 5
        """,
        folder,
    )


def test_forked_child_takes_snapshots():
    as_nobody(
        """
        with hugekit.snapshot(array) as moment:
            child = os.fork()
            if not child:
                signal.signal(signal.SIGBUS, signal.SIG_DFL)
                with hugekit.snapshot(array) as own:
                    check(own)
                os._exit(7)
            assert os.waitpid(child, 0)[1] == 7 << 8
            check(moment)
        """
    )


def test_arrays_of_a_pool_are_copied():
    as_nobody(
        """
        array = hugekit.Pool(128 << 20, backing="base").zeros(4 << 20)
        array[:] = 1
        with hugekit.snapshot({"pool": array, "other": numpy.ones(1 << 20)}) as moment:
            check(moment)
        """
    )


def test_process_that_was_roots_copies():
    as_nobody(
        """
        with hugekit.snapshot(array) as moment:
            check(moment, modes=("copied",))
        """,
        "--still-roots",
    )


def test_log_runs_no_python_between_arrays_of_a_moment():
    as_nobody(
        """
        import logging
        class Writes(logging.Handler):
            def emit(self, record):
                array[:] = 7
        logging.getLogger("hugekit").addHandler(Writes())
        first = hugekit.Pool(128 << 20, backing="base").zeros(4 << 20)
        with hugekit.snapshot([first, array]) as moment:
            copied = moment.serving == "copied"
            assert (moment.to_numpy()[1] == 1).all()
        assert (array == (7 if copied else 1)).all()
        """
    )


def test_modes_that_are_named_are_what_is_done():
    as_nobody(
        """
        with hugekit.snapshot(array, fault_mode="in place") as moment:
            check(moment, modes=("in place",))
        try:
            with hugekit.snapshot(array, fault_mode="threaded") as moment:
                check(moment, modes=("threaded",))
        except PermissionError as refused:
            assert "remedy" in str(refused) or refused.__notes__
        try:
            hugekit.snapshot(array, strict=True).close()
        except PermissionError:
            pass
        """
    )
