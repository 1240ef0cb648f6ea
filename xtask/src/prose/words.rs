//! Words that stand for an actor without naming it: a thread, a process, a reader, the kernel.

/// Each of them hides which one is meant.
const HIDING: &[&str] = &[
    "anybody",
    "anyone",
    "everybody",
    "everyone",
    "no one",
    "nobody",
    "somebody",
    "someone",
    "whoever",
    "whomever",
];

/// Lines, from 1 on, that have such a word, and the word.
pub(super) fn hiding(text: &str) -> impl Iterator<Item = (usize, &'static str)> {
    let lines = text.lines().zip(1..);
    lines.flat_map(|(line, number)| {
        let line = line.to_lowercase();
        let has =
            move |word: &&str| line.match_indices(*word).any(|(at, _)| is_whole(&line, at, word));
        HIDING.iter().copied().filter(has).map(move |word| (number, word))
    })
}

/// Whether a word that is found here is not a part of another one.
fn is_whole(line: &str, at: usize, word: &str) -> bool {
    let is_letter = |character: char| character.is_alphanumeric() || character == '_';
    let (before, after) = (&line[..at], &line[at + word.len()..]);
    !before.ends_with(is_letter) && !after.starts_with(is_letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(usize, &'static str)> {
        hiding(text).collect()
    }

    #[test]
    fn a_word_is_found_in_every_case_and_with_its_line() {
        let text = "The writer waits.\n// Whoever waits,\nis nobody's concern. No one\n";
        assert_eq!(found(text), [(2, "whoever"), (3, "no one"), (3, "nobody")]);
    }

    #[test]
    fn a_part_of_another_word_is_none() {
        assert_eq!(found("is_nobody, nobodyelse, the no-one's land; casino ones"), []);
    }
}
