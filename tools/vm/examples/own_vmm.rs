//! A VMM that is not Firecracker, and speaks its protocol: its guests are saved, restored and
//! forked across processes, while they run.
//!
//! ```sh
//! cargo run --release -p hugekit-vm --example own_vmm
//! ```
//!
//! A guest computes in all of its memory, so that each number depends on all before it. It is saved
//! while it runs, forked twice, and restored from what was saved. Each is in a process of its own,
//! and has to end exactly as a twin that was never paused.

#[cfg(target_arch = "x86_64")]
#[path = "../../../proof/vmm-examples/examples/common/mod.rs"]
mod common;
#[cfg(target_arch = "x86_64")]
#[path = "own_vmm/machine.rs"]
mod machine;
#[cfg(target_arch = "x86_64")]
#[path = "own_vmm/memory.rs"]
mod memory;
#[cfg(target_arch = "x86_64")]
#[path = "own_vmm/server.rs"]
mod server;

#[cfg(not(target_arch = "x86_64"))]
fn main() {
    println!("skipped: the guest's program is for x86-64");
}

#[cfg(target_arch = "x86_64")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|argument| argument == server::ARGUMENT) {
        return server::serve(arguments.next().ok_or("no socket")?.as_ref());
    }
    match kvm_ioctls::Kvm::new() {
        Ok(kvm) => family::run(&kvm),
        Err(error) => {
            println!("skipped: /dev/kvm cannot be opened: {error}");
            Ok(())
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod family {
    use std::error::Error;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;
    use std::path::{Path, PathBuf};
    use std::process::{Child, Command};
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    use hugekit_vm::api::{connect, send};
    use hugekit_vm::checkpoint::{
        CheckpointOptions, ChildOptions, ForkOptions, RunningVm, checkpoint, fork,
    };
    use hugekit_vm::pager::{Event, Pager, PagerOptions, Source};
    use kvm_ioctls::Kvm;
    use serde_json::{Value, json};

    use crate::common::anonymous::Anonymous;
    use crate::common::computing::{ENDED, PROGRAM};
    use crate::common::guest::{Guest, Program, Report};
    use crate::machine::{BYTES, new_guest, write_state};
    use crate::server;

    const LONGEST_WAIT: Duration = Duration::from_secs(600);

    /// A VMM, which is killed when this is dropped.
    struct Vmm {
        process: Child,
        api: PathBuf,
    }

    impl Drop for Vmm {
        fn drop(&mut self) {
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }

    pub(super) fn run(kvm: &Kvm) -> Result<(), Box<dyn Error>> {
        let program = Program::new(&PROGRAM)?;
        let mut twin = new_guest(kvm, Anonymous::on_huge_pages(BYTES)?, &program)?;
        let folder = tempfile::tempdir()?;
        let [state, memory] = ["state", "memory"].map(|name| folder.path().join(name));
        write_state(&twin.registers()?, 0, &state)?;
        File::create(&memory)?.set_len(BYTES as u64)?;
        let parent = restored(folder.path(), "parent", &state, &memory)?;

        let saved = folder.path().join("saved");
        let vm = RunningVm::new(parent.api.clone());
        let report = checkpoint(&CheckpointOptions::new(vm.clone(), saved.clone()))?;
        println!("saved: {report}");
        let children = ["one", "other"].map(|name| child(folder.path(), name));
        let apis = children.clone().map(|child| child.api);
        let forked = fork(&ForkOptions::new(vm, children.to_vec()))?;
        println!("{}", forked.report);
        let programs = forked.programs.into_iter().zip(apis);
        let mut family: Vec<Vmm> = programs.map(|(process, api)| Vmm { process, api }).collect();
        family.push(parent);
        let (state, memory) = (saved.join("vmstate"), saved.join("memory"));
        family.push(restored(folder.path(), "restored", &state, &memory)?);

        let expected = end_of(&mut twin)?;
        for vmm in &family {
            let found = await_end(vmm)?;
            if found != expected {
                return Err(format!("{found:#x} is the end, and not {expected:#x}").into());
            }
        }
        println!("{} guests ended exactly as one that was never paused", family.len());
        Ok(())
    }

    fn end_of(guest: &mut Guest<Anonymous>) -> Result<u32, Box<dyn Error>> {
        loop {
            if let Report { at: ENDED, word } = guest.run()? {
                return Ok(word);
            }
        }
    }

    fn child(folder: &Path, name: &str) -> ChildOptions {
        let (api, program) = (folder.join(name), std::env::current_exe().unwrap_or_default());
        let command = vec![program.into(), server::ARGUMENT.into(), api.clone().into()];
        ChildOptions::new(command, api)
    }

    /// A VM that runs, and whose pager has left it.
    fn restored(
        folder: &Path,
        name: &str,
        state: &Path,
        memory: &Path,
    ) -> Result<Vmm, Box<dyn Error>> {
        let ChildOptions { command, api, .. } = child(folder, name);
        let process = Command::new(&command[0]).args(&command[1..]).spawn()?;
        let vmm = Vmm { process, api };
        let until = Instant::now() + LONGEST_WAIT;
        while connect(&vmm.api).is_err() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
        let socket = folder.join(format!("{name}.pager"));
        let options = PagerOptions { record: Duration::ZERO, ..PagerOptions::default() };
        let pager = Pager::start(&socket, options, Source::open(memory)?)?;
        let (stop, stopper) = UnixStream::pair()?;
        let (sender, events) = mpsc::channel();
        let pager =
            thread::spawn(move || pager.run(stop.as_fd(), &|event| drop(sender.send(event))));
        let backend = json!({"backend_type": "Uffd", "backend_path": socket});
        let body = json!({"snapshot_path": state, "mem_backend": backend, "resume_vm": true});
        let answer = send(&vmm.api, "PUT", "/snapshot/load", Some(&body))?.wait()?;
        if !answer.is_success() {
            return Err(answer.body.into());
        }
        while !matches!(events.recv_timeout(LONGEST_WAIT)?, Event::Complete(_)) {}
        drop(stopper);
        pager.join().map_err(|_| "the pager panicked")??;
        Ok(vmm)
    }

    fn await_end(vmm: &Vmm) -> Result<u32, Box<dyn Error>> {
        let until = Instant::now() + LONGEST_WAIT;
        loop {
            let answer = send(&vmm.api, "GET", "/", None)?.wait()?;
            let body: Value = serde_json::from_str(&answer.body)?;
            match body["end"].as_u64() {
                Some(end) => return Ok(u32::try_from(end)?),
                None if Instant::now() > until => return Err("a guest does not end".into()),
                None => thread::sleep(Duration::from_millis(10)),
            }
        }
    }
}
