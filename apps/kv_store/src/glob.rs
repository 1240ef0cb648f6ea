//! Patterns of keys, as redis has them: `*`, `?`, `[abc]`, `[^a-z]` and `\\` before what stands for itself.

/// Whether all of the key is as the pattern says. It takes at most the product of both lengths in steps: only the last `*`
/// is ever tried again.
pub fn matches(pattern: &[u8], key: &[u8]) -> bool {
    if key.is_empty() {
        // Redis looks at no pattern but these two then.
        return matches!(pattern, b"" | b"*");
    }
    let (mut pattern, mut key) = (pattern, key);
    // Behind the last `*`, and what of the key it has not taken.
    let mut again: Option<(&[u8], &[u8])> = None;
    loop {
        if let [b'*', rest @ ..] = pattern {
            pattern = rest;
            again = Some((pattern, key));
            continue;
        }
        let next = match key.split_first() {
            None if pattern.is_empty() => return true,
            None => return false,
            Some((&byte, rest)) => one(pattern, byte).map(|behind| (behind, rest)),
        };
        if next.is_none() {
            // One more byte for the `*`.
            let Some((behind, taken)) = again else { return false };
            let rest = taken.get(1..).unwrap_or_default();
            again = Some((behind, rest));
        }
        let Some(following) = next.or(again) else { return false };
        (pattern, key) = following;
    }
}

/// The pattern behind what stands for one byte, if it stands for this one.
fn one(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    match pattern {
        [] => None,
        [b'?', rest @ ..] => Some(rest),
        [b'[', rest @ ..] => class(rest, byte),
        [b'\\', literal, rest @ ..] | [literal, rest @ ..] => (*literal == byte).then_some(rest),
    }
}

/// Behind `[`. A class without an end goes as far as the pattern.
fn class(pattern: &[u8], byte: u8) -> Option<&[u8]> {
    let (is_not, mut rest) = match pattern {
        [b'^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mut found = false;
    loop {
        let range;
        (range, rest) = match rest {
            [] => break,
            [b']', behind @ ..] => {
                rest = behind;
                break;
            }
            [b'\\', literal, behind @ ..] => ([*literal, *literal], behind),
            [from, b'-', to, behind @ ..] => ([*from.min(to), *from.max(to)], behind),
            [literal, behind @ ..] => ([*literal, *literal], behind),
        };
        found |= (range[0]..=range[1]).contains(&byte);
    }
    (found != is_not).then_some(rest)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::matches;

    #[test]
    fn patterns_match_as_rediss_do() {
        let cases = [
            ("*", "", true),
            ("", "", true),
            ("**", "", false),
            ("**", "a", true),
            ("", "a", false),
            ("h?llo", "hello", true),
            ("h?llo", "hllo", false),
            ("h*llo", "heeeello", true),
            ("h*llo", "heeeell", false),
            ("*a*b*c*", "xaxbxcx", true),
            ("*a*b*c*", "xaxcxbx", false),
            ("h[ae]llo", "hello", true),
            ("h[ae]llo", "hillo", false),
            ("h[^e]llo", "hallo", true),
            ("h[^e]llo", "hello", false),
            ("h[a-b]llo", "hbllo", true),
            ("h[b-a]llo", "hallo", true),
            ("h\\*llo", "h*llo", true),
            ("h\\*llo", "hello", false),
            ("[\\]]", "]", true),
            ("a[bc", "ab", true),
            ("a\\", "a\\", true),
            ("key:*9", "key:199", true),
        ];
        for (pattern, key, expected) in cases {
            assert_eq!(matches(pattern.as_bytes(), key.as_bytes()), expected, "{pattern} {key}");
        }
    }

    /// The same by definition: each `*` takes any number of bytes.
    fn slowly(pattern: &[u8], key: &[u8]) -> bool {
        match pattern {
            [] => key.is_empty(),
            [b'*', rest @ ..] => (0..=key.len()).any(|taken| slowly(rest, &key[taken..])),
            _ => key.split_first().is_some_and(|(&byte, key)| {
                super::one(pattern, byte).is_some_and(|rest| slowly(rest, key))
            }),
        }
    }

    proptest! {
        #[test]
        fn stars_take_any_number(pattern in "[ab*?\\[\\]^]{0,8}", key in "[ab]{1,8}") {
            let (pattern, key) = (pattern.as_bytes(), key.as_bytes());
            prop_assert_eq!(matches(pattern, key), slowly(pattern, key));
        }
    }

    #[test]
    fn many_stars_take_no_time() {
        let (pattern, key) = ("a*".repeat(1000) + "b", "a".repeat(20_000));
        assert!(!matches(pattern.as_bytes(), key.as_bytes()));
    }
}
