"""Tenders of this process and of others. Where memory cannot be collapsed, only that this is said is looked at."""

import os
import subprocess
import sys

import numpy as np
import pytest

import hugekit


def tender(**options):
    try:
        return hugekit.Tender(cpu_share=1.0, bytes_per_second=1 << 40, keep_free=0, **options)
    except (PermissionError, OSError) as refused:
        pytest.skip(f"memory cannot be collapsed here: {refused}")


def test_pass_changes_no_byte_and_tells_what_it_did():
    array = np.arange(4 << 20, dtype=np.uint64)  # 32 MiB
    own = tender()
    report = own.collapse()
    assert own.pid == os.getpid() == report["pid"]
    assert report["after"]["all"] >= array.nbytes
    assert report["before"]["huge"] <= report["after"]["all"]
    assert np.array_equal(array, np.arange(4 << 20, dtype=np.uint64))
    if report["hindrance"] is None and report["collapsed"]:
        assert report["after"]["huge"] > 0
    assert own.status is None


def test_child_that_is_forked_while_it_works_shares_nothing_with_it():
    with tender() as own:
        child = os.fork()
        if child == 0:
            del own
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        with pytest.raises(RuntimeError, match="at work"):
            own.collapse()
    with pytest.raises(RuntimeError, match="ended"):
        own.collapse()


def test_one_process_has_one_tender_and_gone_ones_none():
    own = tender()
    with pytest.raises(OSError, match="another tender"):
        hugekit.Tender()
    del own
    with pytest.raises(ValueError, match="gone"):
        hugekit.Tender(pid=2**31 - 1)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with pytest.raises(ValueError, match="gone"):
        hugekit.Tender(pid=ended.pid)
