"""What a type checker knows of the package: read by mypy, never run (test_types.py)."""

from typing import Any, assert_type

import hugekit
import numpy as np
import numpy.typing as npt

F8 = npt.NDArray[np.float64]
F4 = npt.NDArray[np.float32]


def makes_arrays(pool: hugekit.Pool) -> None:
    assert_type(hugekit.zeros(3), F8)
    assert_type(hugekit.empty((3, 4), np.float32), F4)
    assert_type(hugekit.zeros(3, "f4"), npt.NDArray[Any])
    assert_type(pool.zeros(3), F8)
    assert_type(pool.empty([3, 4], np.dtype(np.float32), order="F"), F4)


def makes_others_like_them(array: F4) -> None:
    assert_type(hugekit.zeros_like(array), F4)
    assert_type(hugekit.empty_like(array, np.float64), F8)
    assert_type(hugekit.zeros_like([1, 2]), npt.NDArray[Any])
    assert_type(hugekit.fork(array), F4)


def takes_snapshots(array: F4, named: dict[str, F4], several: list[F4]) -> None:
    assert_type(hugekit.snapshot(array).to_numpy(), F4)
    assert_type(hugekit.snapshot(several).to_numpy(), list[F4])
    assert_type(hugekit.snapshot(named).to_numpy(), dict[str, F4])
    mixed: dict[str, F4 | F8] = {"a": array, "b": np.ones(3)}
    saved: dict[str, npt.NDArray[Any]] = hugekit.snapshot(mixed).to_numpy()
    assert_type(saved["a"].nbytes, int)
    assert_type(hugekit.snapshot(bytearray(5)).to_numpy(), npt.NDArray[np.uint8])
    with hugekit.snapshot(array) as moment:
        assert_type(moment.to_numpy(out=array), F4)
        assert_type(moment.view(), hugekit.View[np.float32])
        assert_type(np.asarray(moment.view()), F4)
        assert_type(moment.view().dtype, np.dtype[np.float32])


def takes_them_as_arguments(moment: "hugekit.Snapshot", view: "hugekit.View") -> None:
    moment.save_npy("weights.npy")
    assert_type(view.nbytes, int)


def takes_any_memory(array: F4, data: bytearray) -> None:
    hugekit.clear(array)
    hugekit.clear(data)
    hugekit.copy(array, array)
    assert_type(hugekit.doctor()["lines"][0]["name"], str)


def loads_images(path: str) -> None:
    image = hugekit.Image.load(path, path, threads=2)
    assert_type(image.map(), memoryview)
    assert_type(image.path, str)
