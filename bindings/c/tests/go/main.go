// The C interface within Go's runtime, which has a handler for every signal, stacks of a few KiB that it moves, threads
// of its own that it interrupts (SIGURG), and a collector that reads and gives back memory all the time.
package main

/*
#include <stdlib.h>
#include <string.h>
#include "hugekit.h"

static hugekit_pool_options pool_options(void) {
    hugekit_pool_options options = {.size = sizeof options, .backing = HUGEKIT_BACKING_BASE};
    return options;
}
static hugekit_region_options region_options(uint32_t fault_mode) {
    hugekit_region_options options = {.size = sizeof options, .clearing = HUGEKIT_CLEARING_ON_FAULT,
                                      .fault_mode = fault_mode};
    return options;
}
static hugekit_fork_options fork_options(uint32_t fault_mode) {
    hugekit_fork_options options = {.size = sizeof options, .fault_mode = fault_mode};
    return options;
}
static hugekit_snapshot_options snapshot_options(uint32_t fault_mode) {
    hugekit_snapshot_options options = {.size = sizeof options, .fault_mode = fault_mode};
    return options;
}
*/
import "C"

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

const mib = 1 << 20
const length = 8 * mib

// The exit status that a harness counts as skipped.
const skipped = 77

func check(what string, status C.hugekit_status) {
	switch status {
	case C.HUGEKIT_STATUS_OK:
	case C.HUGEKIT_STATUS_NOT_PERMITTED, C.HUGEKIT_STATUS_UNSUPPORTED:
		fmt.Println("SKIP", C.GoString(C.hugekit_last_error()))
		os.Exit(skipped)
	default:
		fail(what, C.GoString(C.hugekit_last_error()))
	}
}

func fail(what string, values ...any) {
	fmt.Fprintln(os.Stderr, append([]any{what}, values...)...)
	os.Exit(1)
}

func bytesAt(address unsafe.Pointer, len int) []byte {
	return unsafe.Slice((*byte)(address), len)
}

// Several goroutines, each on its share and with a stack that grows, are the first to touch memory.
func touch(bytes []byte, value byte) {
	const workers = 8
	var group sync.WaitGroup
	share := len(bytes) / workers
	for worker := range workers {
		group.Add(1)
		go func() {
			defer group.Done()
			part := bytes[worker*share : (worker+1)*share]
			for at := 0; at < len(part); at += 4096 {
				if deep(20, part, at) != 0 {
					fail("memory is not clean at", at)
				}
				part[at] = value
			}
		}()
	}
	group.Wait()
}

//go:noinline
func deep(frames int, bytes []byte, at int) byte {
	var room [256]byte
	if frames == 0 {
		return bytes[at] + room[at%256]
	}
	return deep(frames-1, bytes, at) + room[frames]
}

// Dirty memory of a pool is cleared in goroutines that touch it.
func regionsAreCleared(fault_mode C.uint32_t) {
	options := C.pool_options()
	var pool *C.hugekit_pool
	check("pool", C.hugekit_pool_new(2*length, &options, &pool))
	check("pause", C.hugekit_pool_pause_scrubbing(pool))
	for round := range 6 {
		var region *C.hugekit_region
		wishes := C.region_options(fault_mode)
		check("region", C.hugekit_region_new(pool, length, &wishes, &region))
		touch(bytesAt(C.hugekit_region_address(region), length), byte(round+1))
		C.hugekit_region_free(region)
	}
	C.hugekit_pool_free(pool)
}

// Both sides of a fork are written by goroutines.
func forksDiverge(fault_mode C.uint32_t) {
	options := C.pool_options()
	var pool *C.hugekit_pool
	var parent, child *C.hugekit_region
	check("pool", C.hugekit_pool_new(2*length, &options, &pool))
	check("region", C.hugekit_region_new(pool, length, nil, &parent))
	ours := bytesAt(C.hugekit_region_address(parent), length)
	wishes := C.fork_options(fault_mode)
	check("fork", C.hugekit_region_fork(parent, &wishes, &child))
	theirs := bytesAt(C.hugekit_region_address(child), length)
	var group sync.WaitGroup
	for _, side := range [][]byte{ours, theirs} {
		group.Add(1)
		go func() {
			defer group.Done()
			touch(side, 7)
		}()
	}
	group.Wait()
	C.hugekit_region_free(parent)
	C.hugekit_region_free(child)
	C.hugekit_pool_free(pool)
}

// A snapshot of memory, of the runtime's or not, that goroutines write meanwhile.
func snapshotsHold(memory []byte, fault_mode C.uint32_t) {
	for at := range memory {
		memory[at] = 1
	}
	wishes := C.snapshot_options(fault_mode)
	wishes.max_cow_bytes = C.size_t(len(memory) + 4*mib)
	var snapshot *C.hugekit_snapshot
	start := unsafe.Pointer(&memory[0])
	check("snapshot", C.hugekit_snapshot_new(start, C.size_t(len(memory)), &wishes, &snapshot))
	var group sync.WaitGroup
	for worker := range 4 {
		group.Add(1)
		go func() {
			defer group.Done()
			for at := worker; at < len(memory); at += 4 {
				memory[at] = 2
			}
		}()
	}
	copied := C.malloc(C.size_t(len(memory)))
	check("copy", C.hugekit_snapshot_copy(snapshot, copied, C.size_t(len(memory)), nil))
	for at, value := range bytesAt(copied, len(memory)) {
		if value != 1 {
			fail("the snapshot has", value, "at", at)
		}
	}
	group.Wait()
	C.free(copied)
	C.hugekit_snapshot_free(snapshot)
	for at, value := range memory {
		if value != 2 {
			fail("a store is gone at", at)
		}
	}
}

// A fault that is not the library's stays Go's: it becomes a panic that is recovered.
func foreignFaultsAreGos() {
	file, err := os.CreateTemp("", "go")
	if err != nil {
		fail("no file", err)
	}
	defer os.Remove(file.Name())
	mapped, err := syscall.Mmap(int(file.Fd()), 0, 4096, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		fail("mmap", err)
	}
	recovered := func() (was bool) {
		defer func() { was = recover() != nil }()
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		return mapped[5] == 1
	}()
	if !recovered {
		fail("a fault beyond a file's end is no panic of Go's")
	}
}

// Collections, signals, and processes that are started, until it is told to stop.
func disturb(stop *atomic.Bool, group *sync.WaitGroup) {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGBUS, syscall.SIGSEGV)
	for _, disturbance := range []func(){
		func() { runtime.GC(); debug.FreeOSMemory() },
		func() { syscall.Kill(os.Getpid(), syscall.SIGUSR1) },
		func() { exec.Command("true").Run() },
		func() { _ = make([]byte, 3*mib) },
	} {
		group.Add(1)
		go func() {
			defer group.Done()
			for !stop.Load() {
				disturbance()
				time.Sleep(time.Millisecond)
			}
		}()
	}
	go func() {
		for range signals {
		}
	}()
}

func main() {
	debug.SetGCPercent(20)
	go func() {
		time.Sleep(240 * time.Second)
		debug.SetTraceback("all")
		panic("it hangs")
	}()
	var stop atomic.Bool
	var group sync.WaitGroup
	disturb(&stop, &group)
	heap := make([]byte, length+12345)
	outside := C.malloc(length)
	for _, fault_mode := range []C.uint32_t{C.HUGEKIT_FAULT_MODE_IN_PLACE, C.HUGEKIT_FAULT_MODE_DEFAULT} {
		regionsAreCleared(fault_mode)
		forksDiverge(fault_mode)
		snapshotsHold(bytesAt(outside, length), fault_mode)
		snapshotsHold(heap[77:], fault_mode)
		foreignFaultsAreGos()
	}
	stop.Store(true)
	group.Wait()
	C.free(outside)
}
