//! Structures that begin with their own size, so that a program and a library of different versions
//! understand each other. A field that one side does not know is zero, which means the default.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use crate::status::Refusal;

/// A structure of the header that begins with its size in bytes.
///
/// # Safety
/// `#[repr(C)]`, beginning with a `usize`, and valid for whatever its bytes are.
pub(crate) unsafe trait Versioned: Copy {
    /// The name of the structure in the header.
    const NAME: &str;
    /// Bytes of the structure in the first version.
    const FIRST: usize;
}

/// A structure by which the caller asks for something.
pub(crate) trait CallerOptions: Versioned {
    /// Returns the value of the field `reserved`, if the structure has this field. The value is
    /// zero until a version of the library gives it a meaning.
    fn reserved(&self) -> u32;
}

/// Returns the caller's options; zeroes for no pointer.
///
/// # Safety
/// Null, or valid for reads of as many bytes as its first word says.
pub(crate) unsafe fn read<T: CallerOptions>(given: *const T) -> Result<T, Refusal> {
    let mut known = MaybeUninit::<T>::zeroed();
    if !given.is_null() {
        // SAFETY: not null, so its first word can be read: every such structure begins with its size.
        let size = unsafe { given.cast::<usize>().read_unaligned() };
        check_size::<T>(size)?;
        // SAFETY: so many bytes can be read, and no more are written than there are.
        unsafe {
            let common = size.min(size_of::<T>());
            known.as_mut_ptr().cast::<u8>().copy_from_nonoverlapping(given.cast(), common);
            let unknown = given.cast::<u8>().wrapping_add(common);
            if (0..size - common).any(|at| *unknown.wrapping_add(at) != 0) {
                return Err(Refusal::unsupported(format_args!(
                    "{} asks for something that this version of the library does not know",
                    T::NAME
                )));
            }
        }
    }
    // SAFETY: any bytes are valid ones.
    let known = unsafe { known.assume_init() };
    match known.reserved() {
        0 => Ok(known),
        other => Err(Refusal::unsupported(format_args!(
            "{}.reserved is {other:#x}, and must be 0: this version of the library knows no meaning for it",
            T::NAME
        ))),
    }
}

/// The place for an answer, if the caller wants one.
pub(crate) struct OutParameter<T> {
    to: *mut T,
    size: usize,
}

impl<T: Versioned> OutParameter<T> {
    /// Before anything is done, so that a place that cannot be filled is refused in time.
    ///
    /// # Safety
    /// Null, or valid for reads and writes of as many bytes as its first word says, until it is filled.
    pub(crate) unsafe fn new(to: *mut T) -> Result<Self, Refusal> {
        if to.is_null() {
            return Ok(Self { to, size: 0 });
        }
        // SAFETY: not null, so its first word can be read: every such structure begins with its size.
        let size = unsafe { to.cast::<usize>().read_unaligned() };
        check_size::<T>(size)?;
        Ok(Self { to, size })
    }

    /// Like [`new`](Self::new), where there must be one.
    ///
    /// # Safety
    /// The conditions of [`new`](Self::new).
    pub(crate) unsafe fn needed(to: *mut T) -> Result<Self, Refusal> {
        if to.is_null() {
            return Err(Refusal::invalid(format_args!(
                "there is no {} to fill: it is NULL",
                T::NAME
            )));
        }
        // SAFETY: this function has the contract of `new`.
        unsafe { Self::new(to) }
    }

    /// Fills as much as the caller knows, and zeroes what only the caller knows. The size stays.
    pub(crate) fn fill(self, value: &T) {
        let word = size_of::<usize>();
        let common = self.size.min(size_of::<T>());
        if common == 0 {
            return;
        }
        let (to, from) = (self.to.cast::<u8>(), std::ptr::from_ref(value).cast::<u8>());
        // SAFETY: the maker of this promised that so many bytes can be written; no more are read than
        // there are.
        unsafe {
            to.wrapping_add(word).copy_from_nonoverlapping(from.wrapping_add(word), common - word);
            to.wrapping_add(common).write_bytes(0, self.size - common);
        }
    }
}

/// A structure that a careless caller left uninitialised is more likely to be refused than to be read.
fn check_size<T: Versioned>(size: usize) -> Result<(), Refusal> {
    if (T::FIRST..=4096).contains(&size) {
        return Ok(());
    }
    Err(Refusal::invalid(format_args!(
        "{}.size is {size}: set it to sizeof({}), which is {} here",
        T::NAME,
        T::NAME,
        size_of::<T>()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::hugekit_status;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Options {
        size: usize,
        old: u64,
        new: u64,
    }

    // SAFETY: integers, the first of which is the size.
    unsafe impl Versioned for Options {
        const NAME: &str = "options";
        const FIRST: usize = 16;
    }

    impl CallerOptions for Options {
        fn reserved(&self) -> u32 {
            u32::from(self.new == RESERVED)
        }
    }

    /// A bit that stands for a new field.
    const RESERVED: u64 = 1 << 63;

    #[test]
    fn an_older_caller_gets_the_usual_for_what_he_does_not_know() {
        let given = Options { size: 16, old: 5, new: 77 };
        // SAFETY: of that size at least.
        let read = unsafe { read(&raw const given) }.unwrap();
        assert_eq!(read, Options { size: 16, old: 5, new: 0 });
        let mut to = given;
        // SAFETY: `to` is valid for 24 bytes, and its first word says 16.
        unsafe { OutParameter::new(&raw mut to) }.unwrap().fill(&Options {
            size: 0,
            old: 1,
            new: 2,
        });
        assert_eq!(to, Options { size: 16, old: 1, new: 77 });
    }

    #[test]
    fn a_newer_caller_is_understood_unless_he_asks_for_the_unknown() {
        let mut given = [32_usize, 5, 6, 0];
        // SAFETY: four words, of which the first says so.
        let known = unsafe { read(given.as_ptr().cast::<Options>()) }.unwrap();
        assert_eq!((known.old, known.new), (5, 6));
        given[3] = 1;
        // SAFETY: four words, of which the first says so.
        let refusal = unsafe { read(given.as_ptr().cast::<Options>()) }.unwrap_err();
        assert_eq!(refusal.status, hugekit_status::Unsupported);
        // SAFETY: four words that may be written, of which the first says so.
        unsafe { OutParameter::new(given.as_mut_ptr().cast()) }.unwrap().fill(&Options {
            size: 0,
            old: 1,
            new: 2,
        });
        assert_eq!(given, [32, 1, 2, 0]);
    }

    #[test]
    fn what_is_reserved_is_zero() {
        let given = Options { size: 24, old: 5, new: RESERVED };
        // SAFETY: of that size.
        let refusal = unsafe { read(&raw const given) }.unwrap_err();
        assert_eq!(refusal.status, hugekit_status::Unsupported);
        let older = Options { size: 16, ..given };
        // SAFETY: `older` is valid for 24 bytes, and its first word says 16.
        assert!(unsafe { read(&raw const older) }.is_ok());
    }

    #[test]
    fn a_size_that_cannot_be_is_refused() {
        for size in [0, 15, 4097, usize::MAX] {
            let mut given = Options { size, old: 0, new: 0 };
            // SAFETY: nothing but the size is read.
            assert!(unsafe { read(&raw const given) }.is_err());
            // SAFETY: nothing but the size is read, because it is refused.
            assert!(unsafe { OutParameter::new(&raw mut given) }.is_err());
        }
    }
}
