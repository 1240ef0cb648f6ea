# The command as one file that needs nothing of the system but its kernel.
. "${0%/*}/common.sh"
build_command
install -m755 "$command" "$out/hugekit-$version-$arch-linux"
try_command "$out/hugekit-$version-$arch-linux"
