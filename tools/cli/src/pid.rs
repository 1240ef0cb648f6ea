//! The number of a process, as an argument.

/// `otherwise` says what to write if it is no number.
pub(crate) fn parse(text: &str, otherwise: &str) -> Result<i32, String> {
    if text.is_empty() {
        return Err(
            "it is empty: does the process run? Is pgrep installed (package procps)?".to_owned()
        );
    }
    let number = text.parse().ok().filter(|&pid| pid > 0);
    number.ok_or_else(|| format!("it is no process's number: {otherwise}"))
}
