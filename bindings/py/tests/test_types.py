"""The stubs as a type checker reads them. Its cache stays in the environment, because numpy's stubs take long."""

import pathlib
import subprocess
import sys

import pytest

TYPED = pathlib.Path(__file__).with_name("typed.py")


def test_a_type_checker_knows_what_the_functions_return(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed: pip install mypy")
    cache = pathlib.Path(sys.prefix) / "mypy_cache"
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", cache, TYPED]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_has_a_parameter_for_a_type_checker_has_it_at_run_time():
    import hugekit
    import numpy as np

    assert hugekit.View[np.float32].__origin__ is hugekit.View
    assert hugekit.Snapshot[np.ndarray, hugekit.View].__origin__ is hugekit.Snapshot
