//! The destination of a snapshot's bytes: a file object's `write`, or its descriptor if that has
//! the same effect.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::fd::{FromRawFd, RawFd};

use pyo3::exceptions::{PyBlockingIOError, PyOSError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyDict};

/// The lowest number of bytes of one call of `write`, if there are as many bytes.
const LEAST: usize = 4 << 10;

/// A file object. Bytes are passed to its `write`, except for a plain file. A descriptor below
/// another object, which may encrypt, compress or count, is not used.
pub(crate) struct Destination {
    object: Py<PyAny>,
    descriptor: Option<RawFd>,
    written: usize,
    /// True if `write` has returned a number before, so a later None does not mean that all bytes
    /// were accepted.
    has_counted: bool,
    /// The highest number of bytes of one call. An object that accepts only a part of the bytes
    /// gets fewer bytes in the next call, so the rest is not copied repeatedly.
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

    /// Returns the result of writing: an exception of the object, if it raised one.
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

    /// Returns the error of an object that accepts no bytes now.
    fn would_block(&self) -> PyErr {
        let text = format!(
            "the file would block after {} bytes, and hugekit does not wait for it: make it blocking, or write what \
             to_numpy() returns",
            self.written
        );
        PyBlockingIOError::new_err((libc::EAGAIN, text, self.written))
    }

    /// Returns the same exception, with the bytes of all calls.
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

/// Returns the number of bytes that an object reports as accepted, of `len`.
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

/// Returns true if None as the result of `write` means that no byte was accepted. This holds for
/// streams of the io module whose descriptor does not block, and for objects that return the
/// results of such a stream. Other objects return None without a meaning.
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

/// Returns the descriptor of a plain file: of a `FileIO`, or of a flushed buffer directly above a
/// `FileIO`. Returns `None` if anything between the object and the descriptor could change the
/// bytes, count them or take some of them.
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

/// Returns true if a program has replaced a method of this object.
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
