# Installs the libraries for C with what compilers, debuggers and build systems read, and the command with its manual.
# Variables: `place` (bin, lib, include and share are below), `libdir` (below it), `libraries` (the folder that has them),
# `command` (the program, or nothing), `version`, and `system=yes` if the dynamic linker searches the libraries' folder. `install` makes new files: running programs keep the old ones.
set -eu
c=${0%/*}/../bindings/c
lib=$place/$libdir
major=${version%%.*}
rest=${version#*.}

install -D -m644 "$libraries/libhugekit.a" "$lib/libhugekit.a"
# Lines of the standard library's code. Without binutils the archive is larger, and as good.
strip --strip-debug "$lib/libhugekit.a" 2>/dev/null || true
install -D -m755 "$libraries/libhugekit.so" "$lib/libhugekit.so.$version"
ln -sf "libhugekit.so.$version" "$lib/libhugekit.so.$major"
ln -sf "libhugekit.so.$version" "$lib/libhugekit.so"
install -D -m644 "$c/include/hugekit.h" "$place/include/hugekit.h"

# NAME FOLDER UP: fills in a template. It finds the prefix from its own place, so the prefix may move: UP folders up from
# the libraries' folder, and one up for each part of `libdir`.
describe() {
    mkdir -p "$2"
    # Programs find the shared library in its folder, without LD_LIBRARY_PATH.
    rpath=' -Wl,-rpath,${libdir}'
    [ "${system:-no}" = no ] || rpath=
    to_prefix=$3$(echo "$libdir" | sed 's|[^/][^/]*|..|g')
    sed -e "s|@TO_PREFIX@|$to_prefix|g" -e "s|@RPATH@|$rpath|g" -e "s|@VERSION@|$version|g" -e "s|@MAJOR@|$major|g" -e "s|@MINOR@|${rest%%.*}|g" \
        "$c/installed/$1" >"$2/$1"
}
describe hugekit.pc "$lib/pkgconfig" ../
describe hugekit-config.cmake "$lib/cmake/hugekit" ../../
describe hugekit-config-version.cmake "$lib/cmake/hugekit" ../../
describe hugekit.gdb "$place/share/hugekit" ""

[ -n "$command" ] || exit 0
install -D -m755 "$command" "$place/bin/hugekit"
install -D -m755 "${0%/*}/../tools/cli/installed/hugekit-qemu" "$place/bin/hugekit-qemu"
hugekit=$place/bin/hugekit
mkdir -p "$place/share/man/man1" "$place/share/bash-completion/completions" "$place/share/zsh/site-functions" \
    "$place/share/fish/vendor_completions.d"
"$hugekit" man --dir "$place/share/man/man1"
"$hugekit" completions bash >"$place/share/bash-completion/completions/hugekit"
"$hugekit" completions zsh >"$place/share/zsh/site-functions/_hugekit"
"$hugekit" completions fish >"$place/share/fish/vendor_completions.d/hugekit.fish"
