// The guest's program on aarch64; `cpu.rs` says what it does. It runs in EL1 and uses pages by the
// instructions that have the rights of EL0. x19 points to the request, x2 is its address, x3 its value.

// A data abort, where the vectors say: its syndrome and address, and on behind the access.
    mrs x4, esr_el1
    mrs x5, far_el1
    stp x4, x5, [x19, #24]
    mrs x4, elr_el1
    add x4, x4, #4
    msr elr_el1, x4
    eret

    .balign 64
entry:
    adr x19, entry + 0x1000
    adr x0, entry - 0x240
    msr vbar_el1, x0
    // One kind of memory: write-back, allocated for reads and writes.
    mov x0, #0xff
    msr mair_el1, x0
    // Addresses of 39 bits below, none above (EPD1), 4 KiB pages, walks cached as memory is, addresses
    // of 52 bits (IPS, DS); the hardware sets accessed (HA) and dirty (HD).
    movz x0, #0x3519
    movk x0, #0x0080, lsl #16
    movk x0, #0x0186, lsl #32
    movk x0, #0x0800, lsl #48
    msr tcr_el1, x0
next:
    ldp x1, x2, [x19]
    ldr x3, [x19, #16]
    cmp x1, #1
    b.eq read
    cmp x1, #2
    b.eq write
    cmp x1, #3
    b.eq tree
    // Off, as PSCI asks for it.
    movz w0, #0x8400, lsl #16
    movk w0, #8
    hvc #0
read:
    ldtr x3, [x2]
    str x3, [x19, #16]
    b done
write:
    sttr x3, [x2]
done:
    add x19, x19, #40
    b next
tree:
    msr ttbr0_el1, x2
    isb
    tlbi vmalle1
    dsb nsh
    mrs x0, sctlr_el1
    orr x0, x0, #1
    msr sctlr_el1, x0
    isb
    b done
