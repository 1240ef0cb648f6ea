//! The report for people (80 columns, colour where it is welcome) and for programs.

use std::fmt::Write as _;
use std::io;

use anstyle::{AnsiColor, Style};
use hugekit_doctor::{Line, Verdict};
use hugekit_machine::plain;
use serde::Serialize;

use hugekit_terminal::text::{COLUMNS, wrap, write_out};

const VERDICT_COLUMNS: usize = 8;

pub(super) fn json(report: &impl Serialize) -> io::Result<()> {
    write_out(&(serde_json::to_string_pretty(report)? + "\n"))
}

pub(super) fn terminal(lines: &[Line]) -> io::Result<()> {
    write_out(&render(lines))
}

fn render(lines: &[Line]) -> String {
    let name_columns = lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0) + 2;
    let groups = lines.chunk_by(|a, b| a.topic == b.topic);
    groups.map(|group| render_topic(group, name_columns)).collect::<Vec<_>>().join("\n")
}

fn render_topic(lines: &[Line], name_columns: usize) -> String {
    let bold = Style::new().bold();
    let mut text = format!("{bold}{}{bold:#}\n", lines[0].topic.0);
    for line in lines {
        render_line(&mut text, line, name_columns);
    }
    text
}

fn render_line(text: &mut String, line: &Line, name_columns: usize) {
    let style = style(line.verdict);
    let indent = 2 + VERDICT_COLUMNS + name_columns;
    let value = wrap(&plain(&line.value), COLUMNS - indent).join(&format!("\n{:indent$}", ""));
    let word = line.verdict.word();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "  {style}{word:VERDICT_COLUMNS$}{style:#}{:name_columns$}{value}",
        line.name
    );
    if let Some(remedy) = &line.remedy {
        let _ = writeln!(text, "    > {}", plain(remedy));
    }
}

fn style(verdict: Verdict) -> Style {
    match verdict {
        Verdict::Ok => AnsiColor::Green.on_default(),
        Verdict::Note => Style::new(),
        Verdict::Limited => AnsiColor::Yellow.on_default(),
        Verdict::Missing => AnsiColor::Red.on_default(),
        Verdict::Unknown => AnsiColor::Magenta.on_default(),
    }
}

#[cfg(test)]
mod tests {
    use hugekit_doctor::Topic;
    use hugekit_machine::Root;

    use super::*;

    fn line(topic: &'static str, verdict: Verdict, name: &str, value: &str) -> Line {
        let (name, value) = (name.to_owned(), value.to_owned());
        Line { topic: Topic(topic), name, value, verdict, remedy: None }
    }

    #[test]
    fn long_values_stay_within_the_columns() {
        let value = "word ".repeat(40);
        let text = render(&[line("memory", Verdict::Limited, "total", value.trim())]);
        let plain = anstream::adapter::strip_str(&text).to_string();
        assert!(plain.lines().count() > 3);
        assert!(plain.lines().all(|line| line.chars().count() <= COLUMNS), "{plain}");
    }

    #[test]
    fn a_remedy_stands_below_its_line_unbroken() {
        let command = "echo madvise > /sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled";
        let missing = line("memory", Verdict::Missing, "total", "none");
        let text = render(&[Line { remedy: Some(command.to_owned()), ..missing }]);
        assert!(text.ends_with(&format!("\n    > {command}\n")), "{text}");
    }

    #[test]
    fn the_report_of_every_machine_stays_within_the_columns() {
        for machine in hugekit_invented_machines::MACHINES {
            let files = machine.files().unwrap();
            let report = hugekit_doctor::examine(&Root::at(files.path())).unwrap();
            let plain = anstream::adapter::strip_str(&render(&report.lines)).to_string();
            let folder = files.path().to_str().unwrap();
            // Paths and commands are never broken.
            let long = |line: &&str| {
                let is_whole = line.contains(folder) || line.starts_with("    > ");
                line.chars().count() > COLUMNS && !is_whole
            };
            assert_eq!(plain.lines().find(long), None, "{}", machine.name);
        }
    }

    #[test]
    fn topics_are_headings() {
        let lines = [("memory", "total"), ("memory", "free"), ("kvm", "device")]
            .map(|(topic, name)| line(topic, Verdict::Ok, name, "1"));
        let plain = anstream::adapter::strip_str(&render(&lines)).to_string();
        assert_eq!(
            plain,
            "memory\n  ok      total   1\n  ok      free    1\n\nkvm\n  ok      device  1\n"
        );
    }
}
