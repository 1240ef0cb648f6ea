# The same with musl, whose memset and memcpy are simpler, so the lab shows a larger gain over them.
. "${0%/*}/common.sh"
build_command_with_musl
install -m755 "$command" "$out/hugekit-$version-$arch-linux-musl"
try_command "$out/hugekit-$version-$arch-linux-musl"
