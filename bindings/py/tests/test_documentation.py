"""The examples in the docstrings are run, and the stubs say what there is."""

import ast
import doctest
import inspect
import pathlib
import re
import shutil
import tempfile

import conftest
import hugekit
import numpy
import pytest


def found():
    named = [("hugekit", hugekit)] + [(name, getattr(hugekit, name)) for name in hugekit.__all__]
    for name, thing in named:
        members = [(name, thing)]
        if inspect.isclass(thing):
            members += [(f"{name}.{member}", value) for member, value in vars(thing).items()]
        for title, member in members:
            text = getattr(member, "__doc__", None) or ""
            if isinstance(text, str) and ">>>" in text:
                yield pytest.param(text, id=title)


@pytest.mark.parametrize("text", list(found()))
def test_example(text, serves):
    example = doctest.DocTestParser().get_doctest(text, {"hugekit": hugekit, "numpy": numpy, "tempfile": tempfile}, "example", None, 0)
    result = doctest.DocTestRunner(verbose=False).run(example)
    assert result.attempted > 0 and result.failed == 0


ROOT = pathlib.Path(__file__).parents[3]


def nightly_of(mib):
    return pytest.param(mib, marks=conftest.nightly(f"it saves {mib} MiB"))


@pytest.mark.parametrize("page", ["README.md", "docs/python.md", "docs/firecracker.md", "docs/warm.md", "bindings/py/README.md"])
def test_programs_of_a_page(page, serves, tmp_path, monkeypatch):
    programs = re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    assert programs
    monkeypatch.chdir(tmp_path)
    # What docs/firecracker.md loads.
    pathlib.Path("memory.bin").write_bytes(bytes(range(256)) * (16 << 10))
    # An array that fills a process-wide pool which is there already leaves no room for its snapshot.
    hugekit.trim()
    for program in programs:
        exec(compile(program, page, "exec"), {})


@pytest.mark.parametrize("mib", [128, nightly_of(1024), nightly_of(4096)])
def test_the_readme_at(mib, serves, tmp_path, monkeypatch):
    """Its program with an array of another size: limits that are shares of the memory matter there."""
    (line,) = [line for line in open("/proc/meminfo") if line.startswith("MemAvailable:")]
    available, free = int(line.split()[1]) >> 10, shutil.disk_usage(tmp_path).free >> 20
    if available < 4 * mib or free < 2 * mib:
        pytest.skip(f"{available} MiB of memory and {free} MiB of disk are available, and {4 * mib} and {2 * mib} needed")
    (program,) = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    rows = mib * (1 << 20) // (4 * 4096)
    sized = program.replace("(4096, 4096)", f"({rows}, 4096)")
    assert sized != program
    monkeypatch.chdir(tmp_path)
    hugekit.trim()
    names = {}
    exec(compile(sized, "README.md", "exec"), names)
    assert (numpy.load("checkpoint.npy", mmap_mode="r") == 1).all()
    assert (names["weights"] == numpy.float32(0.9)).all()


def test_everything_has_documentation_and_most_has_an_example():
    assert all(getattr(hugekit, name).__doc__ for name in hugekit.__all__ if name != "__version__")
    assert len(list(found())) >= 10


def stubs():
    path = pathlib.Path(hugekit.__file__).with_name("__init__.pyi")
    return ast.parse(path.read_text()).body


def test_the_stubs_and_the_documentation_name_every_backing():
    literals = {node.targets[0].id: node.value for node in stubs() if isinstance(node, ast.Assign)}
    stub = ast.literal_eval(literals["Backing"].slice)
    with pytest.raises(ValueError) as refused:
        hugekit.Pool(1, backing="?")
    backings = re.findall('"(.+?)"', str(refused.value))[1:]
    assert list(stub) == backings
    for text in (hugekit.Pool.__doc__, hugekit.Pool.backing.__doc__):
        assert all(f'"{backing}"' in text for backing in backings)


def parameters(function):
    said = function.args
    several = [said.vararg] if said.vararg else []
    plain = [argument.arg for argument in said.posonlyargs + said.args + several + said.kwonlyargs]
    return [name for name in plain if name not in ("self", "cls")]


def test_the_stubs_name_what_there_is():
    functions = {node.name: node for node in stubs() if isinstance(node, ast.FunctionDef)}
    classes = {node.name: node for node in stubs() if isinstance(node, ast.ClassDef)}
    public = {name for name in functions | classes if not name.startswith("_")}
    assert public | {"__version__"} == set(hugekit.__all__)
    for name, node in functions.items():
        assert parameters(node) == list(inspect.signature(getattr(hugekit, name)).parameters), name
    for name, node in classes.items():
        if name.startswith("_") or name == "SnapshotLost":
            continue
        cls = getattr(hugekit, name)
        methods = {method.name: method for method in node.body if isinstance(method, ast.FunctionDef)}
        real = {member for member in vars(cls) if not member.startswith("_")}
        assert {method for method in methods if not method.startswith("_")} == real
        for method in real:
            if callable(getattr(cls, method)):
                signature = inspect.signature(getattr(cls, method)).parameters
                assert parameters(methods[method]) == [name for name in signature if name != "self"], (name, method)
        if "__new__" in methods:
            assert parameters(methods["__new__"]) == list(inspect.signature(cls).parameters)


def documented():
    """What the stubs document, with the object of the module."""
    for node in stubs():
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or node.name.startswith("_"):
            continue
        thing = getattr(hugekit, node.name)
        yield node.name, node, thing
        for method in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(method, ast.FunctionDef) and not method.name.startswith("_"):
                name = method.name
                member = inspect.getattr_static(thing, name)
                yield f"{node.name}.{name}", method, getattr(member, "__func__", member)


def test_the_stubs_have_the_documentation_of_the_module():
    # Of several overloads, the first has it.
    first = {}
    for name, node, thing in documented():
        first.setdefault(name, (ast.get_docstring(node), inspect.getdoc(thing)))
    differing = [name for name, (stub, real) in first.items() if real and stub != real]
    assert not differing


def test_the_package_is_typed():
    assert pathlib.Path(hugekit.__file__).with_name("py.typed").exists()
