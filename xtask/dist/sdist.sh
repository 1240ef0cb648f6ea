# The Python package's sources, and a wheel that pip makes of them: quickly, because only their completeness is tried.
. "${0%/*}/common.sh"
. "$here/wheels.sh"
(cd "$python" && maturin sdist --out "$out")
archive=$out/hugekit-$version.tar.gz
for needed in LICENSE-MIT LICENSE-APACHE README.md PKG-INFO; do
    tar --list --file "$archive" | grep -qx "hugekit-$version/$needed" || fail "the sdist has no $needed"
done
fresh "$work/wheel-of-sources"
MATURIN_PEP517_ARGS="--profile dev" CARGO_TARGET_DIR=$build/sources \
    python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/wheel-of-sources" "$archive"
only_file "$work/wheel-of-sources"
works "pip makes a wheel of it"
