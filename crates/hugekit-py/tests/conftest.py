"""Shared by the tests: whether this process may serve faults, and a small pool that any machine has."""

import hugekit
import numpy as np
import pytest


@pytest.fixture(scope="session")
def serves():
    """For tests of what needs userfaultfd(2): they are skipped where this process may not use it."""
    try:
        hugekit.snapshot(np.ones(4 << 20, "u1")).close()
    except (PermissionError, OSError) as refused:
        pytest.skip(f"no faults can be served here: {refused}")


@pytest.fixture
def pool():
    return hugekit.Pool(16 << 20, backing="base")
