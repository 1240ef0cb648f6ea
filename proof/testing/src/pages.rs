//! Commands in the Markdown pages are ones that a program accepts.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Command;

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
    let plain = plain.replacen("hugekit lab ", "hugekit-lab ", 1);
    let words = shlex::split(&plain).unwrap_or_else(|| panic!("quotes do not match: {text}"));
    words.into_iter().filter(|word| word != "&").collect()
}

/// Returns the reason if a line is not accepted.
fn fault(line: &Line, command: &Command) -> Option<String> {
    let words = words(&line.text);
    let mut command = command.clone();
    if line.is_whole {
        return command.try_get_matches_from(words).err().map(|error| error.to_string());
    }
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
        } else if index == 0 && command.has_subcommands() && !word.starts_with('-') {
            return Some(format!("no subcommand {word}"));
        }
    }
    None
}

/// The program of a line: `hugekit lab` starts another one.
fn is_of(line: &Line, program: &str) -> bool {
    let lab = line.text.strip_prefix("hugekit lab").is_some_and(|rest| rest.starts_with(' '));
    program == if lab { "hugekit lab" } else { "hugekit" }
}

/// Fails if a page of this repository has a command line of the program that the program does not accept, or if there
/// are fewer lines than `least`.
pub fn check(program: &str, command: &Command, least: usize) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let lines = pages(&root).iter().flat_map(|page| lines(page)).collect::<Vec<_>>();
    let lines: Vec<Line> = lines.into_iter().filter(|line| is_of(line, program)).collect();
    assert!(lines.len() >= least, "only {} commands were found", lines.len());
    let faults = lines.iter().filter_map(|line| {
        let fault = fault(line, command)?;
        Some(format!("{}: {}: {fault}", line.page.display(), line.text))
    });
    let faults: Vec<String> = faults.collect();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Returns the reason if a command line would be found. `is_whole` is true if it stands in a block that readers copy.
#[must_use]
pub fn why_refused(text: &str, is_whole: bool, command: &Command) -> Option<String> {
    fault(&Line { page: PathBuf::new(), text: text.to_owned(), is_whole }, command)
}
