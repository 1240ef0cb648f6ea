# Debian packages: the command with its manual and services, the shared library, and what programs are compiled with.
. "${0%/*}/common.sh"
build_portably hugekit-c
build_command
# Everything where the manifests of the packages look for it; cargo-deb knows Debian's name of lib/multiarch.
staged=$portable/debian
fresh "$staged"
place=$staged libdir=lib/multiarch system=yes libraries=$portable command=$command sh "$here/../install.sh"
gzip -9 --no-name "$staged"/share/man/man1/*
mkdir -p "$staged/systemd"
for unit in "$repository"/tools/cli/systemd/*; do
    sed 's|/usr/local/bin/|/usr/bin/|g' "$unit" >"$staged/systemd/${unit##*/}"
done
cargo_deb=$work/cargo-deb/bin/cargo-deb
"$cargo_deb" --version || CARGO_TARGET_DIR=$build/cargo-deb \
    cargo install --quiet --locked --version ^3 --root "$work/cargo-deb" cargo-deb
package() {
    CARGO_TARGET_DIR=$build/portable "$cargo_deb" --quiet --no-build --no-strip --profile $profile --target "$target" \
        --output "$out" --package "$@"
}
package hugekit-cli
package hugekit-c --multiarch same
package hugekit-c --multiarch same --variant dev

# Installed in a system that has nothing of what they need but the C library, used, and removed.
made="hugekit, libhugekit0, libhugekit-dev"
debian_root || { works "$made; not tried: $why"; exit; }
mkdir "$root/packages"
cp "$out"/hugekit_"$version"*.deb "$root/packages/hugekit.deb"
cp "$out"/libhugekit0_"$version"*.deb "$root/packages/library.deb"
cp "$out"/libhugekit-dev_"$version"*.deb "$root/packages/dev.deb"
in_root "$root" dpkg --install /packages/hugekit.deb /packages/library.deb
expect "$doctor" in_root "$root" hugekit doctor
expect libhugekit.so.0 in_root "$root" ldconfig --print-cache
in_root "$root" python3 -c "import ctypes; ctypes.CDLL('libhugekit.so.0').hugekit_last_errno()"
# A compiler in there would be most of the system: this machine's takes what is installed there.
in_root "$root" dpkg --install --force-depends /packages/dev.deb
if has_compiler; then
    fresh "$work/debs"
    compile "$work/debs" "$root/usr/lib/$arch-linux-gnu/pkgconfig"
    ! readelf --dynamic "$work/debs/alone" | grep RUNPATH || fail "a program has a path to the system's libraries"
    install -D "$work/debs/alone" "$root/usr/local/bin/alone"
    expect "$version" in_root "$root" alone
fi
in_root "$root" dpkg --verify
in_root "$root" dpkg --purge libhugekit-dev libhugekit0 hugekit
works "$made; installed, used and removed in a bare system"
