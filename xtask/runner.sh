#!/bin/sh
# Cargo's runner (`.cargo/config.toml`). A test program gets at most HUGEKIT_TEST_MINUTES (10), so that one that hangs
# neither takes the time of the others nor hides which one it is: its threads' system calls are printed with "stuck: "
# before each line. One that leaves a process behind fails, and the process ends: it would slow all later tests. The
# lines of skipped tests are kept for `xtask/tests/skipped.rs`. Other programs run as they are.
case $1 in */deps/*) ;; *) exec "$@" ;; esac
notes=$(mktemp -d) || exit 1
mkfifo "$notes/pipe"

# A process and its descendants.
tree() {
    echo "$1"
    for child in $(cat /proc/"$1"/task/*/children 2>/dev/null); do tree "$child"; done
}

# Each thread: its process, name, system call, and where the kernel has it.
threads() {
    for process in $(tree "$1"); do
        for task in /proc/"$process"/task/*; do
            call=$(cut -d ' ' -f 1-3 "$task/syscall" 2>/dev/null)
            frames=$(sed 's/.* //; s/+.*//' "$task/stack" 2>/dev/null | head -n 3 | paste -sd ' ' -)
            echo "$process $(cat "$task/comm" 2>/dev/null) [$call] $frames"
        done
    done
}

# After a hang, prints where, and ends the program.
watch() {
    sleep $((${HUGEKIT_TEST_MINUTES:-10} * 60)) >/dev/null 2>&1
    program=$(cat "$notes/program")
    { threads "$program" | head -n 16; tail -n 2 "$notes/printed"; } | cut -c -110 | sed 's/^/stuck: /'
    for process in $(tree "$program"); do kill -KILL "$process"; done
}

# The processes that the program, which has ended, started and that run on: all inherit its mark.
left() { grep -lsF "HUGEKIT_TEST_PROGRAM=$notes" /proc/[0-9]*/environ | cut -d / -f 3; }

watch &
watcher=$!
trap 'kill $(tree "$watcher") 2>/dev/null; rm -rf "$notes"' EXIT
trap 'exit 1' HUP INT TERM
tee "$notes/printed" <"$notes/pipe" &
tee=$!
# In the foreground: the shell has programs in the background ignore an interrupt.
HUGEKIT_TEST_PROGRAM=$notes sh -c 'echo $$ >"$0" && exec "$@"' "$notes/program" "$@" >"$notes/pipe" 2>&1
status=$?
for _ in $(seq 50); do [ -z "$(left)" ] || sleep 0.1; done
for process in $(left); do
    echo "left behind: process $process, $(tr '\0' ' ' <"/proc/$process/cmdline" | cut -c -90)"
    kill -KILL "$process"
    [ "$status" != 0 ] || status=1
done
# A process that the program left behind may hold its output open.
timeout 5 tail --pid="$tee" -f /dev/null
skipped=$(dirname "$1")/../skipped
mkdir -p "$skipped" && grep -E '^test .*\.\.\. ignored' "$notes/printed" >"$skipped/$(basename "$1")"
exit "$status"
