//! How a server ends, and what it has saved by then.

use rustix::process::{Pid, Signal, kill_process};

use crate::Check;
use crate::server::{Server, folder};

fn shutdown_of_each_kind_saves_as_it_is_told() {
    let folder = folder();
    let value = |server: &Server| server.client().get("a").map(|value| value[0] - b'0');
    let set = |server: &Server, digit: u8| server.client().set("a", &[digit + b'0']);
    let server = Server::start(folder.path());
    set(&server, 1);
    server.client().send(&[b"SHUTDOWN"]);
    assert!(server.ended().success());
    let server = Server::start(folder.path());
    assert_eq!(value(&server), Some(1));
    set(&server, 2);
    server.client().send(&[b"SHUTDOWN", b"NOSAVE"]);
    assert!(server.ended().success());
    let server = Server::start(folder.path());
    assert_eq!(value(&server), Some(1));
    set(&server, 3);
    kill_process(Pid::from_child(&server.child), Signal::TERM).unwrap();
    assert!(server.ended().success());
    let server = Server::start(folder.path());
    assert_eq!(value(&server), Some(3));
    assert!(Server::refused(folder.path(), "64MiB").contains("in use by another server"));
}

pub(crate) const CHECKS: &[Check] =
    &[("shutdown_of_each_kind_saves_as_it_is_told", shutdown_of_each_kind_saves_as_it_is_told)];
