//! A file of `-readconfig`, in which LXD and Incus describe a guest: sections such as `[object "m"]`
//! with lines such as `size = "4G"`.
//!
//! Only QEMU decides whether a file is right. Here a line that is not understood has no meaning.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Longer files are not read.
const LONGEST: u64 = 1 << 20;

/// A section.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Section {
    /// The name of the option, such as `object`.
    pub(super) group: String,
    pub(super) id: Option<String>,
    properties: Vec<(String, String)>,
}

impl Section {
    /// Returns the sections of a file. A pipe is not read, because QEMU would miss those bytes.
    pub(super) fn of_file(path: &Path) -> Vec<Self> {
        let text = || {
            let file: File = hugekit_image::open(path).ok()?;
            let is_file = file.metadata().ok()?.is_file();
            let mut text = String::new();
            is_file.then(|| file.take(LONGEST).read_to_string(&mut text))?.ok()?;
            Some(text)
        };
        text().map_or_else(Vec::new, |text| Self::of_text(&text))
    }

    fn of_text(text: &str) -> Vec<Self> {
        let mut sections: Vec<Self> = Vec::new();
        for line in text.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
            if let Some(head) = line.strip_prefix('[').and_then(|line| line.strip_suffix(']')) {
                let (group, id) = head.split_once(char::is_whitespace).unwrap_or((head, ""));
                let (group, id) = (group.trim().to_owned(), unquoted(id).map(str::to_owned));
                sections.push(Self { group, id, properties: Vec::new() });
            } else if let (Some((name, value)), Some(last)) =
                (line.split_once('='), sections.last_mut())
            {
                let value = unquoted(value).unwrap_or_default().to_owned();
                last.properties.push((name.trim().to_owned(), value));
            }
        }
        sections
    }

    /// Returns a value. The last one of this name counts.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        let found = self.properties.iter().rev().find(|(found, _)| found == name);
        found.map(|(_, value)| value.as_str())
    }
}

fn unquoted(text: &str) -> Option<&str> {
    text.trim().strip_prefix('"')?.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_have_names_and_values() {
        let sections = Section::of_text(
            "x = \"1\"\n# [no]\n[machine]\n type = \"q35\"\n\n[object \"m 0\"]\n a=\"b=c\"\n a = \"d\"\n odd\n",
        );
        let [machine, object] = &sections[..] else { panic!("{sections:?}") };
        assert_eq!((machine.group.as_str(), &machine.id), ("machine", &None));
        assert_eq!(machine.text("type"), Some("q35"));
        assert_eq!((object.group.as_str(), object.id.as_deref()), ("object", Some("m 0")));
        assert_eq!((object.text("a"), object.text("b")), (Some("d"), None));
    }

    #[test]
    fn pipes_and_binary_files_have_no_sections() {
        let folder = tempfile::tempdir().unwrap();
        let pipe = folder.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
        assert_eq!(Section::of_file(&pipe), []);
        assert_eq!(Section::of_file(Path::new("/proc/self/exe")), []);
        assert_eq!(Section::of_file(folder.path()), []);
    }
}
