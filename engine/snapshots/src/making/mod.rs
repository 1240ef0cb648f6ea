//! Making a snapshot and ending it: options, checks before any change, and the order in which memory is protected.

pub(crate) mod builder;
pub(crate) mod edges;
pub(crate) mod excluded;
pub(crate) mod huge_zeroes;
pub(crate) mod limit;
pub(crate) mod neighbours;
pub(crate) mod plan;
pub(crate) mod protect_helper;
pub(crate) mod survey;
pub(crate) mod tracker;
