//! `hugekit doctor --json` of a guest, held against what the table says that the guest is.

use serde_json::Value;

use super::machine::{Machine, Rights};

/// Where the doctor does not say what the table says.
pub(super) fn differences(machine: &Machine, release: &str, printed: &str) -> Vec<String> {
    let said: Value = match serde_json::from_str(printed) {
        Ok(said) => said,
        Err(error) => return vec![format!("the doctor's record cannot be read: {error}")],
    };
    let number = |name: &str| said["machine"][name].as_u64();
    let mut found = Vec::new();
    let mut expect = |what: &str, is: bool, says: String| {
        if !is {
            found.push(format!("{what}: the doctor says {says}"));
        }
    };
    let kernel = said["machine"]["kernel"].as_str();
    expect(&format!("kernel {release}"), kernel == Some(release), format!("{kernel:?}"));
    for (name, wanted) in [("online_cpus", machine.cpus), ("nodes", machine.nodes)] {
        let says = number(name);
        expect(&format!("{name} {wanted}"), says == Some(wanted as u64), format!("{says:?}"));
    }
    let memory = number("memory_bytes").unwrap_or_default();
    let all = (machine.mib as u64) << 20;
    // What the firmware, the kernel and its tables of pages take is not memory to it.
    let plausible = (all / 4 * 3..=all).contains(&memory);
    expect(&format!("{} MiB", machine.mib), plausible, format!("{memory} bytes"));
    let total = value(&said, "memory", "total").unwrap_or_default();
    let swaps = !total.ends_with("no swap");
    expect(
        &format!("{} MiB of swap", machine.swap_mib),
        swaps == (machine.swap_mib > 0),
        total.to_owned(),
    );
    for (topic, name, begins) in lines(machine) {
        let value = value(&said, topic, name);
        let is = value.is_some_and(|value| value.starts_with(&begins));
        expect(&format!("{topic}, {name}: {begins}"), is, format!("{value:?}"));
    }
    found
}

fn value<'a>(said: &'a Value, topic: &str, name: &str) -> Option<&'a str> {
    let lines = said["lines"].as_array()?;
    let line = lines.iter().find(|line| line["topic"] == topic && line["name"] == name)?;
    line["value"].as_str()
}

/// Lines that the doctor must have, and how their values begin.
fn lines(machine: &Machine) -> Vec<(&'static str, &'static str, String)> {
    let mut lines = vec![
        ("transparent huge pages", "anonymous memory", machine.thp.to_owned()),
        ("transparent huge pages", "shared memory", machine.shmem_thp.to_owned()),
    ];
    for (name, pages) in
        [("2 MiB", machine.reserved.pages_2m), ("1 GiB", machine.reserved.pages_1g)]
    {
        if pages > 0 {
            lines.push(("huge pages", name, format!("{pages} pages")));
        }
    }
    let uses = match machine.rights {
        Rights::Root => "whole",
        Rights::User => "user mode only",
        Rights::NoUserfaultfd => "none",
    };
    lines.push(("userfaultfd", "uses", uses.to_owned()));
    lines
}

#[cfg(test)]
mod tests {
    use super::super::table::MACHINES;
    use super::*;

    /// What the doctor says on the first machine of the table.
    fn said() -> Value {
        let machine = &MACHINES[0];
        let line = |topic, name, value| serde_json::json!({ "topic": topic, "name": name, "value": value });
        serde_json::json!({
            "machine": {
                "kernel": "7.3.4",
                "online_cpus": machine.cpus,
                "nodes": machine.nodes,
                "memory_bytes": (machine.mib << 20) / 10 * 9,
            },
            "lines": [
                line("memory", "total", "1.9 GiB, no swap"),
                line("transparent huge pages", "anonymous memory", "madvise (2 MiB pages)"),
                line("transparent huge pages", "shared memory", "advise"),
                line("userfaultfd", "uses", "whole: faults of user code, system calls and KVM"),
            ],
        })
    }

    #[test]
    fn doctor_that_says_what_the_table_says_differs_in_nothing() {
        assert!(differences(&MACHINES[0], "7.3.4", &said().to_string()).is_empty());
    }

    #[test]
    fn each_wrong_word_of_the_doctors_is_a_difference() {
        let machine = &MACHINES[0];
        for (path, wrong) in [
            ("/machine/kernel", "6.1".into()),
            ("/machine/online_cpus", 3.into()),
            ("/machine/nodes", 9.into()),
            ("/machine/memory_bytes", 1.into()),
            ("/lines/0/value", "1.9 GiB, 1 GiB of swap".into()),
            ("/lines/1/value", "never".into()),
            ("/lines/3/value", Value::Null),
        ] {
            let mut said = said();
            *said.pointer_mut(path).unwrap() = wrong;
            assert_eq!(differences(machine, "7.3.4", &said.to_string()).len(), 1, "{path}");
        }
        assert_eq!(differences(machine, "7.3.4", "no record").len(), 1);
    }
}
