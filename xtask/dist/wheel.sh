# The Python package for each CPython that it is for, with the command in it.
. "${0%/*}/common.sh"
. "$here/wheels.sh"
policy=manylinux_$(echo $glibc | tr . _)
# A folder of its own: maturin has cargo compile with other flags than cargo-zigbuild does.
build_module --compatibility "$policy" --target "$target" --target-dir "$build/portable-python"
build_command
pack "${policy}_$arch"

# Installed, with no network, in a system that has nothing but Python.
debian_root || { works "$size; not tried: $why"; exit; }
running=$(in_root "$root" python3 -c "import sys; print('%d.%d' % sys.version_info[:2])")
numpy=$work/numpy-$running
[ -d "$numpy" ] || python -m pip download --quiet --no-deps --only-binary=:all: --python-version "$running" \
    --platform "${policy}_$arch" --platform "manylinux_2_17_$arch" --dest "$numpy" "numpy>=1.24"
mkdir "$root/wheels"
cp "$numpy"/* "$packed" "$root/wheels"
in_root "$root" python3 -m venv /venv
in_root "$root" /venv/bin/pip install --quiet --no-index --find-links /wheels hugekit
# What a user would see first, without huge pages or permissions.
expect "$version" in_root "$root" /venv/bin/python -c "import hugekit, numpy
array = hugekit.zeros((1024, 1024), 'f4')
array += 1
assert array.sum() == 1 << 20
hugekit.clear(array)
assert not array.any()
print(hugekit.__version__)"
expect "$doctor" in_root "$root" /venv/bin/hugekit doctor
works "$size; module and command work in a bare system with Python $running"
