//! A crate's code without its tests: which modules its root has, and which names of the root they use.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::punctuated::Punctuated;
use syn::visit_mut::{self, VisitMut};
use syn::{Attribute, Item, ItemMod, Meta, Token, UseTree};

/// A name of the crate's root, in a layer.
#[derive(Debug)]
pub(super) struct Use {
    pub(super) file: PathBuf,
    pub(super) line: usize,
    pub(super) layer: String,
    pub(super) name: String,
}

/// A crate's code.
#[derive(Debug, Default)]
pub(super) struct Source {
    pub(super) root: PathBuf,
    /// Modules of the root: the layers.
    pub(super) modules: BTreeSet<String>,
    /// Names that the root has from a module, and that module.
    reexported: BTreeMap<String, String>,
    /// Names of items that stand in the root itself.
    pub(super) defined: BTreeSet<String>,
    pub(super) uses: Vec<Use>,
}

impl Source {
    /// Reads the crate that begins in this file, and each file that it names as a module.
    pub(super) fn read(root: &Path) -> Result<Self> {
        let mut source = Self { root: root.to_owned(), ..Self::default() };
        let folder = root.parent().unwrap_or(Path::new("")).to_owned();
        for item in parse(root)?.items {
            match item {
                // A module in braces shows what other modules have.
                Item::Mod(module) if module.content.is_some() => {}
                Item::Mod(module) => {
                    source.modules.insert(module.ident.to_string());
                    source.read_module(&module, &folder, &mut Vec::new())?;
                }
                Item::Use(item) => source.reexport(&item.tree, None),
                item => source.defined.extend(name(&item)),
            }
        }
        Ok(source)
    }

    /// The layer that a name of the root stands for; none if it is not of this crate.
    pub(super) fn layer_of<'a>(&'a self, name: &'a str) -> Option<&'a str> {
        let module = self.reexported.get(name).map_or(name, String::as_str);
        self.modules.contains(module).then_some(module)
    }

    fn reexport(&mut self, tree: &UseTree, first: Option<&str>) {
        let mut note = |name: &syn::Ident| {
            first.map(|first| self.reexported.insert(name.to_string(), first.to_owned()))
        };
        match tree {
            UseTree::Name(leaf) => drop(note(&leaf.ident)),
            UseTree::Rename(leaf) => drop(note(&leaf.rename)),
            UseTree::Glob(_) => {}
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.reexport(tree, first)),
            UseTree::Path(path) if path.ident == "crate" || path.ident == "self" => {
                self.reexport(&path.tree, first);
            }
            UseTree::Path(path) => {
                let ident = path.ident.to_string();
                self.reexport(&path.tree, Some(first.unwrap_or(&ident)));
            }
        }
    }

    /// Reads a module, in braces or in a file of its own, whose parents are these.
    fn read_module(
        &mut self,
        module: &ItemMod,
        folder: &Path,
        parents: &mut Vec<String>,
    ) -> Result<()> {
        let name = module.ident.to_string();
        let file = file_of(module, folder);
        // The modules of `mod.rs` are beside it; those of `name.rs`, below `name/`.
        let is_folder = file.file_name().is_some_and(|file| file == "mod.rs");
        let beside = file.parent().unwrap_or(folder);
        let folder = if is_folder { beside.to_owned() } else { folder.join(&name) };
        parents.push(name);
        for item in parse(&file)?.items {
            match item {
                Item::Mod(module) if module.content.is_none() => {
                    self.read_module(&module, &folder, parents)?;
                }
                item => Names { source: self, file: &file, parents }.find(item.to_token_stream()),
            }
        }
        parents.pop();
        Ok(())
    }
}

fn file_of(module: &ItemMod, folder: &Path) -> PathBuf {
    let told = module.attrs.iter().find_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("path") => match &pair.value {
            syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    });
    let file = folder.join(told.unwrap_or_else(|| format!("{}.rs", module.ident)));
    if file.exists() { file } else { folder.join(module.ident.to_string()).join("mod.rs") }
}

fn name(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(ident.to_string())
}

/// A file's code without its tests.
fn parse(path: &Path) -> Result<syn::File> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut file = syn::parse_file(&text).with_context(|| path.display().to_string())?;
    WithoutTests.visit_file_mut(&mut file);
    Ok(file)
}

/// Takes out of a file what is compiled for tests only.
struct WithoutTests;

impl VisitMut for WithoutTests {
    fn visit_file_mut(&mut self, file: &mut syn::File) {
        file.items.retain(|item| !is_test(attributes(item)));
        visit_mut::visit_file_mut(self, file);
    }

    fn visit_item_mod_mut(&mut self, module: &mut ItemMod) {
        if let Some((_, items)) = &mut module.content {
            items.retain(|item| !is_test(attributes(item)));
        }
        visit_mut::visit_item_mod_mut(self, module);
    }

    fn visit_item_impl_mut(&mut self, block: &mut syn::ItemImpl) {
        block.items.retain(|item| match item {
            syn::ImplItem::Fn(item) => !is_test(&item.attrs),
            syn::ImplItem::Const(item) => !is_test(&item.attrs),
            _ => true,
        });
        visit_mut::visit_item_impl_mut(self, block);
    }
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let condition = || attribute.parse_args::<Meta>().is_ok_and(|meta| requires_test(&meta));
        attribute.path().is_ident("cfg") && condition()
    })
}

/// Whether a condition holds in tests (or documentation's) only.
fn requires_test(condition: &Meta) -> bool {
    let Meta::List(list) = condition else {
        return condition.path().is_ident("test") || condition.path().is_ident("doctest");
    };
    let parts = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated);
    let parts = parts.unwrap_or_default();
    if list.path.is_ident("all") {
        parts.iter().any(requires_test)
    } else {
        list.path.is_ident("any") && !parts.is_empty() && parts.iter().all(requires_test)
    }
}

/// Finds names of the crate's root in a module's tokens, those of macros included.
struct Names<'a> {
    source: &'a mut Source,
    file: &'a Path,
    /// The module and those around it, the layer first.
    parents: &'a mut Vec<String>,
}

impl Names<'_> {
    fn find(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            if let Some(first) = self.behind_root(&tokens[at..]) {
                self.note(&tokens[at + first..]);
                at += first;
            } else if let TokenTree::Group(group) = &tokens[at] {
                let inner = at.checked_sub(2).filter(|at| is_ident(&tokens[*at], "mod"));
                let inner = inner.map(|at| tokens[at + 1].to_string());
                let depth = self.parents.len();
                self.parents.extend(inner);
                self.find(group.stream());
                self.parents.truncate(depth);
                at += 1;
            } else {
                at += 1;
            }
        }
    }

    /// How many tokens lead to the crate's root, if these begin with `crate::` or enough of `super::`.
    fn behind_root(&self, tokens: &[TokenTree]) -> Option<usize> {
        let leads = |count: usize| (0..count).all(|n| is_path(&tokens[3 * n..], "super"));
        let up = self.parents.len();
        if is_path(tokens, "crate") {
            Some(3)
        } else {
            (tokens.len() > 3 * up && leads(up)).then_some(3 * up)
        }
    }

    /// Notes the names that stand behind the root: one, or several in braces.
    fn note(&mut self, tokens: &[TokenTree]) {
        match tokens.first() {
            Some(TokenTree::Ident(ident)) => self.source.uses.push(Use {
                file: self.file.to_owned(),
                line: ident.span().start().line,
                layer: self.parents[0].clone(),
                name: ident.to_string(),
            }),
            Some(TokenTree::Group(group)) => {
                let inner: Vec<TokenTree> = group.stream().into_iter().collect();
                let comma =
                    |token: &TokenTree| matches!(token, TokenTree::Punct(p) if p.as_char() == ',');
                inner.split(comma).for_each(|part| self.note(part));
            }
            _ => {}
        }
    }
}

fn is_ident(token: &TokenTree, name: &str) -> bool {
    matches!(token, TokenTree::Ident(ident) if ident == name)
}

/// Whether tokens begin with this name and `::`.
fn is_path(tokens: &[TokenTree], name: &str) -> bool {
    let [first, TokenTree::Punct(colon), TokenTree::Punct(second), ..] = tokens else {
        return false;
    };
    is_ident(first, name) && colon.as_char() == ':' && second.as_char() == ':'
}
