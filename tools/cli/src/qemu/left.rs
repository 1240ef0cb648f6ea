//! Memory of a guest that stays as QEMU was asked for, and how a lease could replace it.

use std::ffi::OsString;
use std::fmt;

use super::memory;

/// Options that say how QEMU makes memory without an object.
const WITHOUT_OBJECT: [&str; 2] = ["mem-path", "mem-prealloc"];

/// Memory that no lease replaces.
#[derive(Debug, PartialEq)]
pub(super) struct Left {
    /// The object, or the option.
    pub(super) name: String,
    pub(super) reason: Reason,
}

/// The reason why no lease replaces an object of memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Reason {
    /// Neither `-machine` nor `-numa` names it.
    Unnamed,
    /// It was asked for as private memory.
    Private,
    /// Its type is neither RAM nor memfd nor a file.
    OtherType,
    /// Its file exists, or is not in a folder of memory.
    OwnFile,
    /// It has properties of files with content.
    FileProperties,
    /// It has no object.
    NoObject,
    /// A file of `-readconfig` describes it.
    InFile,
}

impl Left {
    /// None if QEMU is started only to answer a question.
    pub(super) fn of_arguments(arguments: &[OsString]) -> Vec<Self> {
        let objects: Vec<_> = memory::objects(arguments).collect();
        let is_unnamed = |left: &Self| left.reason == Reason::Unnamed;
        let has_memory = objects.iter().any(|object| !object.as_ref().is_err_and(is_unnamed));
        let option = (!has_memory && !memory::is_question(arguments))
            .then(|| memory::first_option(arguments, &WITHOUT_OBJECT))
            .flatten();
        let files = match memory::is_question(arguments) {
            true => Vec::new(),
            false => memory::config_files(arguments),
        };
        let in_files = files.iter().filter_map(|section| {
            let kind = section.text("qom-type").filter(|_| section.group == "object")?;
            let name = section.id.clone().filter(|_| kind.starts_with("memory-backend-"))?;
            Some(Self { name, reason: Reason::InFile })
        });
        let without_object = option.map(|name| Self { name, reason: Reason::NoObject });
        let in_arguments = objects.into_iter().filter_map(Result::err);
        in_arguments.chain(without_object).chain(in_files).collect()
    }
}

/// Prints one line.
impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no lease for {}: {}", self.name, self.reason)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unnamed => "neither -machine nor -numa names it",
            Self::Private => "share=off makes it private, and a lease is shared. Remedy: share=on",
            Self::OtherType => {
                "the broker has no memory of this type. Remedy: memory-backend-memfd with share=on"
            }
            Self::OwnFile => {
                "its file may have content. Remedy: memory-backend-memfd with share=on, or a folder \
                 in a tmpfs or hugetlbfs as mem-path"
            }
            Self::FileProperties => {
                "a lease has no readonly=on, pmem=on and offset. Remedy: remove them"
            }
            Self::InFile => {
                "a file of -readconfig describes it, which stays as it is. Remedy: describe it by \
                 -object"
            }
            Self::NoObject => {
                "this memory has no object. Remedy: -machine memory-backend=m \
                 -object memory-backend-memfd,id=m,size=SIZE,share=on"
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(text: &str) -> Vec<(String, Reason)> {
        let words: Vec<OsString> = text.split(' ').map(Into::into).collect();
        Left::of_arguments(&words).into_iter().map(|left| (left.name, left.reason)).collect()
    }

    #[test]
    fn each_object_that_stays_is_one_line_with_its_reason() {
        for (object, reason) in [
            ("memory-backend-ram,id=m,size=4G,share=off", Reason::Private),
            ("memory-backend-memfd,id=m,size=4G,share=off", Reason::Private),
            (
                r#"{"qom-type":"memory-backend-ram","id":"m","size":4,"share":false}"#,
                Reason::Private,
            ),
            ("memory-backend-epc,id=m,size=4G", Reason::OtherType),
            ("memory-backend-file,id=m,size=4G,mem-path=/proc/self/exe,share=on", Reason::OwnFile),
            ("memory-backend-file,id=m,size=4G,mem-path=/sys,share=on", Reason::OwnFile),
            ("memory-backend-file,id=m,size=4G,mem-path=/n/m,offset=2M", Reason::FileProperties),
            ("memory-backend-file,id=m,size=4G,mem-path=/n/m,pmem=on", Reason::FileProperties),
        ] {
            let found = left(&format!("-machine pc,memory-backend=m -object {object}"));
            assert_eq!(found, [("m".to_owned(), reason)], "{object}");
        }
        let dimm = "-object memory-backend-ram,id=dimm,size=4G -device pc-dimm,memdev=dimm";
        assert_eq!(left(dimm), [("dimm".to_owned(), Reason::Unnamed)]);
        let line = Left { name: "m".to_owned(), reason: Reason::Private }.to_string();
        assert!(line.starts_with("no lease for m: share=off") && !line.contains('\n'), "{line}");
    }

    #[test]
    fn object_of_a_config_file_is_one_line() {
        // As LXD and Incus write it.
        let text = "# qemu\n[machine]\n  type = \"q35\"\n[object \"mem0\"]\n  qom-type = \
                    \"memory-backend-memfd\"\n  size = \"256M\"\n[numa]\n memdev = \"mem0\"\n\
                    [object \"other\"]\n qom-type = \"rng-random\"\n";
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(&file, text).unwrap();
        let path = file.path().display();
        let in_file = [("mem0".to_owned(), Reason::InFile)];
        assert_eq!(left(&format!("-readconfig {path} -m 256M")), in_file);
        assert_eq!(left(&format!("-readconfig {path} -version")), []);
        assert_eq!(left("-readconfig /nonexistent"), []);
        // The file may name an object of the arguments.
        std::fs::write(&file, "[machine]\nmemory-backend = \"m\"\n").unwrap();
        let object = "-object memory-backend-ram,id=m,size=4G";
        assert_eq!(left(&format!("-readconfig {path} {object}")), []);
        assert_eq!(left(object), [("m".to_owned(), Reason::Unnamed)]);
    }

    #[test]
    fn option_that_makes_memory_is_a_line_if_no_object_does() {
        let prealloc = "-m 4G -mem-prealloc -mem-path /dev/hugepages";
        assert_eq!(left(prealloc), [("-mem-prealloc".to_owned(), Reason::NoObject)]);
        let leased = "-machine pc,memory-backend=m -object memory-backend-ram,id=m,size=4G";
        assert_eq!(left(&format!("{leased} {prealloc}")), []);
    }

    #[test]
    fn leased_memory_questions_and_mistakes_are_no_line() {
        let private = "-object memory-backend-ram,id=m,size=4G,share=off -mem-prealloc";
        for asked in [
            "-machine pc,memory-backend=m -object memory-backend-ram,id=m,size=4G",
            "-m 4G",
            "-object secret,id=s,data=x -object iothread,id=t",
            "-machine pc,memory-backend=m -object memory-backend-ram,id=m,size=much,share=off",
            "-machine pc,memory-backend=m -object memory-backend-file,id=m,size=4G",
            &format!("-machine none,accel=kvm:tcg {private}"),
            &format!("-M type=none {private}"),
            &format!("{private} -version"),
            &format!("{private} --help"),
        ] {
            assert_eq!(left(asked), [], "{asked}");
        }
    }
}
