//! A program that computes in all of its guest's memory, so that each number depends on all before
//! it.

/// The offset at which the program stores its reports.
pub(crate) const MEBIBYTE_DONE: u8 = 0;
pub(crate) const ENDED: u8 = 4;

/// Steps in each mebibyte.
pub(crate) const STEPS: u32 = 1 << 18;

/// A linear congruential generator chooses a word of the mebibyte, which it is added to, and which changes it. `ebx`
/// is the mask of all addresses of words, `edx` the number of steps.
#[rustfmt::skip]
pub(crate) const PROGRAM: [u8; 63] = [
    0xb8, 0x01, 0x00, 0x00, 0x00,       //       mov eax, 1
    0x69, 0xc0, 0x0d, 0x66, 0x19, 0x00, // step: imul eax, eax, 1664525
    0x05, 0x5f, 0xf3, 0x6e, 0x3c,       //       add eax, 1013904223
    0x89, 0xc7,                         //       mov edi, eax
    0xc1, 0xef, 10,                     //       shr edi, 10
    0x81, 0xe7, 0xfc, 0xff, 0x0f, 0x00, //       and edi, 0xffffc
    0x89, 0xd1,                         //       mov ecx, edx
    0xc1, 0xe9, 18,                     //       shr ecx, 18
    0xc1, 0xe1, 20,                     //       shl ecx, 20
    0x09, 0xcf,                         //       or edi, ecx
    0x21, 0xdf,                         //       and edi, ebx
    0x01, 0x07,                         //       add [rdi], eax
    0x33, 0x07,                         //       xor eax, [rdi]
    0xff, 0xca,                         //       dec edx
    0x74, 13,                           //       jz ended
    0xf7, 0xc2, 0xff, 0xff, 0x03, 0x00, //       test edx, 0x3ffff
    0x75, 0xce,                         //       jnz step
    0x89, 0x56, MEBIBYTE_DONE,         //       mov [rsi + MEBIBYTE_DONE], edx
    0xeb, 0xc9,                         //       jmp step
    0x89, 0x46, ENDED,                  // ended: mov [rsi + ENDED], eax   ; the last run ends here
];
