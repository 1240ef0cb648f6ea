//! Where the bytes of a snapshot go: through a file object's `write`, or to its descriptor if that is the same.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, RawFd};

use pyo3::exceptions::{PyBlockingIOError, PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict};

/// The fewest bytes that an object gets in one call, if there are as many.
const LEAST: usize = 4 << 10;

/// A file object. Bytes go through its `write`, except if it is a plain file: a descriptor below another object, such as
/// one that encrypts, compresses or counts, is not where that object would put them.
pub(crate) struct Destination {
    object: Py<PyAny>,
    descriptor: Option<RawFd>,
    written: usize,
    /// An answer of `write` was a number: so None is no way to say that everything was taken.
    has_counted: bool,
    /// The most bytes for one call. An object that takes a part of what it is given is given less, so that the rest is
    /// not copied again and again.
    most: usize,
    raised: Option<PyErr>,
}

impl Destination {
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let descriptor = descriptor_of(object)?;
        let object = object.clone().unbind();
        Ok(Self {
            object,
            descriptor,
            written: 0,
            has_counted: false,
            most: usize::MAX,
            raised: None,
        })
    }

    /// The outcome of writing, which is an exception of the object if it raised one.
    pub(crate) fn result(&mut self, outcome: PyResult<()>) -> PyResult<()> {
        self.raised.take().map_or(outcome, Err)
    }

    fn write_to_object(&mut self, py: Python<'_>, bytes: &[u8]) -> PyResult<usize> {
        let bytes = &bytes[..bytes.len().min(self.most)];
        let object = self.object.bind(py);
        // The object has bytes of its own, which it may keep.
        let copy = PyBytes::new_with(py, bytes.len(), |copy| {
            copy.copy_from_slice(bytes);
            Ok(())
        })?;
        let answer =
            object.call_method1("write", (copy,)).map_err(|error| self.blocked(py, error))?;
        let taken = if answer.is_none() {
            if self.has_counted || may_block(object)? {
                return Err(self.would_block());
            }
            bytes.len()
        } else {
            self.has_counted = true;
            counted(&answer, bytes.len())?
        };
        self.most =
            if taken < bytes.len() { taken.max(LEAST) } else { self.most.saturating_mul(2) };
        py.check_signals()?;
        Ok(taken)
    }

    /// The error of an object that takes nothing for now.
    fn would_block(&self) -> PyErr {
        let text = format!(
            "the file would block after {} bytes, and hugekit does not wait for it: make it blocking, or write what \
             to_numpy() returns",
            self.written
        );
        PyBlockingIOError::new_err((libc::EAGAIN, text, self.written))
    }

    /// The same exception, with the bytes of all calls.
    fn blocked(&self, py: Python<'_>, error: PyErr) -> PyErr {
        if error.is_instance_of::<PyBlockingIOError>(py) {
            let value = error.value(py);
            let here = value.getattr("characters_written").and_then(|here| here.extract());
            let all = self.written + here.unwrap_or(0_usize);
            // Without it, the exception says what happened all the same.
            let _ = value.setattr("characters_written", all);
        }
        error
    }
}

impl Write for Destination {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = match self.descriptor {
            Some(descriptor) => borrowed(descriptor).write(bytes)?,
            None => Python::attach(|py| self.write_to_object(py, bytes)).map_err(|error| {
                self.raised = Some(error);
                io::Error::other("the file's write raised an exception")
            })?,
        };
        self.written += written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The bytes that an object says it has taken, of `len`.
fn counted(answer: &Bound<'_, PyAny>, len: usize) -> PyResult<usize> {
    let said = || answer.repr().map_or_else(|_| "no number".to_owned(), |said| said.to_string());
    if answer.is_instance_of::<PyBool>() {
        let message =
            format!("the file's write returned {}, and must return a number of bytes", said());
        return Err(PyTypeError::new_err(message));
    }
    match answer.extract::<i128>() {
        Ok(0) => Err(PyOSError::new_err((
            libc::EIO,
            format!("the file's write took none of {len} bytes: it would never end"),
        ))),
        Ok(taken @ 1..) if taken <= len as i128 => Ok(taken as usize),
        Ok(_) => Err(PyValueError::new_err(format!(
            "the file's write was given {len} bytes and says that it took {}",
            said()
        ))),
        Err(error) => Err(PyTypeError::new_err(format!(
            "the file's write returned {}, and must return a number of bytes: {error}",
            said()
        ))),
    }
}

/// Returns whether None as the answer of `write` means that nothing was taken. It does for streams of the io module, and for
/// whatever passes on the answers of one: that has a descriptor that does not block. Other objects return None because
/// they have nothing to say.
fn may_block(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let raw = object.py().import("io")?.getattr("RawIOBase")?;
    if object.is_instance(&raw)? {
        return Ok(true);
    }
    let descriptor = object.call_method0("fileno").and_then(|number| number.extract());
    Ok(descriptor.is_ok_and(does_not_block))
}

fn does_not_block(descriptor: RawFd) -> bool {
    // SAFETY: asks for the flags of a descriptor, if it is one.
    let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFL) };
    flags >= 0 && flags & libc::O_NONBLOCK != 0
}

/// The descriptor of a plain file: of a `FileIO`, or of a buffer that lies exactly on one, flushed. None if anything between
/// the object and the descriptor could change the bytes, count them or take some of them.
fn descriptor_of(file: &Bound<'_, PyAny>) -> PyResult<Option<RawFd>> {
    let io = file.py().import("io")?;
    let is = |object: &Bound<'_, PyAny>, kind: &str| {
        Ok::<_, PyErr>(object.get_type().is(&io.getattr(kind)?))
    };
    let raw = if is(file, "FileIO")? {
        file.clone()
    } else if is(file, "BufferedWriter")? || is(file, "BufferedRandom")? {
        file.getattr("raw")?
    } else {
        return Ok(None);
    };
    if !is(&raw, "FileIO")? || has_own_methods(file)? || has_own_methods(&raw)? {
        return Ok(None);
    }
    // A closed file says so, before the snapshot ends.
    file.call_method0("flush")?;
    if !is_true(file, "writable")? {
        file.call_method1("write", (PyBytes::new(file.py(), b""),))?;
    }
    let descriptor: RawFd = raw.call_method0("fileno")?.extract()?;
    let is_in_step =
        !is_true(file, "seekable")? || file.call_method0("tell")?.eq(raw.call_method0("tell")?)?;
    Ok((is_in_step && !does_not_block(descriptor)).then_some(descriptor))
}

/// Returns whether a program has put something in the place of a method of this very object.
fn has_own_methods(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let own = object.getattr("__dict__")?.cast_into::<PyDict>()?;
    ["write", "flush", "fileno", "tell", "seekable", "writable"]
        .iter()
        .try_fold(false, |found, name| Ok(found || own.contains(name)?))
}

fn is_true(object: &Bound<'_, PyAny>, method: &str) -> PyResult<bool> {
    object.call_method0(method)?.is_truthy()
}

fn borrowed(descriptor: RawFd) -> ManuallyDrop<File> {
    // SAFETY: open, because its file object was asked for it and is referred to; never closed from here. A program that
    // closes it meanwhile gets EBADF, as for any file that it closes while it is written.
    ManuallyDrop::new(unsafe { File::from_raw_fd(descriptor) })
}
