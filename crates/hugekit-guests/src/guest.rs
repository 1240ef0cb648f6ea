//! The guest: less than a page of assembly, position-independent, which Firecracker enters by the
//! Linux 64-bit boot protocol.
//!
//! It maps the low 4 GiB by 2 MiB pages that ring 3 may use, goes to ring 3 by `iretq` with IOPL 3,
//! and polls the serial port. Ring 3, because KVM without hardware virtualization beneath it runs
//! that at full speed.
#![allow(unsafe_code)]

/// Where the guest is loaded. It uses memory up to [`END`].
const START: u64 = 0x10_0000;

/// The first byte that the guest's own code, tables and stack do not use.
pub(crate) const END: u64 = 0x20_0000;

#[cfg(target_arch = "x86_64")]
mod blob {
    core::arch::global_asm!(
        // The compiler may put the code that names these into another object file.
        ".globl hugekit_guest_start, hugekit_guest_end",
        ".hidden hugekit_guest_start, hugekit_guest_end",
        ".pushsection .rodata.hugekit_guest, \"a\"",
        ".balign 16",
        "hugekit_guest_start:",
        "    cli",
        "    cld",
        "    mov rsp, 0x190000",
        // Page directories: 2,048 entries of 2 MiB, present, writable, user.
        "    mov rdi, 0x182000",
        "    mov rax, 0x87",
        "    mov rcx, 2048",
        "2:  mov [rdi], rax",
        "    add rax, 0x200000",
        "    add rdi, 8",
        "    dec rcx",
        "    jnz 2b",
        // The table above them, and the one above that.
        "    mov rdi, 0x181000",
        "    mov rax, 0x182007",
        "    mov rcx, 4",
        "3:  mov [rdi], rax",
        "    add rax, 0x1000",
        "    add rdi, 8",
        "    dec rcx",
        "    jnz 3b",
        "    mov rdi, 0x180000",
        "    mov rax, 0x181007",
        "    mov [rdi], rax",
        "    mov cr3, rdi",
        "    lgdt [rip + 91f]",
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
        "    cmp bl, 'D'",
        "    je 80f",
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
        "80: mov rdx, rsi",
        "    mov r8d, 16",
        "81: inc qword ptr [rdx]",
        "    add rdx, 4096",
        "    dec r8d",
        "    jnz 81b",
        "    add rsi, rdi",
        "    sub rcx, rdi",
        "    ja 80b",
        // The answer: a tilde, 16 hexadecimal digits, a line feed.
        "70: mov r14, rax",
        "    mov bl, '~'",
        "    mov r15d, 18",
        "71: mov edx, 0x3fd",
        "    in al, dx",
        "    test al, 0x20",
        "    jz 71b",
        "    mov edx, 0x3f8",
        "    mov al, bl",
        "    out dx, al",
        "    dec r15d",
        "    jz 10b",
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
        ".balign 8",
        // Null, code and data of ring 0, data and code of ring 3; all marked accessed.
        "90: .quad 0, 0x00af9b000000ffff, 0x00cf93000000ffff, 0x00cff3000000ffff, 0x00affb000000ffff",
        "91: .word 39",
        "    .quad 0x100000 + (90b - hugekit_guest_start)",
        "hugekit_guest_end:",
        ".popsection",
    );

    unsafe extern "C" {
        static hugekit_guest_start: u8;
        static hugekit_guest_end: u8;
    }

    pub(super) fn bytes() -> &'static [u8] {
        let (start, end) = (&raw const hugekit_guest_start, &raw const hugekit_guest_end);
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

#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn elf() -> Option<Vec<u8>> {
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
