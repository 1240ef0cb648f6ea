"""Arrays on pools: what numpy promises of zeros, and whose memory it is."""

import gc

import hugekit
import numpy as np
import pytest


@pytest.mark.parametrize("shape", [7, (7,), (3, 4), (2, 3, 4), (300, 400), (), 0, (5, 0)])
@pytest.mark.parametrize("dtype", ["f8", "u1", "c16", "?", "M8[ns]", "S5", [("a", "i4"), ("b", "f8", (2,))]])
@pytest.mark.parametrize("order", ["C", "F"])
def test_zeros_are_numpys(shape, dtype, order, pool):
    for array in (pool.zeros(shape, dtype, order=order), hugekit.empty(shape, dtype, order=order, pool=pool)):
        expected = np.zeros(shape, dtype, order=order)
        assert array.dtype == expected.dtype and array.shape == expected.shape
        assert array.strides == expected.strides and array.flags.writeable
        assert array.tobytes() == expected.tobytes()


def test_float64_unless_said():
    assert hugekit.zeros(3).dtype == np.float64
    assert hugekit.zeros_like(np.ones((2, 3), "i2", order="F")).flags.f_contiguous
    assert hugekit.empty_like([1, 2], "f4").dtype == np.float32


def test_what_cannot_be_is_refused(pool):
    with pytest.raises(ValueError, match="-1"):
        hugekit.zeros((3, -1))
    with pytest.raises(TypeError, match="objects"):
        hugekit.zeros(3, object)
    with pytest.raises(TypeError, match="objects"):
        hugekit.zeros(3, [("a", "i4"), ("b", "O")])
    with pytest.raises(ValueError, match="order"):
        hugekit.zeros(3, order="K")
    with pytest.raises(TypeError):
        hugekit.zeros("3")
    with pytest.raises(ValueError, match="addresses"):
        hugekit.zeros((1 << 40, 1 << 40))
    with pytest.raises(ValueError, match="no threads|thread"):
        dirty = pool.zeros(16 << 20, "u1")
        dirty[:] = 1
        del dirty
        pool.pause_scrubbing()
        pool.zeros(16 << 20, "u1", threads=0)


def test_a_shortage_is_a_memory_error_with_a_remedy(pool):
    with pytest.raises(MemoryError, match="17 MiB") as caught:
        pool.zeros(17 << 20, "u1")
    assert any("remedy" in note for note in caught.value.__notes__)
    with pytest.raises(MemoryError):
        hugekit.zeros(1 << 45, "u1")
    assert pool.stats()["in_use"] == 0


def test_memory_goes_back_with_the_last_view_and_comes_back_clean(pool):
    for _ in range(5):
        array = pool.zeros((1024, 1024), "f8")
        assert not array.any()
        array += 1
        view = array[10:20].T.reshape(-1)[::2]
        row = array[5]
        del array, view
        gc.collect()
        assert pool.stats()["in_use"] > 0
        assert row.sum() == 1024
        del row
        gc.collect()
        assert pool.stats()["in_use"] == 0


def test_arrays_keep_their_pool():
    array = hugekit.Pool(1 << 20, backing="base").zeros(1000)
    gc.collect()
    array += 5
    assert array.sum() == 5000


def test_process_wide_pools_grow_and_shrink():
    big = hugekit.zeros(96 << 20, "u1")
    small = [hugekit.zeros(1 << 20, "u1") for _ in range(20)]
    assert sum(pool.capacity for pool in hugekit.default_pools()) >= (96 + 20) << 20
    assert not big.any() and not any(array.any() for array in small)
    del big, small
    gc.collect()
    assert hugekit.trim() >= 96 << 20


def test_a_pool_says_what_it_is():
    pool = hugekit.Pool(5 << 20, backing="base", name="mine", watermarks=(1 << 20, 2 << 20))
    assert pool.backing == "base" and pool.fallbacks == [] and pool.capacity >= 5 << 20
    assert "mine" in open("/proc/self/maps").read()
    pool = hugekit.Pool(2 << 20)
    assert (pool.backing == "hugetlb 2M") == (pool.fallbacks == [])
    for wrong in ({"backing": "gold"}, {"clearing": "never"}, {"watermarks": (2, 1)}):
        with pytest.raises(ValueError):
            hugekit.Pool(1 << 20, **wrong)
    with pytest.raises(ValueError):
        hugekit.Pool(0)
    with pytest.raises((MemoryError, OSError)):
        hugekit.Pool(1 << 46, backing="hugetlb 2M", strict=True)


def test_a_pool_is_populated_when_it_is_made_and_tells_how_far_it_is():
    told = []
    pool = hugekit.Pool(64 << 20, backing="base", progress=lambda *at: told.append(at))
    assert told[-1] == (64 << 20, 64 << 20) and told == sorted(told)
    assert pool.stats()["clean"] * pool.page_size == 64 << 20
    assert pool.scrub() == 0


def test_a_pool_that_populates_on_allocation_begins_with_holes():
    pool = hugekit.Pool(4 << 20, backing="base", populate_on_allocation=True)
    assert pool.stats()["holes"] * pool.page_size == 4 << 20
    array = pool.zeros(1 << 20, "u1")
    assert pool.stats()["populated"] == array.nbytes and not array.any()
