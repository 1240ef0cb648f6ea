# Shared by the scripts of this folder, which `cargo xtask dist` starts with these variables: `out` (the folder of the
# files), `work` (of what is unpacked and tried), `build` (cargo's), `version` and `arch`, and with the Python packages of
# src/dist.rs on the path. A script prints how its kind did (`works`), or why it was not made (`skip`).
set -eu
exec 3>&1 >&2
here=${0%/*}
repository=$here/../..
profile=shipped
target=$arch-unknown-linux-gnu
musl=$arch-unknown-linux-musl
# The oldest glibc that dynamically linked files run on.
glibc=2.28
portable=$build/portable/$target/$profile
command=$build/$target/$profile/hugekit
doctor="transparent huge pages"

works() { echo "$*" >&3; }
skip() { echo "$*" >&3; exit 77; }
fail() { echo "$*" >&3; exit 1; }
fresh() { rm -rf "$1" && mkdir -p "$1"; }
megabytes() { stat -L -c %s "$1" | awk '{ printf "%.1f MB", $1 / 1e6 }'; }
only_file() { set -- "$1"/*; [ $# = 1 ] && [ -f "$1" ] || fail "not one file: $*"; echo "$1"; }

# TEXT COMMAND...: the command succeeds, and its output has this text.
expect() {
    text=$1
    shift
    said=$("$@" 2>&1) || fail "$*: $said"
    case $said in *"$text"*) ;; *) fail "$* does not print \"$text\": $said" ;; esac
}

# The command, linked with all that it needs: with glibc, whose memset and memcpy choose by CPU. The library leaves some
# lengths to them, and the lab compares with them.
build_command() {
    RUSTFLAGS="-C target-feature=+crt-static" \
        cargo build --profile $profile --package hugekit-cli --target "$target"
}

# PACKAGE: for systems with this glibc or a later one, into $portable: not among what is linked for this system.
build_portably() {
    cargo-zigbuild zigbuild --profile $profile --package "$1" --target "$target.$glibc" --target-dir "$build/portable"
}

# FEATURE: lets a build compile for musl; with +crt-static all of musl is in the program. Without rustup's target, Debian's
# compiler builds the standard library, too, and zig has musl. zig brings what begins a program, so the compiler must not.
lend_musl() {
    RUSTFLAGS="-C target-feature=$1" std=
    if [ -d "$(rustc --print target-libdir --target "$musl")" ]; then
        musl_build="cargo build"
    else
        cargo xtask fetch musl-compiler || skip "no standard library for musl (rustup target add $musl)"
        rust=$work/rust/root
        export RUSTC="$rust/usr/bin/rustc" RUSTC_BOOTSTRAP=1
        export LD_LIBRARY_PATH="$rust/usr/lib/$arch-linux-gnu:$rust/lib/$arch-linux-gnu"
        std="-Z build-std=std,panic_unwind" musl_build="cargo-zigbuild zigbuild"
        RUSTFLAGS="$RUSTFLAGS -C link-self-contained=no"
    fi
    export RUSTFLAGS
}

build_command_with_musl() {
    lend_musl +crt-static
    $musl_build $std --profile $profile --package hugekit-cli --target "$musl" --target-dir "$build/musl"
    command=$build/musl/$musl/$profile/hugekit
}

# COMMAND...: in mounts of its own, and as its own root if this process is not root.
among_own_mounts() {
    if [ "$(id -u)" = 0 ]; then unshare --mount "$@"; else unshare --mount --user --map-root-user "$@"; fi
}

may_mount() { among_own_mounts true; }

# ROOT COMMAND...: with this folder as `/`, and with no variable but PATH.
in_root() {
    among_own_mounts sh -c 'mount --rbind /proc "$0/proc" && mount --rbind /sys "$0/sys" &&
        exec env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin chroot "$0" "$@"' "$@"
}

# PROGRAM...: a root with nothing but these.
empty_root() {
    root=$work/empty
    fresh "$root"
    mkdir "$root/proc" "$root/sys"
    cp "$@" "$root"
}

# A Debian of this machine's release, with Python and nothing else that is not essential. Without one, fails with the reason.
debian_root() {
    root=$work/debian-tried
    may_mount && [ "$(id -u)" = 0 ] || { why="this process may not mount (root can)"; return 1; }
    if [ ! -e "$work/debian-root/usr/bin/python3" ]; then
        why="debootstrap could not make a system"
        cargo xtask fetch debootstrap || return 1
        release=$(. /etc/os-release && echo "$VERSION_CODENAME")
        rm -rf "$work/debian-root"
        DEBOOTSTRAP_DIR=$work/debootstrap/root/usr/share/debootstrap \
            sh "$work/debootstrap/root/usr/sbin/debootstrap" --variant=minbase --include=python3,python3-venv \
            "$release" "$work/debian-root.partial" "$(cargo xtask fetch --archive)" || return 1
        mv "$work/debian-root.partial" "$work/debian-root"
    fi
    rm -rf "$root"
    cp --archive "$work/debian-root" "$root"
}

# FILE: the command as one file, tried in a root that has nothing else. More would be too much to fetch for a look.
try_command() {
    size=$(megabytes "$1")
    [ "$(stat -c %s "$1")" -lt 12000000 ] || fail "$1 has $size"
    may_mount || { works "$size, not tried: this process may not mount (root can)"; return; }
    empty_root "$1"
    program=/${1##*/}
    expect "$version" in_root "$root" "$program" --version
    expect "$doctor" in_root "$root" "$program" doctor
    expect Summary in_root "$root" "$program" lab --quick stores
    works "$size; doctor and lab work in an empty root"
}

# A C program can be compiled here.
has_compiler() { cc --version && pkg-config --version; }

# FOLDER PKGCONFIG [-static OPTION...]: compiles alone.c with what pkg-config finds.
compile() {
    folder=$1
    flags=$(PKG_CONFIG_PATH=$2 pkg-config --cflags --libs hugekit ${3:+--static})
    shift 2
    cc "$@" -o "$folder/alone" "$here/alone.c" $flags
}
