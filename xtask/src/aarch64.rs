pub(crate) enum Outcome {
    Passed,
    Skipped { reason: String },
}
pub(crate) fn test(_install: bool) -> anyhow::Result<Outcome> {
    Ok(Outcome::Skipped { reason: "x".into() })
}
