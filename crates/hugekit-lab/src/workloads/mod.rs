//! The memory, processes and programs that experiments measure on.

pub(crate) mod anonymous;
pub(crate) mod arena;
pub(crate) mod broker_process;
pub(crate) mod busy;
pub(crate) mod clients;
pub(crate) mod dirty_pages;
pub(crate) mod forked_vm;
pub(crate) mod forking;
pub(crate) mod forking_program;
pub(crate) mod latency_writer;
pub(crate) mod micro_vm;
pub(crate) mod outside;
pub(crate) mod paced_writer;
pub(crate) mod page_handler;
pub(crate) mod pager_thread;
pub(crate) mod redis_server;
pub(crate) mod tending;
pub(crate) mod threads;
pub(crate) mod writers;
