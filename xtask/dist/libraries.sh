# The libraries for C in one archive, which works wherever it is unpacked.
. "${0%/*}/common.sh"
build_portably hugekit-c
name=hugekit-c-$version-$arch-linux-gnu
staged=$work/libraries tried=$work/libraries-tried
fresh "$staged" && fresh "$tried"
place=$staged/$name libdir=lib libraries=$portable command='' sh "$here/../install.sh"
cp "$repository"/bindings/c/LICENSE-* "$repository/bindings/c/installed/README.md" "$staged/$name"
# The program of the guide is the first example.
cp -r "$repository/bindings/c/examples" "$staged/$name"
sed -n '/^```c$/,/^```$/p' "$repository/docs/c.md" | sed '/^```/d' >"$staged/$name/examples/first.c"
newest=$(readelf --wide --version-info "$staged/$name/lib/libhugekit.so" | grep -o 'GLIBC_[0-9.]*' | sort -uV | tail -n 1)
[ "$(printf '%s\n' "$newest" "GLIBC_$glibc" | sort -V | tail -n 1)" = "GLIBC_$glibc" ] || fail "libhugekit.so needs $newest"
tar --create --gzip --owner=0 --group=0 --sort=name --file "$out/$name.tar.gz" --directory "$staged" "$name"

# A program that is linked with the shared library finds it. The README's commands work. A program that is linked with the
# static library is linked without a warning, and runs where nothing else is.
tar --extract --file "$out/$name.tar.gz" --directory "$tried"
lib=$tried/$name/lib
sizes=".so $(megabytes "$lib/libhugekit.so"), .a $(megabytes "$lib/libhugekit.a")"
has_compiler || { works "$sizes, not tried: no C compiler with pkg-config (apt-get install gcc pkg-config)"; exit; }
may_mount || { works "$sizes, not tried: this process may not mount (root can)"; exit; }
compile "$tried" "$lib/pkgconfig"
expect "$version" "$tried/alone"
readme() { cd "$tried/$name" && sed -n '/^```sh$/,/^```$/{/^```/!p}' README.md | env -u PKG_CONFIG_PATH sh -eu; }
expect "guest 3, clone 2, snapshot 1" readme
compile "$tried" "$lib/pkgconfig" -static -Wl,--fatal-warnings
empty_root "$tried/alone"
expect "$version" in_root "$root" /alone
works "$sizes; a program finds the shared library; the README's commands work; a static program is linked without warnings and runs in an empty root"
