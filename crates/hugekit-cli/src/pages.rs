//! Commands in the Markdown pages are ones that this program accepts.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory, Parser};

use crate::Cli;

/// A command line of a page.
#[derive(Debug)]
struct Line {
    page: PathBuf,
    text: String,
    /// True if it can be parsed as it stands: it is in a block that readers copy, and has no placeholder.
    is_whole: bool,
}

/// The Markdown pages below a folder, but not those of builds and of hidden folders. Decisions name
/// commands of their time.
fn pages(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() && !name.starts_with('.') && !["target", "decisions"].contains(&&*name) {
            found.extend(pages(&path));
        } else if name.ends_with(".md") {
            found.push(path);
        }
    }
    found
}

/// The commands of a page: lines of its blocks of shell, and code within its text.
fn lines(page: &Path) -> Vec<Line> {
    let text = fs::read_to_string(page).unwrap().replace("\\\n", " ");
    let mut lines = Vec::new();
    let mut add = |text: &str, is_copied: bool| {
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let text = text
            .strip_prefix("cargo run --release -- ")
            .map_or(text.clone(), |rest| format!("hugekit {rest}"));
        if text.starts_with("hugekit ") {
            let is_whole = is_copied && !has_placeholder(&text);
            lines.push(Line { page: page.to_owned(), text, is_whole });
        }
    };
    // Before, within and after blocks in turn.
    for (index, part) in text.split("```").enumerate() {
        let (kind, block) = part.split_once('\n').unwrap_or((part, ""));
        match (index % 2, kind) {
            (0, _) => part.split('`').skip(1).step_by(2).for_each(|code| add(code, false)),
            (_, "sh") => {
                block.lines().flat_map(|line| line.split("; ")).for_each(|line| add(line, true));
            }
            (_, "text") => usages(block).iter().for_each(|usage| add(usage, false)),
            _ => {}
        }
    }
    lines
}

/// The lines of a block, each with the indented lines that go on with it.
fn usages(block: &str) -> Vec<String> {
    let mut usages: Vec<String> = Vec::new();
    for line in block.lines() {
        match usages.last_mut() {
            Some(last) if line.starts_with(' ') => last.push_str(line),
            _ => usages.push(line.to_owned()),
        }
    }
    usages
}

/// `SIZE`, `…`, `A|B` and `[OPTION]` stand for something else.
fn has_placeholder(text: &str) -> bool {
    let before_comment = text.split(" #").next().unwrap_or(text);
    let is_name = |word: &str| word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase());
    before_comment.contains(['…', '|', '[']) || before_comment.split([' ', '=']).any(is_name)
}

/// The words of a line as a shell makes them. The output of another command is some number; `&` is the shell's.
fn words(text: &str) -> Vec<String> {
    let mut plain = text.to_owned();
    while let Some((before, rest)) = plain.split_once("$(") {
        let after = rest.split_once(')').map_or("", |(_, after)| after);
        plain = format!("{before}1{after}");
    }
    let words = shlex::split(&plain).unwrap_or_else(|| panic!("quotes do not match: {text}"));
    words.into_iter().filter(|word| word != "&").collect()
}

/// Why a line is not accepted, if so.
fn fault(line: &Line) -> Option<String> {
    let words = words(&line.text);
    if line.is_whole {
        return Cli::try_parse_from(words).err().map(|error| error.to_string());
    }
    let mut command = Cli::command();
    command.build();
    let known = words
        .iter()
        .skip(1)
        .map(|word| word.trim_matches(['[', ']']))
        .take_while(|word| *word != "--");
    unknown(&command, known.collect())
}

/// The first word that is neither a subcommand nor an option where one is expected.
fn unknown(command: &Command, words: Vec<&str>) -> Option<String> {
    let (mut command, mut options) = (command, BTreeSet::new());
    for (index, word) in words.into_iter().enumerate() {
        options.extend(command.get_arguments().filter_map(|argument| argument.get_long()));
        if let Some(option) = word.strip_prefix("--") {
            let name = option.split(['=', ']', '|']).next().unwrap_or(option);
            if !options.contains(name) {
                return Some(format!("{} has no option --{name}", command.get_name()));
            }
        } else if let Some(sub) = command.find_subcommand(word) {
            command = sub;
        } else if index == 0 && !word.starts_with('-') {
            return Some(format!("no subcommand {word}"));
        }
    }
    None
}

#[test]
fn every_command_of_a_page_is_accepted() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let all: Vec<Line> = pages(&root).iter().flat_map(|page| lines(page)).collect();
    let whole = all.iter().filter(|line| line.is_whole).count();
    assert!(whole >= 20 && all.len() >= 60, "only {whole} and {} commands were found", all.len());
    let faults = all.iter().filter_map(|line| {
        Some(format!("{}: {}: {}", line.page.display(), line.text, fault(line)?))
    });
    let faults: Vec<String> = faults.collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_command_that_is_not_accepted_is_found() {
    let fault = |text: &str, is_whole| {
        super::pages::fault(&Line { page: PathBuf::new(), text: text.to_owned(), is_whole })
    };
    assert_eq!(fault("hugekit lab stores --rounds 3 # a comment", true), None);
    assert_eq!(fault("hugekit broker --unit 1GiB & # goes on", true), None);
    assert!(fault("hugekit lab nothing", true).is_some());
    assert!(fault("hugekit lab --rounds", true).is_some());
    assert_eq!(fault("hugekit lab [EXPERIMENT… | --all] [--json FILE|-]", false), None);
    assert!(fault("hugekit lab --memory SIZE --nothing N", false).is_some());
    assert!(fault("hugekit nothing", false).is_some());
    assert_eq!(fault("hugekit lease --size SIZE -- PROGRAM --its-own", false), None);
}
