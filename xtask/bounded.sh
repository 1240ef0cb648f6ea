#!/usr/bin/env bash
# Runs one test program for cargo, for at most 10 minutes, so that a program that hangs neither takes the time of the
# others nor hides which one it is. What its threads wait for is printed with "stuck: " before each line.
set -u
# Tests may start programs as cargo would: those run as they are.
for variable in ${!CARGO_TARGET_@}; do
    case $variable in *_RUNNER) unset "$variable" ;; esac
done
notes=$(mktemp -d)
trap 'rm -rf "$notes"' EXIT

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
            frames=$(sed 's/.* //; s/+.*//' "$task/stack" 2>/dev/null | head -n 3 | paste -sd ' ')
            echo "$process $(cat "$task/comm" 2>/dev/null) [$call] $frames"
        done
    done
}

# After a hang, prints where, and ends the program.
watch() {
    sleep 600 >/dev/null 2>&1
    program=$(cat "$notes/program")
    { threads "$program" | head -n 16; tail -n 2 "$notes/printed"; } | cut -c -110 | sed 's/^/stuck: /'
    for process in $(tree "$program"); do kill -KILL "$process"; done
}

watch &
watcher=$!
exec {output}> >(tee "$notes/printed")
tee=$!
# In the foreground: the shell has programs in the background ignore an interrupt.
(echo "$BASHPID" >"$notes/program" && exec "$@" {output}>&-) >&$output 2>&1
status=$?
exec {output}>&-
# A process that the program left behind may hold its output open.
timeout 5 tail --pid=$tee -f /dev/null
kill $(tree $watcher) 2>/dev/null
exit "$status"
