# Shared by the wheels: maturin makes packages of a module or of a program, not of both, so the command is added.
python=$repository/bindings/py

# MATURIN'S ARGUMENTS...: the module, unpacked into $unpacked.
build_module() {
    fresh "$work/wheel" && fresh "$work/wheel-unpacked"
    (cd "$python" && maturin build --zig --profile $profile --out "$work/wheel" "$@")
    wheel unpack --dest "$work/wheel-unpacked" "$(only_file "$work/wheel")"
    unpacked=$work/wheel-unpacked/hugekit-$version
}

# TAG: packs the module with $command where pip installs programs from, into $packed.
pack() {
    install -D -m755 "$command" "$unpacked/hugekit-$version.data/scripts/hugekit"
    fresh "$work/wheel-packed"
    wheel pack --dest-dir "$work/wheel-packed" "$unpacked"
    packed=$(only_file "$work/wheel-packed")
    cp "$packed" "$out"
    expect "$1" auditwheel show "$packed"
    size="$(megabytes "$packed"), $1"
}
