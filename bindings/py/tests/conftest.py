"""Shared by the tests: whether this process may serve faults, and a small pool that any machine has."""

import os

import hugekit
import numpy as np
import pytest

MIB = 1 << 20

IS_NIGHTLY = "HUGEKIT_NIGHTLY" in os.environ
# The seed of random choices: the nightly run sets a new one.
SEED = int(os.environ.get("HUGEKIT_SEED", "1"))


def nightly(reason):
    """Marks a test that only the nightly run does, which sets HUGEKIT_NIGHTLY."""
    return pytest.mark.skipif(not IS_NIGHTLY, reason=f"nightly: {reason}")


@pytest.fixture(scope="session")
def serves():
    """For tests of what needs userfaultfd(2): they are skipped where this process may not use it."""
    try:
        hugekit.snapshot(np.ones(4 << 20, "u1")).close()
    except (PermissionError, OSError) as refused:
        pytest.skip(f"no faults can be served here: {refused}")


@pytest.fixture(params=[64, pytest.param(256, marks=nightly("it rewrites 256 MiB")), pytest.param(1024, marks=nightly("it rewrites 1 GiB"))], ids="{} MiB".format)
def size(request):
    """Bytes of a state that is saved while all of it is rewritten."""
    nbytes = request.param * MIB
    (line,) = [line for line in open("/proc/meminfo") if line.startswith("MemAvailable:")]
    available = int(line.split()[1]) << 10
    if available < 6 * nbytes:
        pytest.skip(f"{available // MIB} MiB of memory are available, and the test needs {6 * nbytes // MIB}")
    return nbytes


@pytest.fixture
def pool():
    return hugekit.Pool(16 << 20, backing="base", populate_on_allocation=True)
