//! The pool of 2 MiB pages, for one test at a time: others would find its pages free, and both run
//! short.

use std::fs::{self, File};

use rustix::fs::{FlockOperation, flock};

use crate::firecracker::Pages;

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";

/// The right to use pages of the pool. It ends with this value, or with its process.
#[derive(Debug)]
pub struct HugePages {
    _locked: Option<File>,
}

impl HugePages {
    /// Waits for other tests if a guest has such pages. Says why if fewer than `needed` are free.
    pub fn reserve(of: Pages, needed: u64) -> Result<Self, String> {
        if of == Pages::Base {
            return Ok(Self { _locked: None });
        }
        let lock = || -> std::io::Result<_> {
            let pool = File::open(POOL)?;
            flock(&pool, FlockOperation::LockExclusive)?;
            let free = fs::read_to_string(format!("{POOL}/free_hugepages"))?;
            Ok((pool, free.trim().parse().unwrap_or(0)))
        };
        match lock() {
            Ok((pool, free)) if free >= needed => Ok(Self { _locked: Some(pool) }),
            Ok((_, free)) => Err(format!("{needed} huge pages are needed, {free} are free")),
            Err(error) => Err(format!("{POOL} cannot be locked: {error}")),
        }
    }
}
