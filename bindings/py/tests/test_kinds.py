"""What happens with each kind of object, as the tables of docs/python.md say it: it is kept with its class, or refused."""

import array
import collections
import copy
import ctypes
import dataclasses
import datetime
import enum
import gc
import mmap
import pathlib
import re
import subprocess
import sys
import typing
import warnings

import hugekit
import numpy
import pytest

try:
    import torch
except ImportError:
    torch = None
try:
    import ml_dtypes
except ImportError:
    ml_dtypes = None

PAGE = pathlib.Path(__file__).parents[3] / "docs/python.md"
needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed: pip install hugekit[torch]")
needs_ml_dtypes = pytest.mark.skipif(ml_dtypes is None, reason="ml_dtypes is not installed")

Moments = collections.namedtuple("Moments", "count mean")
# Under another name than its own.
Renamed = collections.namedtuple("Original", "x y")


class Typed(typing.NamedTuple):
    x: object
    y: int = 0


class Outer:
    class Inner(typing.NamedTuple):
        x: object


class Quantity(numpy.ndarray):
    """As astropy has it: a number of elements with a unit."""

    def __new__(cls, values, unit):
        made = numpy.asarray(values).view(cls)
        made.unit = unit
        return made

    def __array_finalize__(self, of):
        self.unit = getattr(of, "unit", None)


class Config(dict):
    pass


class Color(enum.IntEnum):
    RED = 1


@dataclasses.dataclass
class Settings:
    rate: float


class ArrayOfAnotherLibrary:
    dtype, shape = numpy.dtype("f8"), (3,)

    def __array__(self, dtype=None, copy=None):
        return numpy.ones(3)

    def __eq__(self, other):
        return type(other) is type(self)


if torch is not None:

    class Tagged(torch.Tensor):
        pass

    class Scaled(torch.Tensor):
        """Consists of other tensors, as those of torchao do, of which some cannot be cloned."""

        __torch_function__ = torch._C._disabled_torch_function_impl

        @staticmethod
        def __new__(cls, codes, scale):
            return torch.Tensor._make_wrapper_subclass(cls, codes.shape, dtype=scale.dtype)

        def __init__(self, codes, scale):
            self.codes, self.scale = codes, scale

        def __tensor_flatten__(self):
            return ["codes", "scale"], None

        @classmethod
        def __tensor_unflatten__(cls, parts, context, size, stride):
            return cls(**parts)

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            if function is torch.ops.aten.detach.default:
                return cls(args[0].codes, args[0].scale)
            raise NotImplementedError(str(function))

    class Unique(torch.Tensor):
        def __deepcopy__(self, memo):
            raise ValueError("there is one only")


def tables():
    """The first column's expressions of each table of the section, with the words of the other columns."""
    section = PAGE.read_text().split("\n## Objects\n")[1].split("\n## ")[0]
    for table in re.findall(r"((?:^\|.*\n)+)", section, re.MULTILINE):
        titles, _, *rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in re.sub(r"\|\n", "|\n", table).splitlines()]
        titles = [title.strip("` |") for title in titles]
        for row in rows:
            words = [word.strip("| ") for word in row[1:]]
            for expression in re.findall(r"`([^`]*[^`\w][^`]*|None|True|\d)`", row[0]):
                yield expression, dict(zip(titles[1:], words))


ROWS = [(expression, words) for expression, words in tables() if expression != "ndarray"]


def test_tables_have_their_rows():
    assert len(ROWS) >= 50 and {word for _, words in ROWS for word in words.values()} == {"kept", "refused", "as an array", "as a tensor", ""}


def made(expression, tmp_path, monkeypatch):
    if "torch" in expression and torch is None or "ml_dtypes" in expression and ml_dtypes is None:
        pytest.skip("a library is not installed")
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return eval(expression, globals())


def raw(thing):
    """What is compared of an array or tensor besides its class."""
    if torch is not None and isinstance(thing, torch.Tensor):
        if thing.is_nested:
            return [raw(part) for part in thing.unbind()]
        if hasattr(thing, "__tensor_flatten__"):
            return thing.requires_grad, [raw(getattr(thing, name)) for name in thing.__tensor_flatten__()[0]]
        if thing.layout != torch.strided:
            return str(thing.layout), raw(thing.to_dense())
        if thing.is_quantized:
            return thing.q_scale(), raw(thing.int_repr())
        plain = thing.detach().as_subclass(torch.Tensor).resolve_conj().contiguous()
        return str(thing.dtype), tuple(thing.shape), thing.requires_grad, plain.view(torch.uint8).numpy().tobytes()
    extra = getattr(thing, "unit", None), numpy.ma.getmaskarray(thing).tolist() if isinstance(thing, numpy.ma.MaskedArray) else None
    return thing.dtype, thing.shape, extra, None if thing.dtype.hasobject else numpy.asarray(thing).tobytes()


def is_array(thing):
    return isinstance(thing, numpy.ndarray) or torch is not None and isinstance(thing, torch.Tensor)


def assert_kept(found, thing):
    assert type(found) is type(thing)
    if is_array(thing):
        assert raw(found) == raw(thing)
    elif isinstance(thing, collections.defaultdict):
        assert found == thing and found.default_factory is thing.default_factory
    else:
        assert found == thing and repr(found) == repr(thing) or isinstance(thing, ArrayOfAnotherLibrary)
    if isinstance(thing, dict):
        assert list(found) == list(thing) and [type(value) for value in found.values()] == [type(value) for value in thing.values()]
    if isinstance(thing, numpy.generic):
        assert found.dtype == thing.dtype


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("expression, words", ROWS, ids=[expression for expression, _ in ROWS])
def test_a_row_of_the_table(expression, words, tmp_path, monkeypatch, serves):
    thing = made(expression, tmp_path, monkeypatch)
    if "snapshot" in words:
        row_of_snapshot(thing, words["snapshot"])
    row_of_checkpointer(thing, words["Checkpointer"], tmp_path)
    if torch is not None and words["stager"]:
        row_of_stager(thing, words["stager"])


def row_of_snapshot(thing, word):
    uses = [hugekit.snapshot, lambda thing: hugekit.snapshot([thing]), hugekit.clear, hugekit.region_of]
    uses += [lambda thing: hugekit.copy(numpy.ones(1), thing), lambda thing: hugekit.copy(thing, numpy.ones(1))]
    if word == "refused":
        for use in uses:
            with pytest.raises(TypeError, match="write|make it outside"):
                use(thing)
        with pytest.raises(TypeError, match="w: .*(write|make it outside)"):
            hugekit.snapshot({"w": thing})
        return
    with hugekit.snapshot(thing) as moment:
        found = moment.to_numpy()
    if word == "kept":
        assert_kept(found, thing)
    else:
        assert word == "as an array" and type(found) is numpy.ndarray
        assert found.tobytes() == (raw(thing)[3] if is_array(thing) else bytes(thing))
    hugekit.copy(thing, copy.deepcopy(thing))


def row_of_checkpointer(thing, word, tmp_path):
    if word == "refused":
        for tree in ({"a": {"b": [thing]}}, [{"b": thing}]):
            with pytest.raises(TypeError, match=r"(a\.b\.0|0\.b) .*(write|make it outside)"):
                hugekit.Checkpointer(tree)
            with pytest.raises((TypeError, ValueError)):
                hugekit.restore(tmp_path / "absent", tree)
        return
    with hugekit.Checkpointer({"a": {"b": [thing]}}) as saver:
        saver.save(tmp_path / "0.delta")
    found = hugekit.load_checkpoint(tmp_path / "0.delta")["a"]["b"][0]
    if word == "kept":
        assert_kept(found, thing)
    else:
        assert word == "as an array" and type(found) is numpy.ndarray and raw(found) == raw(thing)
    into = {"a": {"b": [copy.deepcopy(thing)]}}
    restored = hugekit.restore(tmp_path / "0.delta", into)["a"]["b"][0]
    assert type(restored) is type(thing) and (restored is into["a"]["b"][0] or not is_array(thing))


def row_of_stager(thing, word):
    from hugekit.torch import SnapshotStager

    stager = SnapshotStager()
    big = torch.ones(1 << 19)
    found = stager.stage({"a": [thing], "big": big}).result()["a"][0]
    stager.close()
    if word == "kept":
        if is_array(thing) and not isinstance(thing, numpy.ndarray) and thing.requires_grad:
            thing = thing.detach()
        assert_kept(found, thing)
    else:
        assert word == "as a tensor" and type(found) is torch.Tensor and raw(found)[3] == raw(thing)[3]


# What no table names.
@pytest.mark.parametrize(
    "thing, says",
    [
        (numpy.array(["a"], "O"), "references"),
        (numpy.char.array(["ab"]), "chararray"),
        (numpy.arange(3).view(type("Own", (numpy.ndarray,), {})), "Own, a subclass"),
        (numpy.rec.fromrecords([(1, 2.0)]).view(numpy.ndarray), "numpy.record"),
        (numpy.zeros(3, numpy.dtype((numpy.record, [("a", "i4")]))), "numpy.record"),
        (type("Text", (str,), {})("x"), r"str\(a\)"),
        (type("Number", (int,), {})(3), r"int\(a\)"),
        (type("Real", (float,), {})(3), r"float\(a\)"),
        (enum.Enum("Kind", "A").A, r"a\.value"),
        (enum.IntFlag("Flags", "A B").A, r"a\.value"),
        (type("List", (list,), {})([1]), r"list\(a\)"),
        (type("Dict", (dict,), {})(a=1), r"dict\(a\)"),
        (type("Ordered", (collections.OrderedDict,), {})(a=1), r"dict\(a\)"),
        (collections.UserDict(a=1), r"dict\(a\)"),
        (collections.ChainMap({}), r"dict\(a\)"),
        (type(sys)("m"), "module"),
        (sys.version_info, r"tuple\(a\)"),
        (pathlib.PurePosixPath("x"), r"str\(a\)"),
        (datetime.datetime(2026, 1, 1), "isoformat"),
        (frozenset([1]), r"sorted\(a\)"),
        (range(3), r"list\(a\)"),
        (bytearray(b"x"), r"bytes\(a\)"),
        (memoryview(b"x"), r"bytes\(a\)"),
        ({numpy.int64(3): 1}, "the key"),
        ({Color.RED: 1}, "the key"),
        ({numpy.str_("x"): 1}, "the key"),
        ({b"x": 1}, "the key"),
        (collections.namedtuple("Nowhere", "x")(1), r"cannot be found again.*_asdict"),
        (dataclasses.make_dataclass("Slots", ["x"], slots=True)(1), "dataclasses.asdict"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_others_are_refused_at_the_first_moment(thing, says):
    with pytest.raises(TypeError, match=says):
        hugekit.Checkpointer({"a": thing})


def roundtrip(tree, tmp_path):
    with hugekit.Checkpointer(tree) as saver:
        saver.save(tmp_path / "r.delta")
    return hugekit.load_checkpoint(tmp_path / "r.delta")


def test_containers_with_arrays_in_them(tmp_path, serves):
    big = numpy.arange(1 << 18, dtype="f4")
    tree = {
        "moments": Moments(numpy.zeros(1), (Moments(big, None), ())),
        "typed": Typed(big[:10], 5),
        "inner": Outer.Inner([big]),
        "renamed": Renamed(big, {"x": big}),
        "ordered": collections.OrderedDict([("z", big), ("a", numpy.ones(3))]),
        "default": collections.defaultdict(dict, k={"v": big}),
    }
    loaded = roundtrip(tree, tmp_path)
    restored = hugekit.restore(tmp_path / "r.delta", tree)
    for found in (loaded, restored):
        assert type(found["moments"]) is Moments and type(found["moments"].mean[0]) is Moments
        assert (found["moments"].mean[0].count == big).all() and found["moments"].mean[1] == ()
        assert type(found["typed"]) is Typed and found["typed"].y == 5 and type(found["inner"]) is Outer.Inner
        assert type(found["renamed"]) is Renamed and (found["renamed"].y["x"] == big).all()
        assert type(found["ordered"]) is collections.OrderedDict and list(found["ordered"]) == ["z", "a"]
        found["default"]["new"]["made"] = 1


def test_a_namedtuple_that_was_not_imported_is_named(tmp_path, serves):
    (tmp_path / "elsewhere.py").write_text("import collections\nState = collections.namedtuple('State', 'x y')\n")
    write = "import sys; sys.path.insert(0, sys.argv[1]); import elsewhere, hugekit; hugekit.Checkpointer({'a': elsewhere.State([1], 2)}).save(sys.argv[1] + '/s.delta')"
    subprocess.run([sys.executable, "-c", write, tmp_path], check=True)
    with pytest.raises(ImportError, match=r"State of elsewhere.*x, y.*import elsewhere"):
        hugekit.load_checkpoint(tmp_path / "s.delta")
    # Another class with the same fields, at the same place of the given arrays, is used instead.
    assert type(hugekit.restore(tmp_path / "s.delta", {"a": Renamed([0], 0)})["a"]) is Renamed
    read = write.replace("hugekit.Checkpointer({'a': elsewhere.State([1], 2)}).save(", "print(hugekit.load_checkpoint(") + ")"
    done = subprocess.run([sys.executable, "-c", read, tmp_path], capture_output=True, text=True)
    assert done.stdout == "{'a': State(x=[1], y=2)}\n", done.stderr


def test_nothing_changes_if_a_class_is_missing(tmp_path, serves):
    weights = numpy.ones(1 << 18)
    hugekit.Checkpointer({"w": weights, "m": Moments(1, 2)}).save(tmp_path / "f.delta")
    weights[:] = 5
    globals()["Moments"], kept = None, Moments
    try:
        with pytest.raises(ImportError, match="Moments"):
            hugekit.restore(tmp_path / "f.delta", {"w": weights})
    finally:
        globals()["Moments"] = kept
    assert (weights == 5).all()


SCALARS = [
    numpy.float16(0.1), numpy.float32(0.1), numpy.float64(0.1), numpy.longdouble("0.1"), numpy.int8(-3), numpy.uint64(2**64 - 1),
    numpy.complex64(1 + 2j), numpy.bool_(False), numpy.float32("nan"), numpy.float64("-inf"), numpy.float32(-0.0),
    numpy.timedelta64(5, "s"), numpy.datetime64("NaT"), numpy.str_(""), numpy.str_("a\0"), numpy.bytes_(b"a\0"), numpy.void(b"abc"),
    0.1, -0.0, float("inf"), 2**70, -(2**70), True, False, 1 - 0.0j, complex("nan+infj"), b"", b"\xff", "\ud800", "",
]


def test_values_keep_their_class_and_bits(tmp_path, serves):
    found = roundtrip({"values": SCALARS, "w": numpy.ones(3)}, tmp_path)["values"]
    for value, loaded in zip(SCALARS, found, strict=True):
        assert type(loaded) is type(value) and repr(loaded) == repr(value)
        if isinstance(value, numpy.generic):
            # The rest of the 16 bytes of a longdouble is padding.
            assert loaded.dtype == value.dtype and (isinstance(value, numpy.longdouble) or loaded.tobytes() == value.tobytes())


def test_a_metric_may_become_a_number_of_numpys(tmp_path, serves):
    state = {"w": numpy.ones(1 << 20), "best": None}
    with hugekit.Checkpointer(lambda: state) as saver:
        saver.save(tmp_path / "0")
        state["best"] = numpy.float32(0.91)
        assert not saver.save(tmp_path / "1", wait=False).wait().is_full
    best = hugekit.load_checkpoint([tmp_path / "0", tmp_path / "1"])["best"]
    assert type(best) is numpy.float32 and best == numpy.float32(0.91)


@needs_ml_dtypes
def test_dtypes_of_a_library_are_saved_by_their_name(tmp_path, serves):
    names = [name for name in dir(ml_dtypes) if name.startswith(("bfloat", "float", "int", "uint")) and isinstance(getattr(ml_dtypes, name), type)]
    assert len(names) >= 10
    state = {name: (numpy.arange(1 << 12) % 2).astype(getattr(ml_dtypes, name)) for name in names}
    found = roundtrip(state, tmp_path)
    assert {name: array.dtype for name, array in found.items()} == {name: array.dtype for name, array in state.items()}
    assert all(found[name].tobytes() == state[name].tobytes() for name in names)
    # Loaded by a program that has not imported the library.
    read = "import sys, hugekit; print(*(array.dtype for array in hugekit.load_checkpoint(sys.argv[1]).values()))"
    done = subprocess.run([sys.executable, "-c", read, tmp_path / "r.delta"], capture_output=True, text=True)
    assert done.stdout.split() == names, done.stderr
    # And where there is none.
    hidden = "import sys; sys.modules['ml_dtypes'] = None; import hugekit; hugekit.load_checkpoint(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", hidden, tmp_path / "r.delta"], capture_output=True, text=True)
    assert "pip install ml_dtypes" in done.stderr and "ImportError" in done.stderr


@needs_ml_dtypes
def test_bytes_of_one_dtype_are_not_another(tmp_path, serves):
    four = (numpy.arange(64) % 5).astype(ml_dtypes.int4)
    others = [numpy.zeros(64, dtype) for dtype in (ml_dtypes.float8_e4m3fn, ml_dtypes.uint4, "V1", "u1", "i1", "S1")]
    roundtrip({"x": four}, tmp_path)
    for other in others:
        with pytest.raises(ValueError, match="x was saved as ml_dtypes.int4"):
            hugekit.restore(tmp_path / "r.delta", {"x": other})
        with pytest.raises(ValueError, match="dtype"):
            hugekit.copy(other, four)
        if other.dtype != "u1":
            with pytest.raises(ValueError, match="out has the dtype"):
                hugekit.snapshot(four).to_numpy(out=other)
        assert not other.view("u1").any()
    # Its bytes, if that is what is asked for.
    assert hugekit.snapshot(four).to_numpy(out=others[3]).tobytes() == four.tobytes()


@pytest.mark.parametrize(
    "dtype",
    [
        numpy.dtype([("a", "u2"), ("b", "u4")], align=True),
        numpy.dtype([("a", "u2"), ("b", "u4")]),
        numpy.dtype({"names": ["a", "b"], "formats": ["f4", "f4"], "offsets": [0, 8], "itemsize": 16}),
        numpy.dtype([("a", "u1"), ("v", "f8", (3, 2))], align=True),
        numpy.dtype([("when", "M8[3h]"), ("big", ">f8")]),
    ],
)
def test_structures_keep_their_layout(tmp_path, serves, dtype):
    array = numpy.frombuffer(numpy.random.default_rng(1).bytes(dtype.itemsize << 17), dtype).copy()
    hugekit.Checkpointer({"a": array}).save(tmp_path / "0")
    loaded = hugekit.load_checkpoint([tmp_path / "0"])["a"]
    assert loaded.dtype == dtype and loaded.dtype.isalignedstruct == dtype.isalignedstruct
    assert loaded.dtype.fields == dtype.fields and loaded.tobytes() == array.tobytes()
    restored = numpy.zeros_like(array)
    hugekit.restore([tmp_path / "0"], {"a": restored})
    assert restored.tobytes() == array.tobytes()


def test_a_name_of_a_dtype_that_is_none_is_refused():
    for name in ("aligned ", "aligned '<f4'", "aligned float64", "aligned aligned [('a', '<f4')]x"):
        with pytest.raises(ValueError, match="is not a dtype"):
            hugekit._kinds.dtype_of(name)


@needs_ml_dtypes
def test_a_npy_file_has_no_dtype_that_it_cannot_name(tmp_path, serves):
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.int4, ml_dtypes.float8_e5m2, [("a", ml_dtypes.bfloat16)]):
        array = numpy.zeros(10, dtype)
        for save in ("save_npy", "savez"):
            moment = hugekit.snapshot(array)
            with pytest.raises(TypeError, match="dtype.*write array.view"):
                getattr(moment, save)(tmp_path / "x")
            assert not moment.closed and moment.to_numpy().dtype == array.dtype
    assert list(tmp_path.iterdir()) == []
    hugekit.snapshot(array.view("V2")).save_npy(tmp_path / "x")


def test_metadata_is_left_out_with_numpys_warning(tmp_path, serves):
    array = numpy.ones(10, numpy.dtype("f8", metadata={"unit": "m"}))
    with pytest.warns(UserWarning, match="metadata"):
        assert roundtrip({"x": array}, tmp_path)["x"].tobytes() == array.tobytes()


def test_objects_with_a_buffer_are_bytes(serves):
    for thing in (bytearray(b"abc"), memoryview(bytearray(b"abc")), mmap.mmap(-1, 4096), array.array("d", [1]), (ctypes.c_double * 9)(), hugekit.Pool(2 << 20, backing="base").region(4096)):
        if not isinstance(thing, mmap.mmap):
            assert hugekit.snapshot(thing).to_numpy().tobytes() == bytes(thing)
        hugekit.clear(thing)
        assert not any(bytes(thing))
    with pytest.raises(TypeError, match=r"one number of numpy's \(float64\).*numpy.array\(number\)"):
        hugekit.clear(numpy.float64(3))
    for nothing in (None, 3, "text", [1], object(), numpy.float64(3)):
        with pytest.raises(TypeError):
            hugekit.clear(nothing)
        with pytest.raises(TypeError):
            hugekit.copy(numpy.ones(1), nothing)


LIBRARY = """
import sys
try:
    __import__(sys.argv[1])
except ImportError as missing:
    sys.exit(f"missing: {missing}")
import hugekit, numpy
thing = eval(sys.argv[2], {sys.argv[1].partition(".")[0]: sys.modules[sys.argv[1].partition(".")[0]]})
for use in (hugekit.snapshot, hugekit.clear, lambda thing: hugekit.copy(numpy.ones(1), thing), lambda thing: hugekit.Checkpointer({"a": thing})):
    try:
        use(thing)
    except TypeError as error:
        print(error)
"""
THINGS = [
    ("pandas", "pandas.Series([1.0])"),
    ("pandas", "pandas.DataFrame([[1.0]])"),
    ("pandas", "pandas.Index([1.0])"),
    ("pandas", "pandas.Categorical(['a'])"),
    ("jax", "jax.numpy.ones(3)"),
    ("xarray", "xarray.DataArray([1.0])"),
    ("xarray", "xarray.Dataset({'a': 1.0})"),
    ("dask.array", "dask.array.ones(3)"),
    ("pyarrow", "pyarrow.array([1.0])"),
    ("astropy.units", "[1.0] * astropy.units.km"),
]


@pytest.mark.parametrize("library, expression", THINGS)
def test_arrays_of_libraries(library, expression):
    """In a process of its own, because threads of some libraries block signals."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", LIBRARY, library, expression], capture_output=True, text=True)
    if done.stderr.startswith("missing: "):
        pytest.skip(done.stderr)
    lines = done.stdout.splitlines()
    assert len(lines) == 4, (done.stdout, done.stderr)
    assert all("write " in line and "is a" in line for line in lines) and lines[3].startswith("a is a")


def test_zeros_like_keeps_or_refuses(serves):
    for thing in (numpy.ma.masked_array([1.0]), numpy.matrix([[1.0]]), Quantity([1.0], "km")):
        with pytest.raises(TypeError, match="write"):
            hugekit.zeros_like(thing)
    assert hugekit.zeros_like([1.0, 2.0]).shape == (2,)
    if torch is not None:
        assert hugekit.zeros_like(torch.ones(3, requires_grad=True)).dtype == "f4"


@needs_torch
def test_elements_that_numpy_lacks_are_not_mixed(tmp_path, serves):
    brain, half, eight, other = (torch.ones(64, dtype=dtype) for dtype in (torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2))
    for dst, src in ((half, brain), (eight, other), (torch.zeros(64, dtype=torch.uint16), brain), (numpy.zeros(64, "u1"), eight), (numpy.zeros(64, "f2"), brain)):
        with pytest.raises(ValueError, match="cannot copy"):
            hugekit.copy(dst, src)
    hugekit.copy(torch.zeros_like(brain), brain)
    with pytest.raises(ValueError, match="out has the dtype float8_e5m2"):
        hugekit.snapshot(eight).to_numpy(out=other)
    assert hugekit.snapshot(eight).to_numpy(out=torch.zeros_like(eight)).dtype == torch.float8_e4m3fn
    roundtrip({"x": eight}, tmp_path)
    for into in (other, numpy.zeros(64, "u1"), torch.zeros(64, dtype=torch.uint8)):
        with pytest.raises(ValueError, match="x was saved as float8_e4m3fn"):
            hugekit.restore(tmp_path / "r.delta", {"x": into})


@needs_torch
@pytest.mark.filterwarnings("ignore")
def test_tensors_that_are_more_than_their_bytes():
    from torch._subclasses import FakeTensorMode

    class Wrapped(torch.Tensor):
        @staticmethod
        def __new__(cls, inner):
            return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

        def __tensor_flatten__(self):
            return ["inner"], {}

        @classmethod
        def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
            raise AssertionError("asked to work")

    with FakeTensorMode():
        fake = torch.ones(3)
    jagged = torch.nested.nested_tensor([torch.ones(3), torch.ones(5)], layout=torch.jagged)
    things = {
        "consists of other tensors": Wrapped(torch.ones(3)),
        "FakeTensor": fake,
        "nested tensor": jagged,
        "has no bytes yet": torch.nn.parameter.UninitializedParameter(),
        "tensor of zeros": torch._efficientzerotensor(3),
        r"resolve_neg\(\)": torch.ones(3, dtype=torch.complex64).conj().imag,
        "sparse": torch.eye(3).to_sparse_csr(),
    }
    for says, thing in things.items():
        for use in (hugekit.snapshot, hugekit.clear, lambda thing: hugekit.Checkpointer({"x": thing})):
            with pytest.raises(TypeError, match=says):
                use(thing)
    with pytest.raises(TypeError, match="no memory"):
        torch.vmap(lambda x: (hugekit.clear(x), x)[1])(torch.ones(3, 3))


@needs_torch
def test_state_dicts_keep_their_versions_and_parameters(tmp_path, serves):
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    frozen = torch.nn.Parameter(torch.ones(3), requires_grad=False)
    tree = {"model": model.state_dict(), "parameters": dict(model.named_parameters()), "frozen": frozen, "shape": model[0].weight.shape}
    found = roundtrip(tree, tmp_path)
    assert type(found["model"]) is collections.OrderedDict and found["model"]._metadata == tree["model"]._metadata
    assert found["model"]._metadata["1"] == {"version": 2}
    assert all(type(value) is torch.nn.Parameter and value.requires_grad for value in found["parameters"].values())
    assert type(found["frozen"]) is torch.nn.Parameter and not found["frozen"].requires_grad
    assert type(found["shape"]) is torch.Size
    arrays = hugekit.load_checkpoint(tmp_path / "r.delta", as_numpy=True)
    assert type(arrays["frozen"]) is numpy.ndarray
    from hugekit.torch import SnapshotStager

    class Own(dict):
        pass

    class Slotted(dict):
        __slots__ = ()

    class Itself(dict):
        def __init__(self, **items):
            super().__init__(**items)
            self.__dict__ = self

    own = Own(w=torch.ones(1 << 19), n=Moments(torch.ones(1 << 19), 2))
    own.attribute = [1]
    stager = SnapshotStager()
    staged = stager.stage({"model": tree["model"], "own": own}).result()
    for kind in (Slotted, Itself):
        thing = kind(w=torch.ones(1 << 19))
        found = stager.stage({"x": thing}).result()["x"]
        assert type(found) is kind and found["w"] is not thing["w"] and torch.equal(found["w"], thing["w"])
    stager.close()
    assert staged["model"]._metadata == tree["model"]._metadata and type(staged["model"]) is collections.OrderedDict
    assert type(staged["own"]) is Own and staged["own"].attribute == [1] and staged["own"].attribute is not own.attribute
    assert type(staged["own"]["n"]) is Moments and staged["own"]["w"] is not own["w"] and torch.equal(staged["own"]["w"], own["w"])


@needs_torch
def test_a_tensor_that_consists_of_others_is_staged_as_they_are(serves):
    from hugekit.torch import SnapshotStager

    count = 1 << 20
    codes, shared = torch.ones(count, dtype=torch.int8), torch.ones(count, dtype=torch.int8).share_memory_()
    scaled = Scaled(codes, torch.ones(count))
    scaled.requires_grad_()
    scaled.note = {"steps": [1], "sum": torch.ones(count)}
    tree = {"a": scaled, "again": [scaled], "codes": codes, "deep": Scaled(scaled, torch.ones(1)), "shared": Scaled(shared, torch.ones(1))}
    stager = SnapshotStager()
    staging = stager.stage(tree)
    for tensor in (codes, scaled.scale, scaled.note["sum"], shared):
        tensor.zero_()
    scaled.note["steps"].append(2)
    found = staging.result()
    assert type(found["a"]) is Scaled and found["a"] is found["again"][0] and found["a"] is found["deep"].codes
    assert found["a"].requires_grad and found["a"].note["steps"] == [1] and scaled.requires_grad
    for tensor in (found["a"].codes, found["a"].scale, found["a"].note["sum"], found["codes"], found["shared"].codes):
        assert (tensor == 1).all()
    assert found["codes"].untyped_storage().data_ptr() == found["a"].codes.untyped_storage().data_ptr() != codes.data_ptr()
    assert stager.copied.keys() == {"shared.codes"} and stager.copied_bytes == count
    for thing, kind in ((torch.ones(3).as_subclass(Unique), "Unique"), (Scaled(torch.ones(3).as_subclass(Unique), torch.ones(1)), "Scaled")):
        with pytest.raises(TypeError, match=f"w.0 is a {kind}, and cannot be copied: .*there is one only.*write "):
            stager.stage({"w": [thing]})
    stager.close()


def test_a_counter_comes_back_with_its_counts_and_attributes(tmp_path):
    counter = collections.Counter({"z": 2, "a": -1, 5: 0, "x": numpy.ones(3)})
    counter.note = "of a program"
    hugekit.Checkpointer({"c": counter}).save(tmp_path / "0")
    for found in (hugekit.load_checkpoint(tmp_path / "0")["c"], hugekit.restore(tmp_path / "0", {"c": counter})["c"]):
        assert type(found) is collections.Counter and found.note == "of a program" and list(found) == ["z", "a", 5, "x"]
        assert (found["z"], found["a"], found[5], found["absent"]) == (2, -1, 0, 0) and found["x"].sum() == 3


@needs_torch
def test_each_scheduler_of_torch_goes_on_from_a_checkpoint(tmp_path):
    """MultiStepLR's state has a Counter, and SequentialLR's the states of others."""
    kinds = torch.optim.lr_scheduler

    def made():
        optimizer = torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1, momentum=0.9)
        several = [kinds.MultiStepLR(optimizer, [2, 4, 4]), kinds.CyclicLR(optimizer, 0.1, 0.2), kinds.LambdaLR(optimizer, lambda step: 0.9**step)]
        several += [kinds.ReduceLROnPlateau(optimizer), kinds.CosineAnnealingWarmRestarts(optimizer, 3), kinds.PolynomialLR(optimizer)]
        several += [kinds.SequentialLR(optimizer, [kinds.ConstantLR(optimizer), kinds.MultiStepLR(optimizer, [1])], [2])]
        return [*several, kinds.OneCycleLR(optimizer, 1.0, 100), kinds.ChainedScheduler([kinds.ExponentialLR(optimizer, 0.9)])]

    for scheduler, other in zip(made(), made()):
        for each in range(3):
            scheduler.optimizer.step()
            scheduler.step(*[1.0] * isinstance(scheduler, kinds.ReduceLROnPlateau))
        hugekit.Checkpointer({"s": scheduler.state_dict()}).save(tmp_path / "0")
        other.load_state_dict(hugekit.load_checkpoint(tmp_path / "0")["s"])
        assert repr(other.state_dict()) == repr(scheduler.state_dict()), type(scheduler)
        if isinstance(scheduler, kinds.MultiStepLR):
            assert list(other.milestones.elements()) == [2, 4, 4]


@needs_torch
@pytest.mark.parametrize("optimizer", ["AdamW8bit", "AdamW4bit", "AdamWFp8"])
def test_the_state_of_an_optimizer_of_torchao_is_staged(optimizer, serves):
    optim = pytest.importorskip("torchao.optim", reason="torchao is not installed: pip install torchao")
    from hugekit.torch import SnapshotStager

    model = torch.nn.Linear(1024, 1024)
    optimizer = getattr(optim, optimizer)(model.parameters())

    def step():
        optimizer.zero_grad()
        model(torch.ones(2, 1024)).sum().backward()
        optimizer.step()

    def moments(state):
        return [moment.dequantize() for name, moment in state["state"][0].items() if name != "step"]

    step()
    before, stager = moments(optimizer.state_dict()), SnapshotStager()
    staging = stager.stage(optimizer.state_dict())
    step()
    found = staging.result()
    stager.close()
    assert len(before) == 2 and all(map(torch.equal, moments(found), before))
    assert not any(map(torch.equal, moments(optimizer.state_dict()), before))
    optimizer.load_state_dict(found)
    assert all(map(torch.equal, moments(optimizer.state_dict()), before))


LOOKS = {
    "snapshot": lambda tensor, path: hugekit.snapshot(tensor).to_numpy(),
    "Checkpointer": lambda tensor, path: hugekit.Checkpointer({"t": tensor}).save(path),
    "restore": lambda tensor, path: (hugekit.Checkpointer({"t": tensor}).save(path), hugekit.restore(path, {"t": tensor})),
    "clear": lambda tensor, path: hugekit.clear(tensor),
    "copy": lambda tensor, path: hugekit.copy(torch.empty_like(tensor), tensor),
    "zeros_like": lambda tensor, path: hugekit.zeros_like(tensor),
    "stager": lambda tensor, path: stage(tensor),
}


def stage(tensor):
    from hugekit.torch import SnapshotStager

    stager = SnapshotStager()
    stager.stage({"t": tensor}).result()
    stager.close()


@needs_torch
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("count", [100, 1 << 19])
def test_a_tensor_can_be_resized_after_hugekit_looked_at_it(look, count, tmp_path, serves):
    tensor = torch.ones(count, requires_grad=True)
    before = tensor.requires_grad, tensor._version, tensor.data_ptr(), tensor.is_leaf, tensor.grad_fn
    LOOKS[look](tensor.detach() if look in ("clear", "restore") else tensor, tmp_path / "f")
    assert before == (tensor.requires_grad, tensor._version, tensor.data_ptr(), tensor.is_leaf, tensor.grad_fn)
    assert tensor.untyped_storage().resizable()
    with torch.no_grad():
        tensor.detach().resize_(2 * count)
        tensor.untyped_storage().resize_(0)


@needs_torch
@pytest.mark.parametrize("mode", ["threaded", "in place"])
@pytest.mark.parametrize("count", [1 << 16, 1 << 21, 1 << 24])
def test_memory_that_a_resize_frees_is_noticed(mode, count, tmp_path, serves):
    def renewed(value):
        tensor.untyped_storage().resize_(0)
        tensor.untyped_storage().resize_(4 * count)
        tensor.fill_(value)

    tensor = torch.ones(count)
    try:
        moment = hugekit.snapshot(tensor, fault_mode=mode)
    except OSError as refused:
        pytest.skip(f"not served here: {refused}")
    renewed(2)
    try:
        assert (moment.to_numpy() == 1).all()
    except hugekit.SnapshotLost:
        pass
    with hugekit.Checkpointer({"t": tensor}, fault_mode=mode) as saver:
        paths = []
        for value in (3, 4, 5):
            renewed(value)
            saved = saver.save(tmp_path / str(value))
            paths = [saved.path] if saved.is_full else [*paths, saved.path]
            assert torch.equal(hugekit.load_checkpoint(paths)["t"], tensor)
    tensor.untyped_storage().resize_(0)
    for use in (hugekit.snapshot, hugekit.clear, hugekit.Checkpointer):
        with pytest.raises(ValueError, match="needs .* bytes, and its storage has 0"):
            use(tensor)
    gc.collect()


@needs_torch
@pytest.mark.parametrize("look", LOOKS)
def test_settings_of_torch_neither_matter_nor_change(look, tmp_path, serves):
    tensor = torch.ones(1 << 19)
    settings = lambda: (torch.get_default_device(), torch.get_default_dtype(), torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.are_deterministic_algorithms_enabled(), torch.is_warn_always_enabled(), torch.random.initial_seed(), torch.get_rng_state().tolist(), warnings.filters[:])
    before = settings()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if look == "stager":
            warnings.filterwarnings("ignore", module="torch")
        for device in ("meta", "cuda:9999999"):
            torch.set_default_device(device)
            torch.set_default_dtype(torch.float64)
            torch.use_deterministic_algorithms(True)
            try:
                LOOKS[look](tensor, tmp_path / "f")
                if look == "Checkpointer":
                    assert hugekit.load_checkpoint(tmp_path / "f")["t"].device.type == "cpu"
                assert torch.get_default_device() == torch.device(device) and torch.are_deterministic_algorithms_enabled()
            finally:
                torch.set_default_device(None)
                torch.set_default_dtype(torch.float32)
                torch.use_deterministic_algorithms(False)
    for mode in (torch.inference_mode, torch.no_grad, torch.enable_grad):
        with mode():
            LOOKS[look](torch.ones(1 << 19), tmp_path / "f")
    assert settings() == before
