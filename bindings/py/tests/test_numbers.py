"""Every integer that the package takes, far out of range: an error of the right kind that says which figure."""

import re

import numpy
import pytest

import hugekit

POOL = hugekit.Pool(4 << 20, backing="base")
REGION = POOL.region(1 << 20)
ARRAY = numpy.ones(1 << 16)

# Bytes and items that memory is asked for.
SIZES = {
    "zeros": hugekit.zeros,
    "zeros of a row": lambda number: hugekit.zeros((number,)),
    "zeros of rows": lambda number: hugekit.zeros((5, number), "u1"),
    "empty": hugekit.empty,
    "zeros of a pool": POOL.zeros,
    "Pool": lambda number: hugekit.Pool(number, backing="base"),
    "watermarks": lambda number: hugekit.Pool(1 << 20, backing="base", watermarks=(0, number)),
    "region": POOL.region,
    "Reserve": hugekit.Reserve,
    "max_cow_bytes": lambda number: hugekit.snapshot(ARRAY, max_cow_bytes=number),
    "populate_copies": lambda number: hugekit.snapshot(ARRAY, populate_copies=number),
}

# Offsets, addresses, granules, threads.
NUMBERS = {
    "release": lambda number: REGION.release(number, 4096),
    "release so much": lambda number: REGION.release(0, number),
    "prepare_write": REGION.prepare_write,
    "prepare to write so much": lambda number: REGION.prepare_write(0, number),
    "pin": REGION.pin,
    "pin so much": lambda number: REGION.pin(0, number),
    "populate": REGION.populate,
    "populate by threads": lambda number: REGION.populate(threads=number),
    "granule": lambda number: REGION.fork(granule=number),
    "threads of clear": lambda number: hugekit.clear(ARRAY, threads=number),
    "threads of copy": lambda number: hugekit.copy(ARRAY, ARRAY.copy(), threads=number),
    "threads of a region": lambda number: POOL.region(4096, threads=number),
    "threads of zeros": lambda number: hugekit.zeros(1 << 16, threads=number),
    "scrub_threads": lambda number: hugekit.Pool(1 << 20, backing="base", scrub_threads=number),
}


def said(call, number, error):
    with pytest.raises(error) as caught:
        call(number)
    return str(caught.value)


@pytest.mark.parametrize("name", [*SIZES, *NUMBERS])
def test_below_zero_is_no_number_of_anything(name):
    call = SIZES.get(name) or NUMBERS[name]
    for number in (-1, -(2**63), -(2**64), -(2**100)):
        assert str(number) in said(call, number, ValueError)
    assert "8001 bits" in said(call, -(2**8000), ValueError)


@pytest.mark.parametrize("name", [*SIZES, *NUMBERS])
def test_more_than_any_address_is_named(name):
    call = SIZES.get(name) or NUMBERS[name]
    for number in (2**64, 2**70, 2**100):
        assert str(number) in said(call, number, ValueError)
    assert "8001 bits" in said(call, 2**8000, ValueError)


@pytest.mark.parametrize("name", set(SIZES) - {"max_cow_bytes", "populate_copies", "watermarks", "Reserve"})
def test_what_no_machine_has_is_refused_in_figures(name):
    assert re.search(r"\d{10}|[GT]iB", said(SIZES[name], 2**48, MemoryError))
    for number in (2**62, 2**63 - 1, 2**63, 2**64 - 1):
        assert re.search(r"\d{10}|[GT]iB", said(SIZES[name], number, (MemoryError, ValueError)))


def test_a_reserve_that_no_machine_has_is_a_lack_of_memory():
    for number in (2**48, 2**62, 2**63 - 1, 2**63, 2**64 - 1):
        said(hugekit.Reserve, number, MemoryError)


def test_what_is_no_number_is_a_type_error():
    for call in [*SIZES.values(), *NUMBERS.values()]:
        for wrong in (1.5, "5", object()):
            said(call, wrong, TypeError)


def test_numbers_of_numpy_are_numbers():
    assert hugekit.zeros(numpy.int64(5)).shape == (5,)
    assert hugekit.zeros((numpy.uint8(5), numpy.int32(2))).shape == (5, 2)
    assert len(POOL.region(numpy.uint64(5))) == 5


def test_arrays_without_items_have_any_shape():
    assert hugekit.zeros((0, 2**40)).shape == (0, 2**40)


def test_a_view_knows_only_its_own_addresses():
    with hugekit.snapshot(ARRAY) as moment:
        view = moment.view()
        for address, nbytes in ((-1, 1), (2**64, 1), (0, 2**64), (ARRAY.ctypes.data, -1), (0, 2**64 - 1)):
            with pytest.raises(ValueError):
                view.rebase(address, nbytes)
