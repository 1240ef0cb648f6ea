//! The guest: less than a page of assembly, position-independent, which VMMs enter by a Linux boot
//! protocol: Firecracker loads an ELF file and enters it in 64-bit mode, Cloud Hypervisor loads a
//! bzImage and enters it in protected mode.
//!
//! It maps the low 5 GiB by 2 MiB pages that ring 3 may use, goes to ring 3 by `iretq` with IOPL 3,
//! and polls the serial port. Ring 3, because KVM without hardware virtualization beneath it runs
//! that at full speed.
//!
//! It drives a virtio balloon, which is the first device that Firecracker has at a memory address:
//! virtio 1.0, no interrupts, and for each queue two descriptors that are always used together.
//! Firecracker reports pages as used before it gives them back, and sets the interrupt status
//! behind that, so both are polled. Two descriptors are 512 pages, and so may be a page of 2 MiB.
//!
//! Or it drives a virtio vsock at the same address: it only offers buffers for events, and says how many were used. Or a
//! virtio disk there, of which it reads or writes a sector at a time.
//!
//! It starts a second virtual CPU when that is first needed, by INIT and SIPI of the local APIC. That
//! CPU goes from real mode straight to 64-bit mode and to ring 3, and polls a word of memory:
//! 0 before it is started, 1 when it waits, and 2 when it is to touch a range.
#![allow(unsafe_code)]

/// The address of three words about the guest's writes since the last request: the ticks of the longest time between
/// two writes, the number of writes, and the ticks of all of them.
pub(crate) const WRITES: u64 = 0x19_5000;

/// The address of the number of events that a vsock has written, in 2 bytes.
pub(crate) const EVENTS: u64 = 0x1a_a002;

/// The address at which the guest is loaded. It uses memory up to [`END`].
#[cfg(target_arch = "x86_64")]
const START: u64 = 0x10_0000;

/// The first byte that the guest's own code, tables and stack do not use.
pub(crate) const END: u64 = 0x20_0000;

#[cfg(target_arch = "x86_64")]
mod blob {
    core::arch::global_asm!(
        // The compiler may put the code that names these into another object file.
        ".globl hugekit_guest_protected, hugekit_guest_start, hugekit_guest_end",
        ".hidden hugekit_guest_protected, hugekit_guest_start, hugekit_guest_end",
        ".pushsection .rodata.hugekit_guest, \"a\"",
        ".balign 16",
        // From protected mode without paging, at 1 MiB: to 64-bit mode, which follows 512 bytes on.
        ".code32",
        "hugekit_guest_protected:",
        "    cli",
        "    jmp 2f",
        // Limit and address of the GDT, at 0x100008.
        ".balign 8",
        "    .word 55",
        "    .long 0x100200 + (90f - hugekit_guest_start)",
        "2:",
        // The first 2 MiB, in the tables that all of the guest uses.
        "    mov dword ptr [0x182000], 0x87",
        "    mov dword ptr [0x181000], 0x182007",
        "    mov dword ptr [0x180000], 0x181007",
        "    mov eax, 0x180000",
        "    mov cr3, eax",
        "    mov eax, cr4",
        "    or eax, 0x20",
        "    mov cr4, eax",
        "    mov ecx, 0xc0000080",
        "    rdmsr",
        "    or eax, 0x100",
        "    wrmsr",
        "    lgdt [0x100008]",
        "    mov eax, cr0",
        "    or eax, 0x80000000",
        "    mov cr0, eax",
        // A far jump to code segment 8, 0x100200.
        "    .byte 0xea, 0x00, 0x02, 0x10, 0x00, 0x08, 0x00",
        ".code64",
        ".balign 16",
        "hugekit_guest_start:",
        "    cli",
        "    cld",
        "    mov rsp, 0x190000",
        // Page directories: 2,560 entries of 2 MiB, present, writable, user.
        "    mov rdi, 0x182000",
        "    mov rax, 0x87",
        "    mov rcx, 2560",
        "2:  mov [rdi], rax",
        "    add rax, 0x200000",
        "    add rdi, 8",
        "    dec rcx",
        "    jnz 2b",
        // The table above them, and the one above that.
        "    mov rdi, 0x181000",
        "    mov rax, 0x182007",
        "    mov rcx, 5",
        "3:  mov [rdi], rax",
        "    add rax, 0x1000",
        "    add rdi, 8",
        "    dec rcx",
        "    jnz 3b",
        "    mov rdi, 0x180000",
        "    mov rax, 0x181007",
        "    mov [rdi], rax",
        "    mov cr3, rdi",
        // The descriptor of the GDT: its limit and its address, which depends on the VMM.
        "    lea rax, [rip + 90f]",
        "    push rax",
        "    sub rsp, 2",
        "    mov word ptr [rsp], 55",
        "    lgdt [rsp]",
        "    mov rsp, 0x190000",
        // Ring 3 uses ports because the TSS permits it: without hardware beneath it, KVM leaves
        // IOPL out.
        "    mov eax, 0x28",
        "    ltr ax",
        // To ring 3: SS, RSP, RFLAGS with IOPL 3, CS, RIP.
        "    push 0x1b",
        "    mov rax, 0x190000",
        "    push rax",
        "    push 0x3002",
        "    push 0x23",
        "    lea rax, [rip + 10f]",
        "    push rax",
        "    iretq",
        // One request: 25 bytes of the serial port.
        "10: mov r12, 0x191000",
        "    xor r13d, r13d",
        "11: mov edx, 0x3fd",
        "    in al, dx",
        "    test al, 1",
        "    jnz 12f",
        "    pause",
        "    jmp 11b",
        "12: mov edx, 0x3f8",
        "    in al, dx",
        "    mov [r12 + r13], al",
        "    inc r13",
        "    cmp r13, 25",
        "    jne 11b",
        "    mov rsi, [r12 + 1]",
        "    mov rcx, [r12 + 9]",
        "    mov rdi, [r12 + 17]",
        "    mov bl, [r12]",
        "    xor eax, eax",
        "    cmp bl, 'T'",
        "    je 20f",
        "    cmp bl, 'S'",
        "    je 30f",
        "    cmp bl, 'W'",
        "    je 40f",
        "    cmp bl, 'V'",
        "    je 50f",
        "    cmp bl, 'Z'",
        "    je 60f",
        "    cmp bl, 'C'",
        "    je 65f",
        "    cmp bl, 'I'",
        "    je 80f",
        "    cmp bl, 'D'",
        "    je 80f",
        "    cmp bl, 'B'",
        "    je 91f",
        "    cmp bl, 'E'",
        "    je 122f",
        "    cmp bl, 'K'",
        "    je 140f",
        "    jmp 70f",
        // Touch.
        "20: add rax, [rsi]",
        "    add rsi, 4096",
        "    sub rcx, 4096",
        "    ja 20b",
        "    xor eax, eax",
        "    jmp 70f",
        // Sum.
        "30: rol rax, 1",
        "    xor rax, [rsi]",
        "    add rsi, 8",
        "    sub rcx, 8",
        "    ja 30b",
        "    jmp 70f",
        // Write.
        "40: mov rdx, rsi",
        "    xor rdx, rdi",
        "    mov [rsi], rdx",
        "    add rsi, 8",
        "    sub rcx, 8",
        "    ja 40b",
        "    jmp 70f",
        // Verify.
        "50: mov rdx, rsi",
        "    xor rdx, rdi",
        "    cmp [rsi], rdx",
        "    je 51f",
        "    inc rax",
        "51: add rsi, 8",
        "    sub rcx, 8",
        "    ja 50b",
        "    jmp 70f",
        // Not zero.
        "60: cmp qword ptr [rsi], 0",
        "    je 61f",
        "    inc rax",
        "61: add rsi, 8",
        "    sub rcx, 8",
        "    ja 60b",
        "    jmp 70f",
        // Dirty: 16 pages, and again RDI bytes further.
        "65: mov rdx, rsi",
        "    mov r8d, 16",
        "66: inc qword ptr [rdx]",
        "    add rdx, 4096",
        "    dec r8d",
        "    jnz 66b",
        "    add rsi, rdi",
        "    sub rcx, rdi",
        "    ja 65b",
        // The answer: a tilde, 16 hexadecimal digits, a line feed.
        "70: mov r14, rax",
        "    mov bl, '~'",
        "    mov r15d, 18",
        // If the guest is to write then, with ticks before each byte: it may be paused as soon as the
        // last one is read.
        "71: cmp byte ptr [r12], 'L'",
        "    jne 72f",
        "    rdtsc",
        "    mov [r12 + 32], eax",
        "    mov [r12 + 36], edx",
        "72: mov edx, 0x3fd",
        "    in al, dx",
        "    test al, 0x20",
        "    jz 71b",
        "    mov edx, 0x3f8",
        "    mov al, bl",
        "    out dx, al",
        "    dec r15d",
        "    jz 21f",
        "    mov bl, 10",
        "    cmp r15d, 1",
        "    je 71b",
        "    rol r14, 4",
        "    mov ebx, r14d",
        "    and ebx, 15",
        "    add ebx, '0'",
        "    cmp ebx, '9'",
        "    jbe 71b",
        "    add ebx, 39",
        "    jmp 71b",
        // Behind the answer: write until the next request, if that was asked. R9 and R10: the range;
        // R11: writes; RBX: the longest gap in ticks; RBP, R14, R15: ticks of the start, of the last
        // write, of the last look for a request.
        "21: cmp byte ptr [r12], 'L'",
        "    jne 10b",
        "    mov r9, rsi",
        "    mov r10, rcx",
        "    xor r11d, r11d",
        "    xor ebx, ebx",
        "    mov r14, [r12 + 32]",
        "    mov rbp, r14",
        "    mov r15, r14",
        "22: mov rsi, r9",
        "    mov rcx, r10",
        "23: mov r13, rsi",
        "    mov r8d, 16",
        "24: inc qword ptr [r13]",
        "    inc r11",
        "    rdtsc",
        "    shl rdx, 32",
        "    or rax, rdx",
        "    mov rdx, rax",
        "    sub rdx, r14",
        "    mov r14, rax",
        "    cmp rdx, rbx",
        "    cmova rbx, rdx",
        // About each millisecond: a look takes as long as thousands of writes.
        "    sub rax, r15",
        "    cmp rax, 0x200000",
        "    jb 25f",
        "    mov r15, r14",
        "    mov edx, 0x3fd",
        "    in al, dx",
        "    test al, 1",
        "    jnz 26f",
        "25: add r13, 4096",
        "    dec r8d",
        "    jnz 24b",
        "    add rsi, rdi",
        "    sub rcx, rdi",
        "    ja 23b",
        "    jmp 22b",
        "26: mov r8d, 0x195000",
        "    mov [r8], rbx",
        "    mov [r8 + 8], r11",
        "    sub r14, rbp",
        "    mov [r8 + 16], r14",
        "    jmp 10b",
        // Inflate or deflate. The magic number and the kind of the device, or -1 is the answer.
        "80: call 132f",
        "    cmp eax, 0x74726976",
        "    jne 88f",
        "    mov eax, [r8 + 0x08]",
        "    cmp eax, 5",
        "    jne 88f",
        "    mov eax, [r8 + 0x70]",
        "    cmp eax, 15",
        "    je 82f",
        "    mov r9d, 2",
        "    mov r10d, 2",
        "    call 120f",
        // The queue.
        "82: xor edx, edx",
        "    mov edi, 0x1a0000",
        "    cmp bl, 'I'",
        "    je 83f",
        "    inc edx",
        "    mov edi, 0x1a4000",
        // Numbers of at most 512 pages.
        "83: xor r9d, r9d",
        "    mov r10d, 0x1a8000",
        "84: mov rax, rsi",
        "    shr rax, 12",
        "    mov [r10 + 4 * r9], eax",
        "    add rsi, 4096",
        "    inc r9d",
        "    sub rcx, 4096",
        "    jbe 85f",
        "    cmp r9d, 512",
        "    jne 84b",
        // Half of them in each descriptor, both available.
        "85: add r9d, r9d",
        "    mov [rdi], r10",
        "    mov [rdi + 8], r9",
        "    add r10, r9",
        "    mov [rdi + 16], r10",
        "    mov [rdi + 24], r9",
        "    mov dword ptr [r8 + 0x64], 1",
        "    add word ptr [rdi + 0x1002], 2",
        "    mov [r8 + 0x50], edx",
        "    mov ax, [rdi + 0x1002]",
        "86: pause",
        "    cmp ax, [rdi + 0x2002]",
        "    jne 86b",
        "87: mov eax, [r8 + 0x60]",
        "    test al, 1",
        "    jz 87b",
        "    test rcx, rcx",
        "    jnz 83b",
        "    xor eax, eax",
        "    jmp 70b",
        "88: mov rax, -1",
        "    jmp 70b",
        // Touch at once. The second CPU's word, and the range behind it.
        "91: mov r8d, 0x192000",
        "    cmp dword ptr [r8], 0",
        "    jne 93f",
        // Its first instructions, at 64 KiB, with the addresses that depend on the VMM.
        "    lea rdx, [rip + 95f]",
        "    xor r9d, r9d",
        "92: mov al, [rdx + r9]",
        "    mov [r9 + 0x10000], al",
        "    inc r9d",
        "    cmp r9d, 128",
        "    jne 92b",
        "    lea rax, [rip + 90f]",
        "    mov [0x10004], eax",
        "    lea rax, [rip + 98f]",
        "    mov [0x10008], eax",
        // To all CPUs but this one: INIT, and SIPI with the number of the page.
        "    mov r9d, 0xfee00300",
        "    mov dword ptr [r9], 0xc4500",
        "    mov dword ptr [r9], 0xc4610",
        "93: pause",
        "    cmp dword ptr [r8], 1",
        "    jne 93b",
        "    mov [r8 + 8], rsi",
        "    mov [r8 + 16], rcx",
        "    mov dword ptr [r8], 2",
        // This CPU ascends, and the other one descends.
        "94: add rax, [rsi]",
        "    add rsi, 4096",
        "    sub rcx, 4096",
        "    ja 94b",
        "94: pause",
        "    cmp dword ptr [r8], 1",
        "    jne 94b",
        "    xor eax, eax",
        "    jmp 70b",
        // A driver for the device at R8: reset, acknowledge, driver, version 1.0, features chosen; then R10
        // queues of R9 descriptors: descriptors, and one page and two pages behind them what is available
        // and what was used. The first two descriptors are named as the first two to be available.
        "120: mov dword ptr [r8 + 0x70], 0",
        "    mov dword ptr [r8 + 0x70], 1",
        "    mov dword ptr [r8 + 0x70], 3",
        "    mov dword ptr [r8 + 0x24], 0",
        "    mov dword ptr [r8 + 0x20], 0",
        "    mov dword ptr [r8 + 0x24], 1",
        "    mov dword ptr [r8 + 0x20], 1",
        "    mov dword ptr [r8 + 0x70], 11",
        "    xor edx, edx",
        "    mov edi, 0x1a0000",
        "121: mov [r8 + 0x30], edx",
        "    mov [r8 + 0x38], r9d",
        "    mov [r8 + 0x80], edi",
        "    mov dword ptr [r8 + 0x84], 0",
        "    lea eax, [rdi + 0x1000]",
        "    mov [r8 + 0x90], eax",
        "    mov dword ptr [r8 + 0x94], 0",
        "    lea eax, [rdi + 0x2000]",
        "    mov [r8 + 0xa0], eax",
        "    mov dword ptr [r8 + 0xa4], 0",
        "    mov dword ptr [r8 + 0x44], 1",
        "    mov dword ptr [rdi + 0x1004], 0x10000",
        "    add edi, 0x4000",
        "    inc edx",
        "    cmp edx, r10d",
        "    jne 121b",
        "    mov dword ptr [r8 + 0x70], 15",
        "    ret",
        // The address of the first device, since Firecracker 1.13 and before, and what should be its magic number.
        "132: mov r8d, 0xc0001000",
        "    mov eax, [r8]",
        "    cmp eax, 0x74726976",
        "    je 133f",
        "    mov r8d, 0xd0000000",
        "    mov eax, [r8]",
        "133: ret",
        // Events of the vsock. The magic number and the kind of the device, or -1 is the answer.
        "122: call 132b",
        "    cmp eax, 0x74726976",
        "    jne 88b",
        "    mov eax, [r8 + 0x08]",
        "    cmp eax, 19",
        "    jne 88b",
        "    mov eax, [r8 + 0x70]",
        "    cmp eax, 15",
        "    je 124f",
        "    mov r9d, 8",
        "    mov r10d, 3",
        "    call 120b",
        // The third queue: 8 buffers of 8 bytes that the device writes, all available.
        "    mov edi, 0x1a8000",
        "    xor edx, edx",
        "123: mov eax, edx",
        "    shl eax, 4",
        "    lea r9d, [rdx * 8 + 0x1ac000]",
        "    mov [rdi + rax], r9",
        "    mov dword ptr [rdi + rax + 8], 8",
        "    mov dword ptr [rdi + rax + 12], 2",
        "    mov [rdi + rdx * 2 + 0x1004], dx",
        "    inc edx",
        "    cmp edx, 8",
        "    jne 123b",
        "    mov word ptr [rdi + 0x1002], 8",
        "    mov dword ptr [r8 + 0x50], 2",
        "124: movzx eax, word ptr [0x1aa002]",
        "    jmp 70b",
        // A sector of the disk: RSI its number, ECX 1 if it is written, R11 its first word. The magic number and the
        // kind of the device, or -1 is the answer.
        "140: mov r11, rdi",
        "    call 132b",
        "    cmp eax, 0x74726976",
        "    jne 88b",
        "    mov eax, [r8 + 0x08]",
        "    cmp eax, 2",
        "    jne 88b",
        "    mov eax, [r8 + 0x70]",
        "    cmp eax, 15",
        "    je 141f",
        "    mov r9d, 4",
        "    mov r10d, 1",
        "    call 120b",
        // The head of the request, its state 256 bytes on, and the sector 512 bytes on.
        "141: mov edi, 0x1a0000",
        "    mov r9d, 0x1a8000",
        "    mov [r9], ecx",
        "    mov dword ptr [r9 + 4], 0",
        "    mov [r9 + 8], rsi",
        "    mov byte ptr [r9 + 0x100], 0xff",
        "    mov [r9 + 0x200], r11",
        // Three descriptors: the device reads the head, reads or writes the sector, and writes the state.
        "    mov [rdi], r9",
        "    mov dword ptr [rdi + 8], 16",
        "    mov dword ptr [rdi + 12], 0x10001",
        "    lea eax, [r9 + 0x200]",
        "    mov [rdi + 16], rax",
        "    mov dword ptr [rdi + 24], 512",
        "    mov eax, 0x20001",
        "    test ecx, ecx",
        "    jnz 142f",
        "    mov eax, 0x20003",
        "142: mov [rdi + 28], eax",
        "    lea eax, [r9 + 0x100]",
        "    mov [rdi + 32], rax",
        "    mov dword ptr [rdi + 40], 1",
        "    mov dword ptr [rdi + 44], 2",
        // The first one is available, and is awaited.
        "    movzx edx, word ptr [rdi + 0x1002]",
        "    mov eax, edx",
        "    and eax, 3",
        "    mov word ptr [rdi + rax * 2 + 0x1004], 0",
        "    inc edx",
        "    mov [rdi + 0x1002], dx",
        "    mov dword ptr [r8 + 0x50], 0",
        "143: pause",
        "    cmp dx, [rdi + 0x2002]",
        "    jne 143b",
        "    mov dword ptr [r8 + 0x64], 1",
        "    cmp byte ptr [r9 + 0x100], 0",
        "    jne 88b",
        "    mov rax, [r9 + 0x200]",
        "    jmp 70b",
        // The second CPU, in real mode at 0x1000:0.
        ".code16",
        "95: jmp 96f",
        // Limit and address of the GDT; then 98f, and the code segment of ring 0.
        "    .word 55",
        "    .long 0",
        "    .long 0",
        "    .word 8",
        "96: cli",
        "    mov eax, cr4",
        "    or eax, 0x20",
        "    mov cr4, eax",
        "    mov eax, 0x180000",
        "    mov cr3, eax",
        "    mov ecx, 0xc0000080",
        "    rdmsr",
        "    or eax, 0x100",
        "    wrmsr",
        "    mov eax, 0x80000001",
        // lgdt cs:[2]
        "    .byte 0x2e, 0x0f, 0x01, 0x16, 0x02, 0x00",
        "    mov cr0, eax",
        // jmp far cs:[8], of 32 bits
        "    .byte 0x2e, 0x66, 0xff, 0x2e, 0x08, 0x00",
        ".code64",
        "98: mov rsp, 0x194000",
        "    push 0x1b",
        "    mov rax, 0x194000",
        "    push rax",
        "    push 0x3002",
        "    push 0x23",
        "    lea rax, [rip + 99f]",
        "    push rax",
        "    iretq",
        "99: mov r8d, 0x192000",
        "2:  mov dword ptr [r8], 1",
        "3:  pause",
        "    cmp dword ptr [r8], 2",
        "    jne 3b",
        "    mov rsi, [r8 + 8]",
        "    mov rcx, [r8 + 16]",
        "4:  add rax, [rsi + rcx - 4096]",
        "    sub rcx, 4096",
        "    ja 4b",
        "    jmp 2b",
        ".balign 8",
        // Null, code and data of ring 0, data and code of ring 3; all marked accessed.
        "90: .quad 0, 0x00af9b000000ffff, 0x00cf93000000ffff, 0x00cff3000000ffff, 0x00affb000000ffff",
        // A TSS of zeroes, which permit all ports, at 0x188000.
        "    .quad 0x0000891880000fff, 0",
        "hugekit_guest_end:",
        ".popsection",
    );

    unsafe extern "C" {
        static hugekit_guest_protected: u8;
        static hugekit_guest_start: u8;
        static hugekit_guest_end: u8;
    }

    /// From 64-bit mode on.
    pub(super) fn bytes() -> &'static [u8] {
        let (start, end) = (&raw const hugekit_guest_start, &raw const hugekit_guest_end);
        // SAFETY: the assembly above defines both symbols around bytes of one read-only section,
        // the second one behind the first.
        unsafe { std::slice::from_raw_parts(start, end.addr() - start.addr()) }
    }

    /// From protected mode to 64-bit mode.
    pub(super) fn of_protected_mode() -> &'static [u8] {
        let (start, end) = (&raw const hugekit_guest_protected, &raw const hugekit_guest_start);
        // SAFETY: the assembly above defines both symbols around bytes of one read-only section,
        // the second one behind the first.
        unsafe { std::slice::from_raw_parts(start, end.addr() - start.addr()) }
    }
}

/// The guest as an ELF file that Firecracker boots; `None` if there is no guest for this
/// architecture.
#[cfg(target_arch = "x86_64")]
pub(crate) fn elf() -> Option<Vec<u8>> {
    const FILE_OFFSET: u64 = 0x1000;
    let code = blob::bytes();
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    let half = |file: &mut Vec<u8>, value: u16| file.extend(value.to_le_bytes());
    // An executable for x86-64.
    half(&mut file, 2);
    half(&mut file, 62);
    file.extend(1_u32.to_le_bytes());
    for value in [START, 64, 0] {
        file.extend(value.to_le_bytes());
    }
    file.extend(0_u32.to_le_bytes());
    // Sizes of this header, of a program header, and that there is one; no section headers.
    for value in [64, 56, 1, 64, 0, 0] {
        half(&mut file, value);
    }
    // One segment to load, which may be read and executed.
    file.extend(1_u32.to_le_bytes());
    file.extend(5_u32.to_le_bytes());
    let len = code.len() as u64;
    for value in [FILE_OFFSET, START, START, len, len, 0x1000] {
        file.extend(value.to_le_bytes());
    }
    file.resize(FILE_OFFSET as usize, 0);
    file.extend(code);
    Some(file)
}

/// The guest as a bzImage that Cloud Hypervisor boots; `None` if there is no guest for this
/// architecture.
#[cfg(target_arch = "x86_64")]
pub(crate) fn bzimage() -> Option<Vec<u8>> {
    const SECTOR: usize = 512;
    /// Behind the beginning of the part that is loaded.
    const ENTRY_64: usize = 0x200;
    // A boot sector and one sector of setup, in which the header is all that a VMM reads.
    let mut file = vec![0; 2 * SECTOR + ENTRY_64];
    let mut put = |at: usize, bytes: &[u8]| file[at..at + bytes.len()].copy_from_slice(bytes);
    // One sector of setup follows the boot sector.
    put(0x1f1, &[1]);
    put(0x1fe, &[0x55, 0xaa]);
    put(0x202, b"HdrS");
    // Version 2.12 of the boot protocol, which has an entry for 64 bits.
    put(0x206, &0x020c_u16.to_le_bytes());
    // Loaded at 1 MiB.
    put(0x211, &[1]);
    put(0x214, &(START as u32).to_le_bytes());
    // It has that entry.
    put(0x236, &1_u16.to_le_bytes());
    put(2 * SECTOR, blob::of_protected_mode());
    file.extend(blob::bytes());
    Some(file)
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn elf() -> Option<Vec<u8>> {
    None
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn bzimage() -> Option<Vec<u8>> {
    None
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn guest_fits_below_its_tables() {
        assert!(START + (blob::bytes().len() as u64) < 0x18_0000);
    }
}
