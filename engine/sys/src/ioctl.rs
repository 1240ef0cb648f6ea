//! A pattern of ioctl that rustix does not have: an integer argument and an integer result.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_void};

use rustix::io;
use rustix::ioctl::{Ioctl, IoctlOutput, Opcode};

/// An ioctl with an argument by value, which returns its result.
pub(super) struct IntegerToInteger<const OPCODE: Opcode> {
    argument: usize,
}

impl<const OPCODE: Opcode> IntegerToInteger<OPCODE> {
    /// # Safety
    /// The driver must use `OPCODE`'s argument by value: it must not read or write memory at the
    /// argument.
    pub(super) const unsafe fn new(argument: usize) -> Self {
        Self { argument }
    }
}

// SAFETY: by the contract of `new` the driver does not follow the argument, so that nothing is mutated and
// any integer may be passed in place of a pointer; the output is the plain return value.
unsafe impl<const OPCODE: Opcode> Ioctl for IntegerToInteger<OPCODE> {
    type Output = c_int;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        OPCODE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::without_provenance_mut(self.argument)
    }

    unsafe fn output_from_ptr(output: IoctlOutput, _: *mut c_void) -> io::Result<c_int> {
        Ok(output)
    }
}
