//! The names of backings, in arguments and in files of options.

use std::fmt;

use hugekit::pool::Backing;
use serde::de::{Error, Visitor};
use serde::{Deserializer, Serializer};

/// Returns an argument that names a backing.
#[cfg(feature = "clap")]
pub fn backing_parser() -> impl clap::builder::TypedValueParser<Value = Backing> {
    use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
    let value = |backing: &Backing| PossibleValue::new(backing.option()).help(backing.to_string());
    PossibleValuesParser::new(Backing::ALL.iter().map(value))
        .try_map(|name| named(&name).ok_or("no name of a backing"))
}

fn named(name: &str) -> Option<Backing> {
    Backing::ALL.iter().copied().find(|backing| backing.option() == name)
}

pub(crate) fn serialize<S: Serializer>(backing: &Backing, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(backing.option())
}

pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Backing, D::Error> {
    from.deserialize_str(Name)
}

struct Name;

impl Visitor<'_> for Name {
    type Value = Backing;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = Backing::ALL.iter().map(|backing| backing.option()).collect();
        write!(f, "one of {}", names.join(", "))
    }

    fn visit_str<E: Error>(self, name: &str) -> Result<Backing, E> {
        named(name).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(name), &self))
    }
}
