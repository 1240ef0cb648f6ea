//! Arrays whose elements do not lie side by side: they are copied at once, in C order.
#![allow(unsafe_code)]

use pyo3::prelude::*;

use crate::buffer::Buffer;
use crate::copied::CopiedBytes;

/// The memory of an array.
pub(crate) enum ArrayMemory {
    Whole(Buffer),
    Strided(Strided),
}

impl ArrayMemory {
    /// Returns the memory of an object that `kinds.rs` has accepted.
    pub(crate) fn of(memory: &Bound<'_, PyAny>) -> PyResult<Self> {
        if has_gaps(memory)? {
            return Ok(Self::Strided(Strided::of(memory)?));
        }
        Ok(Self::Whole(Buffer::of_memory(memory, false)?))
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Whole(buffer) => buffer.len(),
            Self::Strided(strided) => strided.len(),
        }
    }

    /// Returns the memory, unless it has gaps.
    pub(crate) fn whole(&self) -> Option<&Buffer> {
        match self {
            Self::Whole(buffer) => Some(buffer),
            Self::Strided(_) => None,
        }
    }
}

/// The reason why an array with gaps is copied.
pub(crate) const GAPS: &str = "its elements do not lie side by side";

fn has_gaps(memory: &Bound<'_, PyAny>) -> PyResult<bool> {
    let Some(flags) = memory.getattr_opt("flags")? else { return Ok(false) };
    match flags.getattr_opt("forc")? {
        Some(is_contiguous) => Ok(!is_contiguous.is_truthy()?),
        None => Ok(false),
    }
}

/// An array with gaps between its elements, or with elements in another order.
pub(crate) struct Strided {
    /// Keeps the memory alive.
    _array: Py<PyAny>,
    start: *const u8,
    item: usize,
    /// The extents and the distances in bytes, from the slowest axis to the fastest one.
    axes: Vec<(usize, isize)>,
}

// SAFETY: the fields are only read; dropping the array attaches to the interpreter, or waits for it.
unsafe impl Send for Strided {}
// SAFETY: as above.
unsafe impl Sync for Strided {}

impl Strided {
    fn of(array: &Bound<'_, PyAny>) -> PyResult<Self> {
        // numpy refuses arrays of Python objects here as everywhere.
        let dtype = array.getattr("dtype")?;
        if dtype.getattr("hasobject")?.is_truthy()? {
            return Err(crate::buffer::has_references(&dtype.to_string()));
        }
        let interface = array.getattr("__array_interface__")?;
        let (start, _): (usize, bool) = interface.get_item("data")?.extract()?;
        let shape: Vec<usize> = array.getattr("shape")?.extract()?;
        let strides: Vec<isize> = array.getattr("strides")?.extract()?;
        Ok(Self {
            _array: array.clone().unbind(),
            start: std::ptr::with_exposed_provenance(start),
            item: array.getattr("itemsize")?.extract()?,
            axes: shape.into_iter().zip(strides).collect(),
        })
    }

    /// Returns the number of bytes of the elements.
    pub(crate) fn len(&self) -> usize {
        self.axes.iter().map(|(extent, _)| extent).product::<usize>() * self.item
    }

    /// Copies the elements. The caller holds the GIL, so that no Python code writes meanwhile.
    pub(crate) fn copy(&self) -> PyResult<CopiedBytes> {
        let len = self.len();
        let write = |mut to: *mut u8| {
            let runs = self.runs();
            let (outer, (count, step, size)) = (&runs.outer, runs.inner);
            let mut index = vec![0; outer.len()];
            let mut is_left = len > 0;
            while is_left {
                let offset: isize =
                    index.iter().zip(outer).map(|(&at, &(_, stride))| at as isize * stride).sum();
                // SAFETY: numpy's extents and strides stay within the array's memory, which is alive; the elements of
                // all runs together have `len` bytes, for which there is room.
                unsafe {
                    copy_run(self.start.offset(offset), step, to, count, size);
                    to = to.add(count * size);
                }
                is_left = advance(&mut index, outer);
            }
            Ok(())
        };
        // SAFETY: each element is copied once, in order.
        unsafe { CopiedBytes::filled(len, write) }
    }

    /// Returns the axes. Axes that lie behind each other in memory are joined.
    fn runs(&self) -> Runs {
        let mut axes: Vec<(usize, isize)> = Vec::new();
        for &(extent, stride) in self.axes.iter().filter(|(extent, _)| *extent != 1) {
            match axes.last_mut() {
                Some((before, distance)) if *distance == stride * extent as isize => {
                    (*before, *distance) = (*before * extent, stride);
                }
                _ => axes.push((extent, stride)),
            }
        }
        let (count, step) = axes.pop().unwrap_or((1, self.item as isize));
        if step == self.item as isize {
            return Runs { outer: axes, inner: (1, 0, count * self.item) };
        }
        Runs { outer: axes, inner: (count, step, self.item) }
    }
}

struct Runs {
    outer: Vec<(usize, isize)>,
    /// The number of pieces, their distance, and the bytes of one piece.
    inner: (usize, isize, usize),
}

/// Advances to the next element. Returns false after the last one.
fn advance(index: &mut [usize], extents: &[(usize, isize)]) -> bool {
    for (at, &(extent, _)) in index.iter_mut().zip(extents).rev() {
        *at += 1;
        if *at < extent {
            return true;
        }
        *at = 0;
    }
    false
}

/// Copies pieces with a distance of `step` bytes to contiguous memory.
///
/// # Safety
/// All pieces can be read, and as many bytes can be written from `to` on.
unsafe fn copy_run(from: *const u8, step: isize, to: *mut u8, count: usize, size: usize) {
    // SAFETY: the contract of this function, for each of these.
    unsafe {
        match size {
            _ if count == 1 => from.copy_to_nonoverlapping(to, size),
            1 => copy_each::<u8>(from, step, to, count),
            2 => copy_each::<u16>(from, step, to, count),
            4 => copy_each::<u32>(from, step, to, count),
            8 => copy_each::<u64>(from, step, to, count),
            _ => {
                for piece in 0..count {
                    let from = from.offset(piece as isize * step);
                    from.copy_to_nonoverlapping(to.add(piece * size), size);
                }
            }
        }
    }
}

/// Copies elements with a distance of `step` bytes to contiguous memory.
///
/// # Safety
/// The conditions of [`copy_run`], for pieces of the size of `T`.
unsafe fn copy_each<T: Copy>(from: *const u8, step: isize, to: *mut u8, count: usize) {
    for piece in 0..count {
        // SAFETY: the contract of this function; neither needs to be aligned.
        unsafe {
            let element = from.offset(piece as isize * step).cast::<T>().read_unaligned();
            to.cast::<T>().add(piece).write_unaligned(element);
        }
    }
}
