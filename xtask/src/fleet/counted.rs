//! Records of the lab from a guest whose clock counts instructions: its times are counts.
//!
//! The emulator counts each step of a repeated string instruction, such as the `rep stosq` that clears a page by words of
//! 8 bytes; a CPU counts one. The steps that clear a page are taken out of what one page costs.

use std::collections::BTreeSet;
use std::fmt::Write;

use anyhow::{Context, Result};
use serde_json::{Value, json};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Cases of page faults, and the size of their pages.
const PAGES: [(&str, u64); 5] = [
    ("demand/kernel-4k/1GiB", 4 * KIB),
    ("demand/kernel-thp/2MiB", 2 * MIB),
    ("demand/kernel-hugetlb/2MiB", 2 * MIB),
    ("demand/kernel-hugetlb/1GiB", 2 * MIB),
    ("demand/kernel-hugetlb-1g/1GiB", GIB),
];

/// The beginnings of cases in which the kernel forks, or changes mappings for a fork.
const KERNELS_FORKS: [&str; 2] = ["fork/fork2", "fork/region"];

/// Bytes that one step of `rep stosq` clears.
const STEP: f64 = 8.0;

/// A case whose samples are instructions, or page faults.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CountedCase {
    id: String,
    samples: Vec<f64>,
}

impl CountedCase {
    fn median(&self) -> f64 {
        let mut samples = self.samples.clone();
        samples.sort_by(f64::total_cmp);
        samples[samples.len() / 2]
    }
}

/// Changes a record's times into instructions, and leaves out the cases that measure speed.
pub(super) fn in_instructions(record: &str) -> Result<(String, Vec<CountedCase>)> {
    let mut record: Value = serde_json::from_str(record).context("not a record of the lab")?;
    let mut all = Vec::new();
    let experiments = record["experiments"].as_array_mut().context("a record has experiments")?;
    for experiment in experiments {
        let cases = experiment["cases"].as_array().context("an experiment has cases")?;
        let counted: Vec<_> = cases.iter().filter_map(counted).collect();
        experiment["cases"] = counted.iter().map(|(case, _)| case.clone()).collect();
        all.extend(counted.into_iter().map(|(_, counted)| counted));
        for of_times in ["ratios", "distributions", "elsewhere"] {
            if experiment.get(of_times).is_some() {
                experiment[of_times] = json!([]);
            }
        }
    }
    Ok((format!("{record:#}\n"), all))
}

fn counted(case: &Value) -> Option<(Value, CountedCase)> {
    let (id, unit) = (case["id"].as_str()?, case["unit"].as_str()?);
    let samples = case["samples"].as_array()?.iter().map(Value::as_f64);
    let samples = samples.map(|sample| count(id, unit, sample?)).collect::<Option<Vec<f64>>>()?;
    let unit = if unit == "faults" { unit } else { "instructions" };
    let counted = CountedCase { id: id.to_owned(), samples };
    let median = counted.median();
    Some((json!({"id": id, "unit": unit, "median": median, "samples": counted.samples}), counted))
}

/// Instructions of one fork, or of one page that is touched; faults.
fn count(id: &str, unit: &str, sample: f64) -> Option<f64> {
    let page = PAGES.iter().find(|(of, _)| *of == id).map(|(_, page)| *page as f64);
    match (unit, page) {
        ("faults", _) => Some(sample),
        ("GiB/s", Some(page)) => Some((1e9 / sample * page / GIB as f64 - page / STEP).round()),
        // With one CPU, no other thread can be busy. What does not call the kernel is the same on each.
        ("µs", _)
            if KERNELS_FORKS.iter().any(|of| id.starts_with(of)) && !id.ends_with("-busy") =>
        {
            Some((sample * 1e3).round())
        }
        _ => None,
    }
}

/// The medians of each case, a column for each kernel.
pub(super) fn table(kernels: &[(String, Vec<CountedCase>)]) -> String {
    let mut table = "| case |".to_owned();
    for (kernel, _) in kernels {
        table += &format!(" {kernel} |");
    }
    table += "\n| --- |";
    table += &" ---: |".repeat(kernels.len());
    let mut seen = BTreeSet::new();
    let cases = kernels.iter().flat_map(|(_, cases)| cases).map(|case| &case.id);
    for id in cases.filter(|id| seen.insert(*id)) {
        let _ = write!(table, "\n| `{id}` |");
        for (_, cases) in kernels {
            let case = cases.iter().find(|case| case.id == *id);
            let _ =
                write!(table, " {} |", case.map_or("–".to_owned(), |case| grouped(case.median())));
        }
    }
    table + "\n"
}

/// With a comma between thousands.
fn grouped(count: f64) -> String {
    let digits = format!("{count:.0}");
    let (sign, digits) = digits.strip_prefix('-').map_or(("", &*digits), |digits| ("-", digits));
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).expect("digits"))
        .collect();
    sign.to_owned() + &groups.join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(cases: &[(&str, &str, &[f64])]) -> String {
        let cases: Vec<_> = cases
            .iter()
            .map(|(id, unit, samples)| json!({"id": id, "unit": unit, "median": 0, "samples": samples}))
            .collect();
        json!({"experiments": [{"name": "x", "cases": cases, "ratios": [1]}]}).to_string()
    }

    #[test]
    fn times_become_instructions_and_speeds_are_left_out() {
        // 512 pages of 2 MiB in a second: 1,953,125 instructions each, of which 262,144 are steps.
        let (text, cases) = in_instructions(&record(&[
            ("demand/kernel-hugetlb/1GiB", "GiB/s", &[1.0]),
            ("demand/dirty/1GiB", "GiB/s", &[1.0]),
            ("fork/fork2-4k/1GiB", "µs", &[35742.0, 35742.5, 35741.0]),
            ("fork/fork2-4k/1GiB-busy", "µs", &[1.0]),
            ("demand/program-faults/x", "faults", &[7.0]),
        ]))
        .unwrap();
        let medians: Vec<_> = cases.iter().map(|case| (&*case.id, case.median())).collect();
        let expected = [
            ("demand/kernel-hugetlb/1GiB", 1_690_981.0),
            ("fork/fork2-4k/1GiB", 35_742_000.0),
            ("demand/program-faults/x", 7.0),
        ];
        assert_eq!(medians, expected);
        let text: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(text["experiments"][0]["cases"][1]["unit"], "instructions");
        assert_eq!(text["experiments"][0]["ratios"], json!([]));
        in_instructions("{}").unwrap_err();
    }

    #[test]
    fn kernels_are_columns_and_a_case_that_one_lacks_is_a_dash() {
        let case = |id: &str, count| CountedCase { id: id.to_owned(), samples: vec![count] };
        let kernels = [
            ("6.1".to_owned(), vec![case("a", 1_234_567.0)]),
            ("7.0".to_owned(), vec![case("a", 12.0), case("b", -1234.0)]),
        ];
        let expected = "| case | 6.1 | 7.0 |\n| --- | ---: | ---: |\n| `a` | 1,234,567 | 12 |\n| `b` | – | -1,234 |\n";
        assert_eq!(table(&kernels), expected);
    }
}
