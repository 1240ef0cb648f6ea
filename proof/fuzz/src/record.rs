//! Records of the lab: the sender may have written anything into it.

use hugekit_lab::record::Record;
use hugekit_lab::record::compare::Comparison;

/// A record that is taken in can be compared, drawn and written, and is the same when it is taken in again.
pub(crate) fn run(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(record) = Record::parse(text) else { return };
    let comparison = Comparison::between(("one", &record), ("other", &record));
    assert!(comparison.only_before.is_empty() && comparison.only_after.is_empty());
    let page = hugekit_lab::report::page(&[("one".to_owned(), record.clone())]);
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
    let written = serde_json::to_string(&record).expect("a record can be written");
    let again = Record::parse(&written).expect("the written record can be read");
    assert_eq!(serde_json::to_string(&again).expect("a record can be written"), written);
}
