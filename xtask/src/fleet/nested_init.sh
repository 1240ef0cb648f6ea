#!/bin/busybox sh
# The first process of a guest's guest: it prints again and again that its memory is what it was, and how long it is up.
/bin/busybox mkdir -p /proc /dev /tmp
/bin/busybox mount -t proc proc /proc
/bin/busybox mount -t devtmpfs dev /dev
/bin/busybox mount -t tmpfs tmp /tmp
# The archive has no device: the kernel has started this process without a console.
exec </dev/console >/dev/console 2>&1
/bin/busybox dd if=/dev/urandom of=/tmp/data bs=1M count=16 2>/dev/null
sum=$(/bin/busybox md5sum </tmp/data)
number=0
while :; do
    now=$(/bin/busybox md5sum </tmp/data)
    [ "$now" = "$sum" ] && is=same || is=different
    echo "tick $number $is $(/bin/busybox cut -d ' ' -f 1 /proc/uptime)"
    number=$((number + 1))
    /bin/busybox sleep 0.2
done
