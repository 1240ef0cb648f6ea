//! The crates that the public items come from, as rustdoc describes them.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Listing, describe, signature};
use crate::run;

/// Kinds that count as items.
const ITEMS: &str =
    "function struct enum union trait constant assoc_const static type_alias macro proc_macro";

/// Descriptions by the crates' names.
pub(super) struct Crates(BTreeMap<String, Value>);

/// An item and the crate that defines it.
#[derive(Clone, Copy)]
struct Item<'a> {
    of: &'a Value,
    value: &'a Value,
}

impl Crates {
    /// Describes a package and the packages of this workspace that it depends on.
    pub(super) fn document(package: &str) -> Result<Self> {
        let metadata = run::metadata()?;
        let (mut crates, mut next) = (BTreeMap::new(), vec![package.to_owned()]);
        while let Some(name) = next.pop() {
            let packages = metadata["packages"].as_array().into_iter().flatten();
            let found = packages.into_iter().find(|package| package["name"] == name.as_str());
            let needed = found.context("a package of this workspace")?["dependencies"].as_array();
            let ours = |needed: &&Value| needed["path"].is_string() && needed["kind"].is_null();
            let ours = needed.into_iter().flatten().filter(ours);
            next.extend(ours.filter_map(|needed| needed["name"].as_str().map(str::to_owned)));
            if let Entry::Vacant(entry) = crates.entry(name.replace('-', "_")) {
                entry.insert(describe(&name)?);
            }
        }
        Ok(Self(crates))
    }

    /// Lists all that a crate makes public.
    pub(super) fn walk(&self, name: &str, listing: &mut Listing) -> Result<()> {
        let of = &self.0[name];
        let root = Item::of(of, &of["root"]).context("a crate has a root")?;
        self.module(root, name, listing)
    }

    fn module(&self, module: Item<'_>, path: &str, listing: &mut Listing) -> Result<()> {
        for item in module.all(&module.inner()["items"]) {
            self.item(item, path, listing)?;
        }
        Ok(())
    }

    fn item(&self, item: Item<'_>, path: &str, listing: &mut Listing) -> Result<()> {
        let (kind, inner) = (item.kind(), item.inner());
        if kind == "use" {
            let name = inner["name"].as_str().unwrap_or_default();
            return match self.target(item) {
                Some(target) if inner["is_glob"] == true => self.module(target, path, listing),
                Some(target) => self.named(target, &format!("{path}::{name}"), listing),
                None => {
                    let source = inner["source"].as_str().unwrap_or_default();
                    listing.lines.insert(format!("{path}::{name}: pub use {source}"));
                    Ok(())
                }
            };
        }
        let name = item.value["name"].as_str().unwrap_or_default();
        self.named(item, &format!("{path}::{name}"), listing)
    }

    /// Lists an item under the path by which users name it.
    fn named(&self, item: Item<'_>, path: &str, listing: &mut Listing) -> Result<()> {
        let (kind, inner) = (item.kind(), item.inner());
        if kind == "module" {
            return self.module(item, path, listing);
        }
        if !listing.lines.insert(format!("{path}: {}", signature::of(item.value)?)) {
            return Ok(());
        }
        let root = item.of["root"].to_string();
        let id = format!("{} {}", item.of["index"][root]["name"], item.value["id"]);
        let is_new = listing.counted.insert(id);
        listing.items += usize::from(is_new && ITEMS.split(' ').any(|item| item == kind));
        for parts in [&inner["items"], &inner["variants"], &inner["kind"]["plain"]["fields"]] {
            for part in item.all(parts) {
                self.item(part, path, listing)?;
            }
        }
        self.implementations(item, path, listing)
    }

    fn implementations(&self, item: Item<'_>, path: &str, listing: &mut Listing) -> Result<()> {
        let mut traits = BTreeSet::new();
        let ids = if item.kind() == "trait" { &Value::Null } else { &item.inner()["impls"] };
        for implementation in item.all(ids) {
            let inner = implementation.inner();
            let is_written = inner["is_synthetic"] == false && inner["blanket_impl"].is_null();
            let is_written = is_written && inner["trait"]["path"] != "StructuralPartialEq";
            match inner["trait"]["path"].as_str() {
                Some(name) if is_written => traits.extend(name.rsplit("::").next()),
                Some(_) => {}
                None => {
                    let items = implementation.all(&inner["items"]).into_iter();
                    for item in items.filter(|item| item.value["visibility"] == "public") {
                        self.item(item, path, listing)?;
                    }
                }
            }
        }
        if !traits.is_empty() {
            let traits = traits.into_iter().collect::<Vec<_>>().join(", ");
            listing.lines.insert(format!("{path}: impl {traits}"));
        }
        Ok(())
    }

    /// Returns the item that a `use` names, in its own crate or in another one of the workspace.
    fn target<'a>(&'a self, item: Item<'a>) -> Option<Item<'a>> {
        let id = &item.inner()["id"];
        if let Some(target) = Item::of(item.of, id) {
            return Some(target);
        }
        let summary = &item.of["paths"][id.to_string()];
        let path = summary["path"].as_array()?;
        let of = self.0.get(path.first()?.as_str()?)?;
        let mut paths = of["paths"].as_object()?.iter();
        let (id, _) = paths.find(|(_, other)| {
            other["crate_id"] == 0
                && other["path"] == summary["path"]
                && other["kind"] == summary["kind"]
        })?;
        Some(Item { of, value: of["index"].get(id)? })
    }
}

impl<'a> Item<'a> {
    fn of(of: &'a Value, id: &Value) -> Option<Self> {
        Some(Self { of, value: of["index"].get(id.to_string())? })
    }

    fn kind(self) -> &'a str {
        let inner = self.value["inner"].as_object().into_iter().flatten();
        inner.map(|(kind, _)| kind.as_str()).next().unwrap_or_default()
    }

    fn inner(self) -> &'a Value {
        &self.value["inner"][self.kind()]
    }

    /// The items with these ids that are described: private and hidden ones are not.
    fn all(self, ids: &Value) -> Vec<Self> {
        let ids = ids.as_array().into_iter().flatten();
        ids.filter_map(|id| Self::of(self.of, id)).collect()
    }
}
