"""Effects on a whole process: forked children, faulthandler, the interpreter's end. Each in a process of its own."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.usefixtures("serves")


def run(code, *flags):
    done = subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def succeeds(code, *flags):
    status, out, err = run(code, *flags)
    assert status == 0, f"{out}\n{err}"


FORK = """
import gc, os, hugekit, numpy as np
pool = hugekit.Pool(8 << 20, backing="base")
array, other = pool.zeros(1000), hugekit.zeros(1000)
region = pool.region(100)
own = np.ones(8 << 20, "u1")
moment = hugekit.snapshot(own)
child = os.fork()
if child == 0:
    {child}
    os._exit(0)
assert os.waitpid(child, 0)[1] == {status}
array += 1
assert array.sum() == 1000 and other.sum() == 0
own[:] = 2
assert (moment.to_numpy() == 1).all()
"""


@pytest.mark.parametrize(
    "child, status",
    [
        ("del array, other, region, pool, moment; gc.collect()", "0"),
        ("fresh = hugekit.zeros(1000); fresh += 1; assert fresh.sum() == 1000", "0"),
        ("own[:] = 3; assert own.sum() == 3 * own.size", "0"),
        ("assert (hugekit.snapshot(own).to_numpy() == 1).all()", "0"),
        ("hugekit.copy(np.empty_like(own), own, threads=2)", "0"),
        ("array[0]", "11"),
    ],
)
def test_a_forked_child(child, status):
    succeeds(FORK.format(child=child, status=status))


@pytest.mark.parametrize("call", ["pool.zeros(5)", "pool.region(5)", "pool.stats()", "region.release(0, 100)", "moment.to_numpy()"])
def test_a_forked_child_is_refused_what_it_has_not(call):
    refused = f"""
    try:
        {call}
    except RuntimeError as error:
        assert "forked" in str(error), error
    else:
        os._exit(1)
"""
    succeeds(FORK.format(child=refused.strip(), status="0"))


def test_multiprocessing_by_fork():
    succeeds("""
import multiprocessing, hugekit, numpy as np
array = hugekit.zeros(100_000)
def work(number):
    mine = hugekit.zeros(100_000)
    mine += number
    return float(mine.sum())
with multiprocessing.get_context("fork").Pool(2) as workers:
    assert workers.map(work, range(8)) == [100_000.0 * number for number in range(8)]
array += 1
assert array.sum() == 100_000
""")


IN_PLACE = """
def snapshot():
    array = np.ones(8 << 20, "u1")
    with hugekit.snapshot(array, fault_mode="in place") as moment:
        array[:] = 2
        assert moment.serving == "in place" and (moment.to_numpy() == 1).all()

def fork():
    region = hugekit.Pool(8 << 20, backing="base").region(1 << 20)
    other = region.fork(fault_mode="in place")
    memoryview(region)[0] = 1
    assert memoryview(other)[0] == 0
"""


@pytest.mark.parametrize("needs", ["snapshot()", "fork()"])
@pytest.mark.parametrize(
    "order",
    [
        "import faulthandler; faulthandler.enable(); import hugekit, numpy as np\n{0}\n{1}; {1}",
        "import hugekit, faulthandler, numpy as np; faulthandler.enable()\n{0}\n{1}; {1}",
        "import hugekit, faulthandler, numpy as np\n{0}\n{1}; faulthandler.enable(); {1}; faulthandler.disable(); {1}",
    ],
    ids=["before import", "after import", "after use"],
)
def test_faulthandler(order, needs):
    succeeds(order.format(IN_PLACE, needs))
    succeeds(order.format(IN_PLACE, needs), "-X", "faulthandler")


def test_faulthandler_still_tells_of_foreign_signals():
    code = f"import faulthandler; faulthandler.enable(); import hugekit, numpy as np\n{IN_PLACE}\nsnapshot()\n"
    for kill in ("faulthandler._sigsegv()", "import os, signal; os.kill(os.getpid(), signal.SIGBUS)"):
        status, _, err = run(code + kill)
        assert status < 0 and "Fatal Python error" in err, err


def test_the_interpreter_ends_with_everything_alive():
    succeeds("""
import hugekit, numpy as np
pool = hugekit.Pool(8 << 20, backing="base")
array = pool.zeros(1000)
own = np.ones(8 << 20, "u1")
moment = hugekit.snapshot(own)
region = pool.region(1 << 20)
other = region.fork()
own[:] = 2
""")


def test_without_the_gil_the_import_is_refused():
    # What an interpreter without says of itself; none of those that have one says so.
    succeeds(
        """
import sys
sys._is_gil_enabled = lambda: False
try:
    import hugekit
except ImportError as refused:
    assert "GIL" in str(refused)
else:
    raise AssertionError("imported")
sys._is_gil_enabled = lambda: True
import hugekit
"""
    )


SUBINTERPRETER = """
import importlib, sys
for name in ("_interpreters", "_xxsubinterpreters"):
    try:
        interpreters = importlib.import_module(name)
        break
    except ImportError:
        pass
else:
    sys.exit(77)

REFUSED = '''
try:
    import hugekit
except ImportError as refused:
    assert "subinterpreter" in str(refused) and "main interpreter" in str(refused), refused
else:
    raise AssertionError("imported")
'''

def refuse():
    for _ in range(2):
        failed = interpreters.run_string(interpreters.create(), REFUSED)
        assert failed is None, failed

{}
import numpy
with hugekit.snapshot(numpy.ones(1 << 20)) as moment:
    assert moment.to_numpy().all()
"""


@pytest.mark.parametrize("order", ["refuse(); import hugekit", "import hugekit; refuse()"])
def test_a_subinterpreter_is_refused_with_the_way_and_the_main_one_is_not(order):
    status, out, err = run(SUBINTERPRETER.replace("{}", order))
    if status == 77:
        pytest.skip("this Python has neither _interpreters nor _xxsubinterpreters")
    assert status == 0, f"{out}\n{err}"
