# The same for Python that is linked with musl, as Alpine's is (3.13 and later). No registry has one to try it with.
. "${0%/*}/common.sh"
. "$here/wheels.sh"
# The module loads the musl of its interpreter.
lend_musl -crt-static
build_module $std --compatibility musllinux_1_2 --target "$musl" --target-dir "$build/musl-python"
build_command_with_musl
# The dynamic linkers of those systems have another name for musl than zig.
patchelf --replace-needed libc.so "libc.musl-$arch.so.1" "$unpacked/hugekit/_hugekit.abi3.so"
pack "musllinux_1_2_$arch"
works "$size; not tried: no Python for musl here"
