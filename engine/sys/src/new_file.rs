//! Results as files that are complete, or unchanged.
//!
//! The file is made in the folder of its place, without a name if the file system supports this.
//! Otherwise its name is random, so nobody can prepare a link there, and two processes with equal
//! numbers in two containers have separate files. The folder is held by a descriptor all the time.
//! If another folder gets its path meanwhile, the file does not go there.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, PROC_SUPER_MAGIC, RenameFlags, Stat, Uid,
    XattrFlags, fchmod, fchown, fremovexattr, fsetxattr, fstat, fstatfs, fsync, getxattr, linkat,
    openat, readlinkat, renameat, renameat_with, statat, syncfs, unlinkat,
};
use rustix::io::Errno;

use crate::injection::{Call, pass};
use crate::input::path_of;

/// Readable and writable for all users except those that the mask excludes, because results should
/// be shown.
const MODE: Mode = Mode::from_raw_mode(0o666);

/// For this user only, until the file has the rights of the replaced file.
const PRIVATE: Mode = Mode::RUSR.union(Mode::WUSR);

/// The number of links that the kernel follows.
const LINKS: usize = 40;

/// The attribute that contains the access control list of a file.
const ACCESS_LIST: &str = "system.posix_acl_access";

/// A file beside its place. It takes this place when it is complete.
///
/// Until then the file has no name, so nothing is left if this process is killed. If the file
/// system does not support this, the file has a temporary name, which a drop removes.
///
/// The file gets the owner, the mode and the access control list of the replaced file, as far as
/// this process may set them. If it may not, fewer users may open the file, never more. If the
/// place is a symbolic link, the target of the link is replaced or made, and the link stays. Other
/// hard links of a replaced file keep the old bytes.
#[derive(Debug)]
pub struct NewFile {
    folder: OwnedFd,
    name: OsString,
    file: File,
    partial: Option<OsString>,
}

impl NewFile {
    /// Makes the empty file. A device, a pipe or a folder at its place is refused, because root
    /// would otherwise replace `/dev/null` for every program.
    ///
    /// # Errors
    /// An error if no file can be made in the folder, or if something other than a file has the
    /// name. A link is not followed if another user has put it into a folder in which everybody may
    /// make files, as with `fs.protected_symlinks`, or if it is a link of `/proc`.
    pub fn beside(place: impl AsRef<Path>) -> io::Result<Self> {
        let Place { folder, name, replaced } = Place::of(place.as_ref())?;
        let mode = if replaced.is_some() { PRIVATE } else { MODE };
        let (file, partial) = created(&folder, mode)?;
        let made = Self { folder, name, file, partial };
        // Before it has content, which others could read by a name.
        replaced.map_or(Ok(()), |replaced| replaced.protect(&made.file))?;
        Ok(made)
    }

    /// Makes a file, empty, that gets its place by [`put_into`](Self::put_into): its name may follow from its bytes.
    ///
    /// # Errors
    /// The folder accepts no file.
    pub fn within(folder: impl AsFd) -> io::Result<Self> {
        let folder = folder.as_fd().try_clone_to_owned()?;
        let (file, partial) = created(&folder, MODE)?;
        Ok(Self { folder, name: OsString::new(), file, partial })
    }

    /// Gives the file a name that is free, in any folder of its file system. It is on the disk before.
    ///
    /// # Errors
    /// The disk is full, something has the name, or the folder may not be changed.
    pub fn put_into(mut self, folder: impl AsFd, name: &OsStr) -> io::Result<()> {
        self.file.sync_all()?;
        match &self.partial {
            Some(partial) => {
                renameat_with(&self.folder, partial, folder, name, RenameFlags::NOREPLACE)?;
                self.partial = None;
            }
            None => link(&self.file, folder, name)?,
        }
        Ok(())
    }

    /// The file.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the file.
    pub fn file_mut(&mut self) -> &mut File {
        &mut self.file
    }

    /// Moves the file to its place. With `fsync`, the file is on the disk before, and its name when
    /// the call returns. Without `fsync`, both files may be lost if the machine stops soon.
    ///
    /// # Errors
    /// An error if the disk is full, or if the folder may not be changed. The former file is
    /// unchanged then.
    pub fn put(mut self, fsync: bool) -> io::Result<()> {
        // It may be another one by now, or have other rights.
        if let Some(Entry::File(replaced)) = entry(&self.folder, &self.name)? {
            replaced.protect(&self.file)?;
        }
        if fsync {
            self.file.sync_all()?;
        }
        self.take_place()?;
        if fsync { self.sync_name() } else { Ok(()) }
    }

    fn take_place(&mut self) -> io::Result<()> {
        if self.partial.is_none() {
            match link(&self.file, &self.folder, &self.name) {
                // A link replaces nothing.
                Err(Errno::EXIST) => {
                    let (partial, ()) =
                        unforeseen(|partial| link(&self.file, &self.folder, partial))?;
                    self.partial = Some(partial);
                }
                linked => return Ok(linked?),
            }
        }
        if let Some(partial) = &self.partial {
            renameat(&self.folder, partial, &self.folder, &self.name)?;
            self.partial = None;
        }
        Ok(())
    }

    fn sync_name(&self) -> io::Result<()> {
        match fsync(&self.folder) {
            // The folder may be changed and not read. All that its file system has is more than its names.
            Err(Errno::BADF) => Ok(syncfs(&self.file)?),
            synced => Ok(synced?),
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if let Some(partial) = &self.partial {
            let _ = unlinkat(&self.folder, partial, AtFlags::empty());
        }
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A file, and the name that it has until it gets its place, if it has one.
fn created(folder: &OwnedFd, mode: Mode) -> rustix::io::Result<(File, Option<OsString>)> {
    match unnamed(folder, mode) {
        Ok(file) => Ok((file, None)),
        // Whatever the reason: a folder that accepts no file says so again.
        Err(_) => named(folder, mode).map(|(file, partial)| (file, Some(partial))),
    }
}

/// A file without a name, if the file system has such files and this process can name one later.
fn unnamed(folder: &OwnedFd, mode: Mode) -> rustix::io::Result<File> {
    let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = openat(folder, c".", flags, mode)?;
    statat(CWD, path_of(&file), AtFlags::empty())?;
    Ok(file.into())
}

fn named(folder: &OwnedFd, mode: Mode) -> rustix::io::Result<(File, OsString)> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
    let (partial, file) = unforeseen(|partial| openat(folder, partial, flags, mode))?;
    Ok((file.into(), partial))
}

/// Makes an object with an unpredictable name. The length of the name does not depend on the place.
fn unforeseen<T>(
    make: impl Fn(&OsStr) -> rustix::io::Result<T>,
) -> rustix::io::Result<(OsString, T)> {
    loop {
        // The keys of the standard library's hashes are random numbers of the kernel's. A child that was forked from this
        // thread has the same ones.
        let mut number = RandomState::new().build_hasher();
        number.write_u32(std::process::id());
        let name = OsString::from(format!(".hugekit-{:016x}.partial", number.finish()));
        match make(&name) {
            Err(Errno::EXIST) => {}
            made => return Ok((name, made?)),
        }
    }
}

fn link(file: &File, folder: impl AsFd, name: &OsStr) -> rustix::io::Result<()> {
    pass(Call::Linkat)?;
    linkat(CWD, path_of(file), folder, name, AtFlags::SYMLINK_FOLLOW)
}

/// The folder and the name at the end of a path, after all links, and the file with that name.
struct Place {
    folder: OwnedFd,
    name: OsString,
    replaced: Option<Replaced>,
}

impl Place {
    fn of(path: &Path) -> io::Result<Self> {
        let mut folder = None::<OwnedFd>;
        let mut path = path.to_owned();
        for _ in 0..=LINKS {
            let name = name_of(&path)?.to_owned();
            let at = folder.as_ref().map_or(CWD, AsFd::as_fd);
            let opened = open_folder(at, folder_of(&path))?;
            match entry(&opened, &name)? {
                None => return Ok(Self { folder: opened, name, replaced: None }),
                Some(Entry::File(replaced)) => {
                    return Ok(Self { folder: opened, name, replaced: Some(replaced) });
                }
                Some(Entry::Link(link, stat)) => {
                    check_link(&opened, &stat)?;
                    path =
                        OsString::from_vec(readlinkat(&link, c"", Vec::new())?.into_bytes()).into();
                }
            }
            folder = Some(opened);
        }
        Err(Errno::LOOP.into())
    }
}

/// Returns the last name of a path, which can be a file's.
fn name_of(path: &Path) -> io::Result<&OsStr> {
    let name = path.as_os_str().as_bytes().rsplit(|&byte| byte == b'/').next().unwrap_or_default();
    match name {
        _ if path.as_os_str().is_empty() => Err(Errno::NOENT.into()),
        b"" | b"." | b".." => Err(Errno::ISDIR.into()),
        name => Ok(OsStr::from_bytes(name)),
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Opens a folder. If the folder may be changed but not read, the descriptor only names it.
fn open_folder(at: impl AsFd, path: &Path) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat(&at, path, flags | OFlags::RDONLY, Mode::empty()) {
        Err(Errno::ACCESS) => openat(at, path, flags | OFlags::PATH, Mode::empty()),
        opened => opened,
    }
}

/// The object that has the name of a result.
enum Entry {
    File(Replaced),
    Link(OwnedFd, Stat),
}

/// Returns the object with this name. Only files and links are opened, because a pipe would wait
/// and a device may do anything.
fn entry(folder: &OwnedFd, name: &OsStr) -> io::Result<Option<Entry>> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let found = match openat(folder, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        found => found?,
    };
    let stat = fstat(&found)?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(Some(Entry::File(Replaced { file: found, stat }))),
        FileType::Symlink => Ok(Some(Entry::Link(found, stat))),
        FileType::Directory => Err(Errno::ISDIR.into()),
        FileType::Fifo => Err(other_than_file("a pipe")),
        FileType::Socket => Err(other_than_file("a socket")),
        _ => Err(other_than_file("a device")),
    }
}

fn other_than_file(is: &str) -> io::Error {
    let why = "a result is written beside its place and then gets its name, so that it is whole";
    io::Error::other(format!("something other than a file has this name: {is}; {why}"))
}

/// Checks a link as the kernel does with `fs.protected_symlinks`. The checked link is the one that
/// is read.
fn check_link(folder: &OwnedFd, link: &Stat) -> io::Result<()> {
    // Its text is for people: the kernel follows it to a file that may have no name.
    if fstatfs(folder)?.f_type == PROC_SUPER_MAGIC {
        return Err(other_than_file("an open file of a process"));
    }
    let about = fstat(folder)?;
    let is_open_to_all =
        about.st_mode & (libc::S_ISVTX | libc::S_IWOTH) == libc::S_ISVTX | libc::S_IWOTH;
    let is_trusted =
        link.st_uid == rustix::process::geteuid().as_raw() || link.st_uid == about.st_uid;
    if is_open_to_all && !is_trusted {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!(
                "it is a link that user {} has put into a folder of all users, and is not followed",
                link.st_uid
            ),
        ));
    }
    Ok(())
}

/// The file that has the name before.
struct Replaced {
    file: OwnedFd,
    stat: Stat,
}

impl Replaced {
    /// Gives a file the rights of this file, or fewer.
    fn protect(&self, file: &File) -> io::Result<()> {
        let own = fstat(file)?;
        let Stat { st_uid: user, st_gid: group, st_mode: mode, .. } = self.stat;
        let mut mode = mode & 0o777;
        if (own.st_uid, own.st_gid) != (user, group) {
            let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
            let given = fchown(file, Some(user), Some(group));
            // An owner that is not root may give a file to groups of its own.
            if given.is_err() && fchown(file, None, Some(group)).is_err() {
                // Members of another group are those of this one's others.
                mode &= 0o707 | (mode & 0o007) << 3;
            }
        }
        if !self.share_access_list(file) {
            // The bits of the group are then the most that the list allows.
            mode &= 0o707;
        }
        Ok(fchmod(file, Mode::from_raw_mode(mode))?)
    }

    /// Returns true if the file has the same list as this file, or none.
    fn share_access_list(&self, file: &File) -> bool {
        let mut list = vec![0; 64 << 10];
        match getxattr(path_of(&self.file), ACCESS_LIST, &mut list) {
            Ok(len) => fsetxattr(file, ACCESS_LIST, &list[..len], XattrFlags::empty()).is_ok(),
            // A file in a folder with a default list has one from the beginning.
            Err(Errno::NODATA) => matches!(
                fremovexattr(file, ACCESS_LIST),
                Ok(()) | Err(Errno::NODATA | Errno::NOTSUP)
            ),
            Err(Errno::NOTSUP) => true,
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
    use std::path::PathBuf;

    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
        names.map(|name| name.into_string().unwrap()).collect()
    }

    fn write_twice(make: impl Fn(PathBuf) -> NewFile, names_meanwhile: usize) {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("result");
        for text in ["first", "second"] {
            let before = names(folder.path()).len();
            let mut file = make(place.clone());
            file.write_all(text.as_bytes()).unwrap();
            assert_eq!(names(folder.path()).len(), before + names_meanwhile);
            file.put(true).unwrap();
            assert_eq!(names(folder.path()), ["result"]);
            assert_eq!(fs::read_to_string(&place).unwrap(), text);
        }
        let mut given_up = make(place.clone());
        given_up.write_all(b"third").unwrap();
        drop(given_up);
        assert_eq!(names(folder.path()), ["result"]);
        assert_eq!(fs::read_to_string(&place).unwrap(), "second");
    }

    #[test]
    fn file_has_no_name_until_it_is_complete() {
        write_twice(|place| NewFile::beside(place).unwrap(), 0);
    }

    #[test]
    fn file_where_all_files_have_names_has_one_of_its_own() {
        let make = |place: PathBuf| {
            let Place { folder, name, replaced } = Place::of(&place).unwrap();
            let (file, partial) = named(&folder, MODE).unwrap();
            replaced.map_or(Ok(()), |replaced| replaced.protect(&file)).unwrap();
            NewFile { folder, name, file, partial: Some(partial) }
        };
        write_twice(make, 1);
    }

    #[test]
    fn device_and_folder_are_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let link = folder.path().join("link");
        symlink("pipe", &link).unwrap();
        for (place, is) in [
            (Path::new("/dev/null"), "a device"),
            (Path::new("/dev/stdout"), "an open file of a process"),
            (&pipe, "a pipe"),
            (&link, "a pipe"),
        ] {
            let refused = NewFile::beside(place).unwrap_err();
            assert!(
                refused.to_string().contains(&format!("other than a file has this name: {is}"))
            );
        }
        for place in [
            folder.path(),
            Path::new("."),
            Path::new(".."),
            Path::new("/"),
            &folder.path().join("new/"),
        ] {
            let refused = NewFile::beside(place).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::IsADirectory, "{}", place.display());
        }
        assert_eq!(names(folder.path()).len(), 2);
    }

    fn write(place: &Path, text: &str) -> io::Result<()> {
        let mut file = NewFile::beside(place)?;
        file.write_all(text.as_bytes())?;
        file.put(false)
    }

    #[test]
    fn file_may_get_a_name_that_is_free_in_another_folder() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("inner");
        fs::create_dir(&inner).unwrap();
        let [above, below] = [folder.path(), &inner].map(|path| open_folder(CWD, path).unwrap());
        let by_name = |mode| {
            let (file, partial) = named(&above, mode).unwrap();
            let folder = above.try_clone().unwrap();
            NewFile { folder, name: OsString::new(), file, partial: Some(partial) }
        };
        for (name, mut new) in
            [("unnamed", NewFile::within(&above).unwrap()), ("named", by_name(MODE))]
        {
            new.write_all(b"text").unwrap();
            new.put_into(&below, name.as_ref()).unwrap();
            assert_eq!(fs::read(inner.join(name)).unwrap(), b"text");
            for other in [NewFile::within(&above).unwrap(), by_name(MODE)] {
                let refused = other.put_into(&below, name.as_ref()).unwrap_err();
                assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
            }
            assert_eq!(fs::read(inner.join(name)).unwrap(), b"text");
        }
        assert_eq!(names(folder.path()), ["inner"]);
    }

    #[test]
    fn link_stays_and_the_file_that_it_names_is_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("inner")).unwrap();
        symlink("inner/second", at("first")).unwrap();
        symlink(at("inner/file"), at("inner/second")).unwrap();
        // The second time there is a file.
        for text in ["dangling", "there"] {
            write(&at("first"), text).unwrap();
            assert_eq!(fs::read_to_string(at("inner/file")).unwrap(), text);
            assert!(at("first").is_symlink() && at("inner/second").is_symlink());
        }
        symlink("loop", at("loop")).unwrap();
        assert_eq!(write(&at("loop"), "").unwrap_err().raw_os_error(), Some(libc::ELOOP));
        symlink("absent/file", at("nowhere")).unwrap();
        assert_eq!(write(&at("nowhere"), "").unwrap_err().kind(), io::ErrorKind::NotFound);
        symlink("inner", at("folder")).unwrap();
        assert_eq!(write(&at("folder"), "").unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert_eq!(names(&at("inner")).len(), 2);
        assert_eq!(names(folder.path()).len(), 5);
    }

    #[test]
    fn file_has_the_rights_of_the_one_that_it_replaces() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("file");
        for mode in [0o600, 0o640, 0o444, 0o666] {
            fs::write(&place, "old").unwrap();
            fs::set_permissions(&place, fs::Permissions::from_mode(mode)).unwrap();
            let new = NewFile::beside(&place).unwrap();
            assert_eq!(new.file.metadata().unwrap().mode() & 0o7777, mode);
            new.put(false).unwrap();
            assert_eq!(place.metadata().unwrap().mode() & 0o7777, mode);
            fs::remove_file(&place).unwrap();
        }
        // Rights that are taken away meanwhile stay away.
        fs::write(&place, "old").unwrap();
        let new = NewFile::beside(&place).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o400)).unwrap();
        new.put(false).unwrap();
        assert_eq!(place.metadata().unwrap().mode() & 0o7777, 0o400);
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(&place, Some(12_345), Some(23_456)).unwrap();
            write(&place, "new").unwrap();
            let owner = place.metadata().unwrap();
            assert_eq!((owner.uid(), owner.gid()), (12_345, 23_456));
        }
    }

    /// Returns a list with the rights of user 1, of the owning group, and a mask, in the form of
    /// `linux/posix_acl_xattr.h`.
    fn access_list(of_user: u16, of_group: u16, mask: u16) -> Vec<u8> {
        let none = u32::MAX;
        let entries =
            [(1, 6, none), (2, of_user, 1), (4, of_group, none), (16, mask, none), (32, 0, none)];
        let entry = |(tag, rights, id): (u16, u16, u32)| {
            [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        [2_u32.to_le_bytes().to_vec(), entries.into_iter().flat_map(entry).collect()].concat()
    }

    #[test]
    fn access_control_list_goes_over_and_that_of_the_folder_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("file");
        let list_of = |place: &Path| {
            let mut list = [0; 100];
            getxattr(place, ACCESS_LIST, &mut list).map(|len| list[..len].to_vec())
        };
        let old = File::create(&place).unwrap();
        let list = access_list(4, 0, 4);
        match fsetxattr(&old, ACCESS_LIST, &list, XattrFlags::empty()) {
            Err(Errno::NOTSUP) => return,
            set => set.unwrap(),
        }
        write(&place, "new").unwrap();
        assert_eq!(list_of(&place).unwrap(), list);
        // Without the list, the group would have the rights of the mask.
        assert_eq!(place.metadata().unwrap().mode() & 0o777, 0o640);
        let of_folder = File::open(folder.path()).unwrap();
        let default = "system.posix_acl_default";
        fsetxattr(of_folder, default, &access_list(6, 6, 6), XattrFlags::empty()).unwrap();
        fremovexattr(File::open(&place).unwrap(), ACCESS_LIST).unwrap();
        fs::set_permissions(&place, fs::Permissions::from_mode(0o640)).unwrap();
        write(&place, "newer").unwrap();
        assert_eq!(list_of(&place), Err(Errno::NODATA));
        assert_eq!(place.metadata().unwrap().mode() & 0o777, 0o640);
    }

    #[test]
    fn name_may_be_as_long_as_the_file_system_allows() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("x".repeat(255));
        for text in ["new", "replaced"] {
            write(&place, text).unwrap();
            assert_eq!(fs::read_to_string(&place).unwrap(), text);
        }
        let longer = write(&folder.path().join("x".repeat(256)), "").unwrap_err();
        assert_eq!(longer.raw_os_error(), Some(libc::ENAMETOOLONG));
    }

    #[test]
    fn folder_stays_the_same_if_another_gets_its_path() {
        let above = tempfile::tempdir().unwrap();
        let (path, moved) = (above.path().join("folder"), above.path().join("moved"));
        fs::create_dir(&path).unwrap();
        let new = NewFile::beside(path.join("file")).unwrap();
        fs::rename(&path, &moved).unwrap();
        fs::create_dir(&path).unwrap();
        new.put(true).unwrap();
        assert_eq!((names(&path).len(), names(&moved)), (0, vec!["file".to_owned()]));
    }

    #[test]
    fn something_else_that_gets_the_name_meanwhile_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("file");
        let new = NewFile::beside(&place).unwrap();
        fs::create_dir(&place).unwrap();
        assert_eq!(new.put(false).unwrap_err().kind(), io::ErrorKind::IsADirectory);
        assert_eq!(names(folder.path()), ["file"]);
    }

    #[test]
    fn link_of_another_user_in_a_folder_of_all_is_not_followed() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let shared = folder.path().join("shared");
        fs::create_dir(&shared).unwrap();
        fs::set_permissions(&shared, fs::Permissions::from_mode(0o1777)).unwrap();
        let (link, victim) = (shared.join("result"), folder.path().join("victim"));
        fs::write(&victim, "precious").unwrap();
        symlink(&victim, &link).unwrap();
        write(&link, "own link").unwrap();
        std::os::unix::fs::lchown(&link, Some(12_345), None).unwrap();
        let refused = write(&link, "link of another").unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(fs::read_to_string(&victim).unwrap(), "own link");
    }

    #[test]
    fn names_until_then_cannot_be_foreseen() {
        let folder = tempfile::tempdir().unwrap();
        let folder = open_folder(CWD, folder.path()).unwrap();
        let mut made: Vec<_> = (0..100).map(|_| named(&folder, MODE).unwrap().1).collect();
        made.sort();
        made.dedup();
        assert_eq!(made.len(), 100);
        // One that is taken, by a link too, is left alone.
        let tries = std::cell::Cell::new(0);
        let (_, ()) = unforeseen(|_| {
            tries.set(tries.get() + 1);
            if tries.get() < 3 { Err(Errno::EXIST) } else { Ok(()) }
        })
        .unwrap();
        assert_eq!(tries.get(), 3);
    }
}
