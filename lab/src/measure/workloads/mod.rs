//! The memory, processes and programs that experiments measure on.

pub mod anonymous;
pub mod arena;
pub mod broker_process;
pub mod busy;
pub mod clients;
pub mod dirty_pages;
pub mod folios;
pub mod forked_vm;
pub mod forking;
pub mod forking_program;
pub mod latency_writer;
pub mod micro_vm;
pub mod mixed_data;
pub mod outside;
pub mod paced_writer;
pub mod page_handler;
pub mod pager_thread;
pub mod redis_server;
pub mod tending;
pub mod threads;
pub mod writers;
