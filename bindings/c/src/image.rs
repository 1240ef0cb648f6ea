//! Images: sealed memory that many processes map privately.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;
use std::slice;

use engine::Cancel;
use engine::image::{Image, ImageBuilder, ImageError, PrivateMapping};
use hugekit_delta::StateId;

use crate::delta::hugekit_state;
use crate::status::{self, Answer, Refusal, answer, give, handle, hugekit_status};
use crate::versioned::{self, CallerOptions, OutParameter, Versioned};
use crate::work::{as_progress, hugekit_cancel, hugekit_progress, threads, told};

/// Sealed memory that no process can change, and that many processes map privately. Made by
/// `hugekit_image_load` and `hugekit_image_get`.
pub struct hugekit_image(Image);

/// An image as the private memory of this process. Made by `hugekit_image_map`.
pub struct hugekit_mapping(PrivateMapping);

/// Options of a load. Zero means the default everywhere: set `size` and the fields that you need.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hugekit_image_options {
    /// `sizeof(hugekit_image_options)`.
    pub size: usize,
    /// The paths of deltas of the memory file, the oldest first, or NULL.
    pub deltas: *const *const c_char,
    /// The number of these paths.
    pub delta_count: usize,
    /// The state of a raw memory file. A first delta that begins with another state is refused. All
    /// zeroes: the first delta may begin with any state of the same length.
    pub state: hugekit_state,
    /// The name of the image in `/proc/self/maps`: `/memfd:hugekit:NAME`. NULL: `"image"`.
    pub name: *const c_char,
    /// Threads that read a raw memory file. 0: as many as are useful. Deltas are applied by one
    /// thread.
    pub threads: usize,
    /// Called with the bytes of the sources that were read, and the bytes of all sources. NULL: no
    /// callback.
    pub progress: hugekit_progress,
    /// Passed to `progress` unchanged.
    pub context: *mut c_void,
    /// The flag that stops the load early, or NULL.
    pub cancel: *const hugekit_cancel,
    /// Zero. Anything else is `HUGEKIT_STATUS_UNSUPPORTED`.
    pub reserved: u32,
}

// SAFETY: integers and pointers, the first of which is the size; the function is null or what the caller put there.
unsafe impl Versioned for hugekit_image_options {
    const NAME: &str = "hugekit_image_options";
    const FIRST: usize = offset_of!(Self, reserved) + size_of::<u32>();
}

impl CallerOptions for hugekit_image_options {
    fn reserved(&self) -> u32 {
        self.reserved
    }
}

/// The size of an image, in bytes.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct hugekit_image_facts {
    /// `sizeof(hugekit_image_facts)`, set by the caller.
    pub size: usize,
    /// The length of the image.
    pub bytes: u64,
    /// Bytes that are populated. The other bytes are zero.
    pub present: u64,
    /// Bytes that were on huge pages when the image was loaded.
    pub huge: u64,
}

// SAFETY: integers, the first of which is the size.
unsafe impl Versioned for hugekit_image_facts {
    const NAME: &str = "hugekit_image_facts";
    const FIRST: usize = offset_of!(Self, huge) + size_of::<u64>();
}

/// Loads an image from a file, and stores its handle in `*image`. `path` is a full delta, or a raw
/// memory file as Firecracker, Cloud Hypervisor and QEMU write it. `options` may be NULL. Holes and
/// blocks of zeroes need no memory. Free the image with `hugekit_image_free`.
///
/// Fails with:
/// - `HUGEKIT_STATUS_INVALID` for a file that is not regular or is empty, and for a delta that is
///   damaged or does not follow on the previous source.
/// - `HUGEKIT_STATUS_CONFLICT` for a file that was changed during the load.
/// - `HUGEKIT_STATUS_NO_MEMORY` if memory is short.
/// - `HUGEKIT_STATUS_SYSTEM` or `HUGEKIT_STATUS_NOT_PERMITTED` if a file cannot be read.
///
/// The error contains the name of the file. After an error, the loaded memory is freed.
///
/// # Safety
/// `path` is NULL or ends with a zero byte. `image` can be written. `options` is NULL or such a
/// structure. Its texts are NULL or end with a zero byte, and its list is as long as `delta_count`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_image_load(
    path: *const c_char,
    options: *const hugekit_image_options,
    image: *mut *mut hugekit_image,
) -> hugekit_status {
    // SAFETY: `path` is NULL or a text; `options` is NULL or such a structure, whose texts and list are as its fields
    // say; `image` is NULL or can be written, and `give` refuses NULL.
    answer(unsafe { give(image, "image", || load(path, options).map(hugekit_image)) })
}

/// # Safety
/// `path` is NULL or ends with a zero byte. `options` is NULL or such a structure, as
/// [`hugekit_image_load`] asks.
unsafe fn load(path: *const c_char, options: *const hugekit_image_options) -> Answer<Image> {
    // SAFETY: the conditions of this function: texts end with a zero byte, the list is as long as it says, and the flag
    // outlives the call.
    let (options, first, deltas, name, cancel) = unsafe {
        let options = versioned::read(options)?;
        let deltas = match options.delta_count {
            0 => &[],
            _ if options.deltas.is_null() => return Err(Refusal::invalid("deltas is NULL")),
            count => slice::from_raw_parts(options.deltas, count),
        };
        let deltas = deltas.iter().map(|&delta| path_of("a delta", delta));
        let deltas = deltas.collect::<Answer<Vec<_>>>()?;
        let name = if options.name.is_null() { c"image" } else { CStr::from_ptr(options.name) };
        let cancel = options.cancel.as_ref().map(|hugekit_cancel(cancel)| cancel);
        (options, path_of("path", path)?, deltas, name, cancel)
    };
    let paths: Vec<&Path> = [first].into_iter().chain(deltas).collect();
    build(&options, &paths, &name.to_string_lossy(), cancel)
}

fn build(
    options: &hugekit_image_options,
    paths: &[&Path],
    name: &str,
    cancel: Option<&Cancel>,
) -> Answer<Image> {
    let progress = told(options.progress, options.context);
    let mut builder = Image::builder(name).threads(threads(options.threads));
    for path in paths {
        let opened = ::hugekit_image::open(path);
        builder =
            builder.source(opened.map_err(|error| Refusal::from(error).about(path.display()))?);
    }
    let state = StateId::from_bytes(options.state.number).ok();
    builder = state.into_iter().fold(builder, ImageBuilder::state);
    builder = as_progress(&progress).into_iter().fold(builder, ImageBuilder::progress);
    builder = cancel.into_iter().fold(builder, ImageBuilder::cancel);
    builder.load().map_err(|error| refusal(error, paths))
}

/// With the path of the file that it is about.
fn refusal(error: ImageError, paths: &[&Path]) -> Refusal {
    let path = error.source_number().and_then(|nth| paths.get(nth));
    let refusal = Refusal::from(error);
    match path {
        Some(path) => refusal.about(path.display()),
        None => refusal,
    }
}

/// # Safety
/// NULL, or a text that ends with a zero byte and that outlives the returned path.
pub(crate) unsafe fn path_of<'a>(name: &str, text: *const c_char) -> Answer<&'a Path> {
    if text.is_null() {
        return Err(Refusal::invalid(format_args!("{name} is NULL")));
    }
    // SAFETY: not NULL, so it ends with a zero byte and outlives what is returned.
    let text = unsafe { CStr::from_ptr(text) };
    Ok(Path::new(OsStr::from_bytes(text.to_bytes())))
}

/// Gets an image that a broker holds, and stores its handle in `*image`. `socket` is the path of
/// the socket of a `hugekit broker`, which must run as root or as this process's user. `name` is
/// the name of the image. Free the image with `hugekit_image_free`.
///
/// Fails with `HUGEKIT_STATUS_INVALID` if the broker has no image of this name, and with
/// `HUGEKIT_STATUS_SYSTEM` if no broker listens at the socket.
///
/// # Safety
/// `socket` and `name` are NULL or end with a zero byte. `image` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_image_get(
    socket: *const c_char,
    name: *const c_char,
    image: *mut *mut hugekit_image,
) -> hugekit_status {
    // SAFETY: `socket` and `name` are NULL, which is refused, or texts; `image` is NULL or can be written, and `give`
    // refuses NULL.
    answer(unsafe {
        give(image, "image", || {
            let (socket, name) = (path_of("socket", socket)?, path_of("name", name)?);
            Ok(hugekit_image(Image::of_broker(socket, &name.to_string_lossy())?))
        })
    })
}

/// Fills `facts` with the size of the image.
///
/// # Safety
/// `image` is NULL or an image. `facts` can be written, and its size is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_image_query(
    image: *const hugekit_image,
    facts: *mut hugekit_image_facts,
) -> hugekit_status {
    // SAFETY: `image` is NULL or a handle that is not freed meanwhile; `facts` is NULL, which is refused, or can be
    // written for the size that it states.
    answer((|| unsafe {
        let place = OutParameter::needed(facts)?;
        let hugekit_image(image) = handle(image, "image")?;
        let (bytes, present, huge) = (image.bytes() as u64, image.present()?, image.huge_bytes());
        place.fill(&hugekit_image_facts { size: 0, bytes, present, huge });
        Ok(())
    })())
}

/// Returns the descriptor of the image's file, opened for reading. This is for a program that maps
/// the image itself: a child that inherits the descriptor opens `/proc/self/fd/N`. The descriptor
/// belongs to the image and is closed on `exec`: duplicate it, or clear `FD_CLOEXEC` in the child.
/// -1 for NULL.
///
/// # Safety
/// `image` is NULL or an image.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_image_file(image: *const hugekit_image) -> c_int {
    // SAFETY: `image` is NULL or a handle that is not freed meanwhile.
    unsafe { image.as_ref() }.map_or(-1, |image| image.0.as_fd().as_raw_fd())
}

/// Maps the image privately at a multiple of 2 MiB, and stores the mapping's handle in `*mapping`.
/// The program may write to the memory; no other process sees its writes. Mapping and image may be
/// freed in any order. Children of `fork(2)` inherit the memory.
///
/// The first read of each 2 MiB on a huge page costs a page fault. The first write to a base page
/// copies the page, and the 2 MiB around it are then mapped by base pages. If memory is short at
/// this moment, the kernel's OOM killer ends a process.
///
/// Fails with `HUGEKIT_STATUS_SYSTEM` if the process has no addresses or mappings left.
///
/// # Safety
/// `image` is NULL or an image. `mapping` can be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_image_map(
    image: *const hugekit_image,
    mapping: *mut *mut hugekit_mapping,
) -> hugekit_status {
    // SAFETY: `image` is NULL or a handle that is not freed meanwhile; `mapping` is NULL or can be written, and `give`
    // refuses NULL.
    answer(unsafe {
        give(mapping, "mapping", || Ok(hugekit_mapping(handle(image, "image")?.0.map()?)))
    })
}

/// Frees the image. Its memory returns to the kernel when no process has a descriptor or a mapping
/// of it. Does nothing for NULL.
///
/// # Safety
/// `image` is NULL, or an image that no thread uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_image_free(image: *mut hugekit_image) {
    // SAFETY: `image` is NULL or came from `give`, and no thread uses it any more.
    drop(unsafe { status::take_handle(image) });
}

/// Returns the address of the first byte, a multiple of 2 MiB. NULL for NULL.
///
/// # Safety
/// `mapping` is NULL or a mapping.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_mapping_address(mapping: *const hugekit_mapping) -> *mut c_void {
    // SAFETY: `mapping` is NULL or a handle that is not freed meanwhile.
    unsafe { mapping.as_ref() }.map_or(ptr::null_mut(), |mapping| mapping.0.as_raw().cast())
}

/// Returns the length of the image in bytes. 0 for NULL.
///
/// # Safety
/// `mapping` is NULL or a mapping.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_mapping_len(mapping: *const hugekit_mapping) -> usize {
    // SAFETY: `mapping` is NULL or a handle that is not freed meanwhile.
    unsafe { mapping.as_ref() }.map_or(0, |mapping| mapping.0.as_raw().len())
}

/// Unmaps the memory and frees the mapping. Does nothing for NULL.
///
/// # Safety
/// `mapping` is NULL, or a mapping that no thread uses any more, neither by its handle nor by
/// addresses in it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hugekit_mapping_free(mapping: *mut hugekit_mapping) {
    // SAFETY: `mapping` is NULL or came from `hugekit_image_map`, and no thread uses the handle or an address in it any
    // more.
    drop(unsafe { status::take_handle(mapping) });
}
