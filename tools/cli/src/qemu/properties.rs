//! The value of an option of QEMU that has properties, in both forms of QEMU: `TYPE,id=m,size=4G` and JSON.
//!
//! A value that cannot be read in either form is no [`Properties`]: QEMU reports the mistake itself.

use std::ffi::{OsStr, OsString};

use hugekit_machine::size::Size;
use serde_json::{Map, Value};

/// No kernel numbers its NUMA nodes higher.
const LAST_NODE: u32 = 1023;

/// Properties, in the order and the form of the argument.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Properties {
    /// A name without `=` has no value. The first one may be a type without a name.
    Pairs(Vec<(String, Option<String>)>),
    Json(Map<String, Value>),
}

impl Properties {
    pub(crate) fn of_argument(argument: &OsStr) -> Option<Self> {
        let text = argument.to_str()?;
        if text.starts_with('{') {
            return serde_json::from_str(text).ok().map(Self::Json);
        }
        let pair = |part: String| match part.split_once('=') {
            Some((name, value)) => (name.to_owned(), Some(value.to_owned())),
            None => (part, None),
        };
        Some(Self::Pairs(split(text).into_iter().map(pair).collect()))
    }

    /// Returns the type of an object, which the first form may write without the name `qom-type`.
    pub(crate) fn object_type(&self) -> Option<String> {
        match self {
            Self::Pairs(pairs) => match pairs.first() {
                Some((name, None)) => Some(name.clone()),
                _ => self.text("qom-type"),
            },
            Self::Json(_) => self.text("qom-type"),
        }
    }

    /// Returns a value as text. In the first form, the last one of this name counts, as for QEMU.
    pub(crate) fn text(&self, name: &str) -> Option<String> {
        match self {
            Self::Pairs(pairs) => pairs.iter().rev().find(|(n, _)| n == name)?.1.clone(),
            Self::Json(map) => match map.get(name)? {
                Value::String(text) => Some(text.clone()),
                Value::Number(number) => Some(number.to_string()),
                _ => None,
            },
        }
    }

    /// Returns a number of bytes, which QEMU also takes in hexadecimal.
    pub(crate) fn bytes(&self, name: &str) -> Option<usize> {
        let text = self.text(name)?;
        match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
            Some(digits) => usize::from_str_radix(digits, 16).ok(),
            None => text.parse().ok().map(|Size(bytes)| bytes),
        }
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Self::Pairs(pairs) => pairs.iter().any(|(n, _)| n == name),
            Self::Json(map) => map.contains_key(name),
        }
    }

    /// Returns true if the property is switched on; `None` if it is missing or no switch.
    pub(crate) fn switch(&self, name: &str) -> Option<bool> {
        if let Self::Json(map) = self {
            return map.get(name)?.as_bool();
        }
        match self.text(name)?.as_str() {
            "on" | "yes" | "true" | "y" => Some(true),
            "off" | "no" | "false" | "n" => Some(false),
            _ => None,
        }
    }

    /// Returns the numbers of a list: `0`, `0-3`, several properties of this name, or an array.
    pub(crate) fn numbers(&self, name: &str) -> Vec<u32> {
        match self {
            Self::Pairs(pairs) => {
                let values = pairs.iter().filter(|(n, _)| n == name);
                values.filter_map(|(_, value)| range(value.as_deref()?)).flatten().collect()
            }
            Self::Json(map) => {
                let array = map.get(name).and_then(Value::as_array);
                let number = |value: &Value| value.as_u64()?.try_into().ok();
                array.into_iter().flatten().filter_map(number).collect()
            }
        }
    }

    pub(crate) fn remove(&mut self, names: &[&str]) {
        match self {
            Self::Pairs(pairs) => pairs.retain(|(name, _)| !names.contains(&name.as_str())),
            Self::Json(map) => map.retain(|name, _| !names.contains(&name.as_str())),
        }
    }

    /// Replaces the type of an object, at its place.
    pub(crate) fn set_object_type(&mut self, object_type: &str) {
        match self {
            Self::Pairs(pairs) if pairs.first().is_some_and(|(_, value)| value.is_none()) => {
                object_type.clone_into(&mut pairs[0].0);
            }
            _ => self.set("qom-type", object_type.into()),
        }
    }

    /// Replaces a property, or adds it at the end.
    pub(crate) fn set(&mut self, name: &str, value: Value) {
        let pairs = match self {
            Self::Json(map) => {
                map.insert(name.to_owned(), value);
                return;
            }
            Self::Pairs(pairs) => pairs,
        };
        let text = match value {
            Value::Bool(true) => "on".to_owned(),
            Value::Bool(false) => "off".to_owned(),
            Value::String(text) => text,
            other => other.to_string(),
        };
        let at = pairs.iter().position(|(n, _)| n == name);
        pairs.retain(|(n, _)| n != name);
        pairs.insert(at.unwrap_or(pairs.len()), (name.to_owned(), Some(text)));
    }

    pub(crate) fn to_argument(&self) -> OsString {
        match self {
            Self::Json(map) => Value::Object(map.clone()).to_string().into(),
            Self::Pairs(pairs) => {
                let part = |(name, value): &(String, Option<String>)| match value {
                    Some(value) => format!("{name}={}", value.replace(',', ",,")),
                    None => name.clone(),
                };
                pairs.iter().map(part).collect::<Vec<_>>().join(",").into()
            }
        }
    }
}

/// Splits at commas. Two commas are one comma of a value.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        match character {
            ',' if characters.next_if_eq(&',').is_none() => parts.push(String::new()),
            other => parts.last_mut().expect("starts with one part").push(other),
        }
    }
    parts
}

/// `3` or `0-3`. A range that no machine has is none.
fn range(text: &str) -> Option<std::ops::RangeInclusive<u32>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let last = last.parse().ok().filter(|&last| last <= LAST_NODE)?;
    Some(first.parse().ok()?..=last)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn properties(text: &str) -> Properties {
        Properties::of_argument(OsStr::new(text)).unwrap()
    }

    #[test]
    fn both_forms_have_the_same_properties() {
        for text in [
            "memory-backend-ram,id=m,size=4G,share=on,host-nodes=0-1,host-nodes=3",
            "qom-type=memory-backend-ram,id=x,id=m,size=4G,share=yes,host-nodes=0-1,host-nodes=3",
            r#"{"qom-type":"memory-backend-ram","id":"m","size":"4G","share":true,"host-nodes":[0,1,3]}"#,
        ] {
            let properties = properties(text);
            assert_eq!(properties.object_type().as_deref(), Some("memory-backend-ram"), "{text}");
            assert_eq!(properties.text("id").as_deref(), Some("m"), "{text}");
            assert_eq!(properties.text("size").as_deref(), Some("4G"), "{text}");
            assert_eq!(properties.switch("share"), Some(true), "{text}");
            assert_eq!(properties.switch("prealloc"), None, "{text}");
            assert_eq!(properties.numbers("host-nodes"), [0, 1, 3], "{text}");
        }
    }

    #[test]
    fn changes_keep_the_form_and_the_place() {
        let mut pairs = properties("memory-backend-ram,id=m,size=4G,prealloc=on");
        pairs.set_object_type("memory-backend-file");
        pairs.remove(&["prealloc"]);
        pairs.set("size", "5G".into());
        pairs.set("mem-path", "/a,b".into());
        pairs.set("share", true.into());
        let argument = "memory-backend-file,id=m,size=5G,mem-path=/a,,b,share=on";
        assert_eq!(pairs.to_argument(), argument);
        let mut json = properties(r#"{"qom-type":"a","size":1,"prealloc":true}"#);
        json.set_object_type("b");
        json.remove(&["prealloc"]);
        json.set("share", true.into());
        assert_eq!(json, properties(r#"{"qom-type":"b","size":1,"share":true}"#));
        assert_eq!(properties(json.to_argument().to_str().unwrap()), json);
    }

    #[test]
    fn sizes_are_read_as_qemu_reads_them() {
        let bytes = |text: &str| properties(text).bytes("size");
        for text in
            ["size=268435456", "size=256M", "size=0x10000000", "size=0X10000000", "size=0.25G"]
        {
            assert_eq!(bytes(text), Some(256 << 20), "{text}");
        }
        assert_eq!(bytes(r#"{"size":268435456}"#), Some(256 << 20));
        for text in ["size=much", "size=0x", "size=0xg", "id=m"] {
            assert_eq!(bytes(text), None, "{text}");
        }
    }

    #[test]
    fn a_range_of_any_length_costs_no_memory() {
        let numbers = |text| properties(text).numbers("n");
        assert_eq!(numbers("n=0-4294967295,n=7,n=3-1,n=x"), [7]);
    }

    #[test]
    fn value_that_is_neither_form_is_left_to_qemu() {
        assert_eq!(Properties::of_argument(OsStr::new("{not json")), None);
        let bytes = std::os::unix::ffi::OsStrExt::from_bytes(&b"m,id=\xff"[..]);
        assert_eq!(Properties::of_argument(bytes), None);
    }

    proptest! {
        #[test]
        fn pairs_are_written_as_they_were_read(text in "[a-c=,]{0,16}") {
            // Three commas can be read in two ways, and a comma in a name is written as it stands.
            let properties = properties(&text);
            let again = self::properties(properties.to_argument().to_str().unwrap());
            if !text.contains(",,") {
                prop_assert_eq!(properties.to_argument(), text.as_str());
                prop_assert_eq!(again, properties);
            }
        }
    }
}
