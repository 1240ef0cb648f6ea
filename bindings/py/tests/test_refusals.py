"""What a mistake is answered with: what was given, and what to write instead."""

import hugekit
import numpy as np
import pytest

GAPS = np.ones((100, 100))[:, ::2]
OBJECTS = np.array([None, 1], object)
ARRAY = np.ones((10, 10))
READ_ONLY = np.ones(1000)
READ_ONLY.flags.writeable = False


class Model:
    def state_dict(self):
        return {"weight": ARRAY}

    def __call__(self, batch):
        return batch


class TorchDtype:
    def __str__(self):
        return "torch.int7"


def ended():
    moment = hugekit.snapshot(ARRAY)
    moment.close()
    return moment


@pytest.mark.parametrize(
    "call, error, says",
    [
        (lambda: hugekit.zeros(3.5), TypeError, r"shape is 3.5, .* a tuple of integers"),
        (lambda: hugekit.zeros((2, "a")), TypeError, r"shape is \(2, 'a'\)"),
        (lambda: hugekit.zeros(3, object), TypeError, r"write numpy.zeros\(shape, object\)"),
        (lambda: hugekit.fork(ARRAY), ValueError, r"hugekit.zeros or hugekit.empty.*hugekit.snapshot\(array\)"),
        (lambda: hugekit.fork(hugekit.zeros(0)), ValueError, r"no bytes"),
        (lambda: hugekit.fork(hugekit.region_of(hugekit.zeros(9))[0]), TypeError, r"Region is no numpy array.*region.fork\(\)"),
        (lambda: hugekit.region_of(ARRAY), ValueError, r"arrays of hugekit.zeros"),
        (lambda: hugekit.clear([1, 2]), TypeError, r"list is no array: write numpy.array"),
        (lambda: hugekit.clear(5), TypeError, r"int is no array: give a numpy array"),
        (lambda: hugekit.clear(b"abc"), BufferError, r"bytes is read-only here.*bytearray\(data\)"),
        (lambda: hugekit.clear(READ_ONLY), ValueError, r"ndarray is read-only here.*array.copy\(\)"),
        (lambda: hugekit.clear(GAPS), ValueError, r"numpy.ascontiguousarray\(array\)"),
        (lambda: hugekit.clear(OBJECTS), TypeError, r"Python objects.*array.astype"),
        (lambda: hugekit.clear(ARRAY.astype("M8[s]")[:, ::2]), ValueError, r"numpy.ascontiguousarray\(array\)"),
        (lambda: hugekit.clear(ARRAY, progress=5), ValueError, r"progress is 5, .* tqdm"),
        (lambda: hugekit.copy(ARRAY, np.asfortranarray(ARRAY)), ValueError, r"numpy.copyto\(dst, src\)"),
        (lambda: hugekit.copy(ARRAY, np.ones((5, 20))), ValueError, r"src.reshape\(\(10, 10\)\)"),
        (lambda: hugekit.copy(ARRAY, np.ones((10, 10), "f4")), ValueError, r"src.astype\(float64\)"),
        (lambda: hugekit.snapshot(Model()), TypeError, r"write model.state_dict\(\)"),
        (lambda: hugekit.snapshot(array for array in [ARRAY]), TypeError, r"generator is no array: write list\(...\)"),
        (lambda: hugekit.zeros(5, TorchDtype()), TypeError, r"^torch.int7 is no dtype of numpy: write \"int7\", and torch"),
        (lambda: hugekit.snapshot({"a": {"b": ARRAY}}), TypeError, r"^a: dict is no array.*hugekit.Checkpointer"),
        (lambda: hugekit.snapshot({5: ARRAY}), TypeError, r"names are strings"),
        (lambda: hugekit.snapshot([ARRAY, GAPS], strict=True), ValueError, r"^arr_1: the array is not contiguous"),
        (lambda: hugekit.snapshot(ARRAY).to_numpy(out=[ARRAY]), ValueError, r"as one array"),
        (lambda: hugekit.snapshot({"a": ARRAY}).to_numpy(out=ARRAY), ValueError, r"as a dict of a"),
        (lambda: hugekit.snapshot([ARRAY, ARRAY]).save_npy("x"), ValueError, r"write savez\(path\)"),
        (lambda: hugekit.snapshot(bytearray(9)).save_npy("x"), TypeError, r"write_to\(file\)"),
        (lambda: ended().to_numpy(), ValueError, r"has ended.*hugekit.snapshot"),
        (lambda: hugekit.Checkpointer(Model()), TypeError, r"is a Model: write model.state_dict\(\)"),
        (lambda: hugekit.Checkpointer({"a": OBJECTS}), TypeError, r"^a has the dtype object.*array.astype"),
        (lambda: hugekit.Pool(1 << 20, adopt=999), ValueError, r"adopt is 999"),
        (lambda: hugekit.load_checkpoint(5), TypeError, r"paths is 5"),
    ],
)
def test_a_mistake_is_answered_with_the_way(call, error, says, serves):
    with pytest.raises(error, match=says):
        call()


def test_a_missing_file_is_named_by_its_path(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        hugekit.load_checkpoint(tmp_path / "nothing")
    assert caught.value.filename == str(tmp_path / "nothing")
