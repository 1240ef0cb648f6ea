//! Messages of the lease protocol: a client reads what a broker sends, and a broker what a client sends.

use hugekit_lease::protocol::{Answer, LONGEST, Request};

/// Checks that each message that is understood is written again as it was, so that no two messages mean the same, and
/// that printing it ends.
pub(crate) fn run(bytes: &[u8]) {
    if let Ok(request) = Request::of_message(bytes) {
        assert_eq!(request.to_message(), bytes);
    }
    match Answer::of_message(bytes) {
        Ok(answer) => {
            assert_eq!(answer.to_message(), bytes);
            assert!(bytes.len() <= LONGEST);
            if let Answer::Refused(refusal) = answer {
                assert!(!format!("{refusal}{refusal:?}").is_empty());
            }
        }
        Err(malformed) => assert!(!malformed.to_string().is_empty()),
    }
}
