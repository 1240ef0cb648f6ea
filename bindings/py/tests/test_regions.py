"""Regions: the buffer protocol, forks, ranges."""

import gc

import hugekit
import numpy as np
import pytest


def test_the_buffer_keeps_the_memory(pool):
    region = pool.region(10_000)
    assert len(region) == 10_000 and region.mapped_length >= 10_000 and region.serving is None
    view = memoryview(region)
    assert view.nbytes == 10_000 and not view.readonly and view.format == "B"
    assert bytes(view) == bytes(10_000)
    view[5:10] = b"hello"
    array = np.frombuffer(region, "u1")
    del region, view
    gc.collect()
    assert array[5:10].tobytes() == b"hello"
    assert pool.stats()["in_use"] > 0
    region, offset = hugekit.region_of(array[7:])
    assert offset == 7 and region.address == array.ctypes.data and region.pool.capacity == pool.capacity
    del region, array
    gc.collect()
    assert pool.stats()["in_use"] == 0


def test_ranges(pool):
    region = pool.region(1 << 20)
    array = np.frombuffer(region, "u1")
    array[:] = 1
    region.release(pool.page_size, pool.page_size)
    assert array.sum() == (1 << 20) - pool.page_size
    told = []
    region.populate(threads=2, progress=lambda *at: told.append(at))
    assert told[-1][0] == told[-1][1]
    region.populate(5, 10)
    region.prepare_write()
    for wrong in (lambda: region.release(1, 5), lambda: region.release(0, 1 << 40), lambda: region.populate(1 << 21)):
        with pytest.raises(ValueError):
            wrong()
    for elsewhere in (np.ones(5), np.ones(0)):
        with pytest.raises(ValueError, match="Region"):
            hugekit.region_of(elsewhere)


def test_forks_have_bytes_of_their_own(pool, serves):
    template = pool.zeros((256, 512))
    template[:] = 1
    clones = [hugekit.fork(template) for _ in range(5)]
    for mark, clone in enumerate(clones):
        assert clone.shape == template.shape and (clone == 1).all()
        clone[0, mark] = 7
    template[0] = 3
    assert all(clone[0].sum() == 511 + 7 for clone in clones) and (template[0] == 3).all()
    part = hugekit.fork(template[10:20])
    assert (part == 1).all() and part.shape == (10, 512)
    del template
    gc.collect()
    assert all((clone[1:] == 1).all() for clone in clones)
    with pytest.raises(ValueError):
        hugekit.fork(np.ones(5))


@pytest.mark.parametrize("fault_mode", ["threaded", "in place"])
def test_forks_however_they_are_served(pool, serves, fault_mode):
    region = pool.region(1 << 20)
    memoryview(region)[:5] = b"hello"
    fork = region.fork(granule=64 << 10, fault_mode=fault_mode)
    assert region.shared_bytes == 1 << 20
    memoryview(fork)[:5] = b"HELLO"
    assert bytes(memoryview(region)[:5]) == b"hello" and region.shared_bytes < 1 << 20
    for wrong in ({"granule": 5}, {"fault_mode": "neither"}):
        with pytest.raises(ValueError):
            region.fork(**wrong)
    with pytest.raises(MemoryError):
        pool.region(15 << 20).fork()


@pytest.mark.parametrize("fault_mode", ["threaded", "in place"])
def test_what_is_dirty_is_cleared_at_its_first_touch(pool, serves, fault_mode):
    dirty = pool.region(pool.capacity)
    memoryview(dirty)[:] = b"x" * len(dirty)
    pool.pause_scrubbing()
    del dirty
    region = pool.region(pool.capacity, clearing="at fault", fault_mode=fault_mode)
    assert region.serving == fault_mode
    assert not np.frombuffer(region, "u1").any()
    assert pool.stats()["scrubbed_at_fault"] == pool.capacity


def test_a_pinned_range_is_copied_at_once(pool, serves):
    region = pool.region(1 << 20)
    memoryview(region)[:5] = b"hello"
    with region.pin(0, 5) as pin:
        fork = region.fork(granule=4096)
        assert region.shared_bytes == len(region) - 4096
        memoryview(region)[:5] = b"other"
        assert bytes(memoryview(fork)[:5]) == b"hello" and not pin.closed
    pin.close()
    assert pin.closed
    del fork
    whole = region.pin()
    fork = region.fork()
    assert region.shared_bytes == 0
    with pytest.raises(ValueError):
        region.pin(1 << 20, 1)
    del fork, region
    gc.collect()
    assert pool.stats()["in_use"] > 0
    del whole
    gc.collect()
    assert pool.stats()["in_use"] == 0
