# Packages each published crate, and compiles it from its package, as its users will. Nothing is uploaded.
. "${0%/*}/common.sh"
# cargo keeps what it has unpacked of a crate, by its version: at the next rehearsal it would compile the sources of this
# one. The registry of a rehearsal is a folder, and named without a host.
rm -rf "${CARGO_HOME:-$HOME/.cargo}"/registry/src/-*/hugekit*-"$version"* \
    "${CARGO_HOME:-$HOME/.cargo}"/registry/cache/-*/hugekit*-"$version"*
cargo publish --workspace --dry-run --allow-dirty
works "cargo publish --dry-run would publish them"
