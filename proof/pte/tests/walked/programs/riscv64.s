# The guest's program on riscv64; `cpu.rs` says what it does. It runs in M-mode, whose own accesses are
# not translated, and uses pages by accesses with the rights of U-mode (MPRV in mstatus, while MPP is U,
# which a return from a trap makes it). s0 points to the request, t2 is its address, t3 its value.
    .option norvc
    .option norelax

# A page fault: its cause and address, and on behind the access.
    csrr t4, mcause
    sd t4, 24(s0)
    csrr t4, mtval
    sd t4, 32(s0)
    csrr t4, mepc
    addi t4, t4, 4
    csrw mepc, t4
    mret

    .balign 64
    auipc s0, 1
    auipc t0, 0
    addi t0, t0, -68
    csrw mtvec, t0
    # All of memory is open to U-mode as far as physical protection goes.
    li t0, -1
    csrw pmpaddr0, t0
    li t0, 0x1f
    csrw pmpcfg0, t0
    # The hardware sets accessed and dirty (ADUE in menvcfg), where that can be chosen.
    li t0, 1
    slli t0, t0, 61
    csrs 0x30a, t0
    # MPP is U.
    lui t0, 2
    addi t0, t0, -0x800
    csrc mstatus, t0
    lui s1, 0x20
next:
    ld t1, 0(s0)
    ld t2, 8(s0)
    ld t3, 16(s0)
    li t0, 1
    beq t1, t0, read
    li t0, 2
    beq t1, t0, write
    li t0, 3
    beq t1, t0, tree
    # Off: the board's device that ends the emulator.
    lui t0, 0x100
    lui t1, 5
    addi t1, t1, 0x555
    sw t1, 0(t0)
read:
    csrs mstatus, s1
    ld t3, 0(t2)
    csrc mstatus, s1
    sd t3, 16(s0)
    j done
write:
    csrs mstatus, s1
    sd t3, 0(t2)
    csrc mstatus, s1
    j done
tree:
    csrw satp, t2
    sfence.vma
done:
    addi s0, s0, 40
    j next
