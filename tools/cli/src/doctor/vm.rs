//! Lines about a process that runs a VM.

use hugekit_doctor::{Line, Topic, Verdict};
use hugekit_sys::error_chain;
use hugekit_vm::checkpoint::VmProspects;

const TOPIC: Topic = Topic("virtual machine");

/// No lines of a process without a VM.
pub(super) fn lines(pid: i32) -> Vec<Line> {
    VmProspects::of(pid).ok().flatten().map_or_else(Vec::new, |found| lines_of(&found))
}

fn lines_of(found: &VmProspects) -> Vec<Line> {
    let save = match &found.save {
        Ok(()) if found.keeps_layout => {
            line(Verdict::Ok, "checkpoint, fork", "the VM can be saved".to_owned(), None)
        }
        Ok(()) => {
            let value =
                "the VM can be saved if its regions follow from its size: it keeps no layout";
            let remedy = "restore it by hugekit pager or hugekit clone: they keep it";
            line(Verdict::Limited, "checkpoint, fork", value.to_owned(), Some(remedy))
        }
        Err(error) => {
            let value = error_chain(error).to_string();
            line(Verdict::Missing, "checkpoint, fork", value, error.remedy())
        }
    };
    let huge_pages = match &found.huge_pages {
        Ok(()) => line(Verdict::Ok, "huge pages", "its memory can be collapsed".to_owned(), None),
        Err(error) => {
            let value = error_chain(error).to_string();
            line(Verdict::Missing, "huge pages", value, Some(error.remedy()))
        }
    };
    vec![save, huge_pages]
}

fn line(verdict: Verdict, name: &str, value: String, remedy: Option<&str>) -> Line {
    let (name, remedy) = (name.to_owned(), remedy.map(str::to_owned));
    Line { topic: TOPIC, name, value, verdict, remedy }
}
