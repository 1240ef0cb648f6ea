#!/bin/sh
# safetensors 0.8.0, safetensors.numpy.save and save_file: an array that is not in C order is saved as its bytes lie in
# memory, with its shape, so it loads with other values and without an error. That concerns a transposed array, one in
# Fortran order, and a slice with steps, which loads as the bytes between. 0.7.0 saved all of them right, and 0.8.0
# still converts big-endian arrays. The documentation asks for contiguous and dense arrays; one in Fortran order is
# both.
# (safetensors#825)
#
# Seen with safetensors 0.7.0 and 0.8.0, numpy 2.4.6, Python 3.11.7; whether an array loads with its values:
#   0.7.0: C order yes, big-endian yes, Fortran order yes, transposed yes, steps yes
#   0.8.0: C order yes, big-endian yes, Fortran order no, transposed no, steps no
#
# Needs Python 3.11 with venv. Exits with 1 if the behaviour differs.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" --quiet install numpy==2.4.6
cat > "$folder/saved.py" <<'PYTHON'
import sys

import numpy
from safetensors.numpy import load_file, save_file

table = numpy.arange(6, dtype="f4").reshape(2, 3)
arrays = {
    "C order": table,
    "big-endian": table.astype(">f4"),
    "Fortran order": numpy.asfortranarray(table),
    "transposed": table.T,
    "steps": numpy.arange(12, dtype="f4")[::2],
}
save_file(arrays, sys.argv[1])
found = load_file(sys.argv[1])
print(", ".join(f"{name} {'yes' if (found[name] == array).all() else 'no'}" for name, array in arrays.items()))
PYTHON
of() {
    "$folder/venv/bin/pip" --quiet install "safetensors==$1"
    "$folder/venv/bin/python" "$folder/saved.py" "$folder/arrays.safetensors"
}
old=$(of 0.7.0)
new=$(of 0.8.0)
echo "safetensors 0.7.0: $old; 0.8.0: $new"
[ "$old" = "C order yes, big-endian yes, Fortran order yes, transposed yes, steps yes" ] &&
    [ "$new" = "C order yes, big-endian yes, Fortran order no, transposed no, steps no" ]
