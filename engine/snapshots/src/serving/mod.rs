//! One snapshot while writers run: serving a write, from the fault to the copied granule.

pub(crate) mod arena;
pub(crate) mod background;
pub(crate) mod costs;
pub(crate) mod delivery;
pub(crate) mod granules;
pub(crate) mod interval;
pub(crate) mod lifecycle;
pub(crate) mod reserve;
pub(crate) mod segment;
pub(crate) mod state;
pub(crate) mod write_protector;
