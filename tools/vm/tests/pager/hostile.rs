//! VMMs that lie, die or say nothing: each is refused for its reason, and others are served
//! meanwhile.

use std::fs::{File, Permissions};
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use hugekit_guests::small_vmm::send_handshake;
use hugekit_guests::{Request, SmallVmm};
use hugekit_sys::userfaultfd;
use libtest_mimic::{Completion, Failed, Trial};
use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::memory_file::MIB;
use crate::pager_process::Options;

const LEN: u64 = 8 * MIB;

/// What is sent, and what the pager's log then says.
struct Attack {
    name: &'static str,
    words: &'static str,
    act: fn(UnixStream),
}

const ATTACKS: &[Attack] = &[
    Attack { name: "nothing", words: "the connection broke", act: drop },
    Attack { name: "garbage", words: "not a list of regions", act: send_garbage },
    Attack { name: "no_descriptor", words: "0 descriptors", act: send_no_descriptor },
    Attack { name: "another_descriptor", words: "not a userfaultfd", act: send_a_file },
    Attack { name: "bare_userfaultfd", words: "never given its features", act: send_a_bare_one },
    Attack { name: "many_descriptors", words: "2 descriptors", act: send_two },
    Attack { name: "huge_region", words: "not whole pages", act: send_a_huge_region },
    Attack { name: "overlapping_regions", words: "overlap", act: send_overlapping_regions },
    Attack { name: "region_beyond_the_file", words: "of a memory file of", act: send_beyond },
    Attack { name: "memory_of_none", words: "does not serve its memory", act: send_no_memory },
    Attack { name: "half_a_message", words: "the connection broke", act: send_half },
];

pub(crate) fn trials() -> Vec<Trial> {
    let trial = |attack: &'static Attack| {
        Trial::test(format!("hostile::vmm_that_sends_{}_is_refused", attack.name), || {
            check(attack);
            Ok::<(), Failed>(())
        })
    };
    let mut trials: Vec<Trial> = ATTACKS.iter().map(trial).collect();
    trials.push(Trial::ignorable_test(
        "hostile::vmm_of_another_user_is_refused_unless_named",
        || {
            if !rustix::process::geteuid().is_root() {
                return Ok(Completion::ignored_with("root starts a VMM as another user"));
            }
            other_users();
            Ok(Completion::Completed)
        },
    ));
    trials.push(Trial::test("hostile::silent_vmms_keep_no_other_waiting", || {
        silent_vmms();
        Ok::<(), Failed>(())
    }));
    trials
}

fn check(attack: &Attack) {
    let fixture = Fixture::new(LEN);
    (attack.act)(UnixStream::connect(&fixture.pager.socket).unwrap());
    let line = fixture.pager.await_line("refused");
    assert!(line.contains(attack.words), "{line}");
    fixture.check(&mut fixture.vm(), None);
}

fn silent_vmms() {
    let fixture = Fixture::new(LEN);
    let connect = |_| UnixStream::connect(&fixture.pager.socket).unwrap();
    let silent: Vec<_> = (0..50).map(connect).collect();
    let mut vm = fixture.vm();
    vm.serial.ask(Request::Reply).unwrap();
    fixture.check(&mut vm, None);
    drop(silent);
}

fn other_users() {
    const NAMED: u32 = 60_001;
    const OTHER: u32 = 60_002;
    let fixture = Fixture::with(LEN, |options| Options { users: vec![NAMED], ..options });
    std::fs::set_permissions(fixture.folder(), Permissions::from_mode(0o755)).unwrap();
    let (folder, socket) = (fixture.folder(), &fixture.pager.socket);
    let start = |user| SmallVmm::start_as(user, folder, socket, &[LEN]).unwrap();
    let other = start(OTHER);
    let line = fixture.pager.await_line("refused");
    assert!(
        line.contains(&format!("{}: refused: it belongs to user {OTHER}", other.pid())),
        "{line}"
    );
    drop(other);
    fixture.check(&mut start(NAMED), None);
}

fn region(start: u64, size: u64, offset: u64) -> Value {
    json!({"base_host_virt_addr": start, "size": size, "offset": offset, "page_size": 4096})
}

fn send_garbage(mut to: UnixStream) {
    send(&to, &json!({"hello": 1}), &open_userfaultfd());
    let _ = to.write_all(b"\xff\xff");
}

fn send_no_descriptor(to: UnixStream) {
    send_handshake(&to, &json!([region(1 << 30, 4096, 0)]), None).unwrap();
}

fn send_a_file(to: UnixStream) {
    send(&to, &json!([region(1 << 30, 4096, 0)]), &File::open("/dev/null").unwrap());
}

fn send_a_bare_one(to: UnixStream) {
    let bare = userfaultfd::new_user_mode_only().unwrap();
    send(&to, &json!([region(1 << 30, 4096, 0)]), &bare);
}

fn send_two(to: UnixStream) {
    for _ in 0..2 {
        // Not a whole list yet after the first one.
        let file = File::open("/dev/null").unwrap();
        let part = Value::String("x".to_owned());
        let mut text = to.try_clone().unwrap();
        let _ = text.write_all(b"[");
        send(&to, &part, &file);
    }
}

fn send_a_huge_region(to: UnixStream) {
    send(&to, &json!([region(1 << 30, 1 << 62, 0)]), &open_userfaultfd());
}

fn send_overlapping_regions(to: UnixStream) {
    let regions = json!([region(1 << 30, 8192, 0), region((1 << 30) + 4096, 4096, 8192)]);
    send(&to, &regions, &open_userfaultfd());
}

fn send_beyond(to: UnixStream) {
    send(&to, &json!([region(1 << 30, 8192, LEN - 4096)]), &open_userfaultfd());
}

/// Addresses at which nothing is mapped.
fn send_no_memory(to: UnixStream) {
    send(&to, &json!([region(1 << 30, 4096, 0)]), &open_userfaultfd());
}

fn send_half(mut to: UnixStream) {
    to.write_all(b"[{\"base_host_virt_addr\":").unwrap();
}

fn send(to: &UnixStream, message: &Value, descriptor: &impl AsFd) {
    send_handshake(to, message, Some(descriptor.as_fd())).unwrap();
}

fn open_userfaultfd() -> OwnedFd {
    let opened = userfaultfd::new_user_mode_only().unwrap();
    userfaultfd::enable(&opened, 1 << 3).unwrap();
    opened
}
