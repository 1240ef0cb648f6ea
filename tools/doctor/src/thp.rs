//! Transparent huge pages. The policy of the processor's page size may overrule the global one.

use hugekit::error_chain;
use hugekit_machine::Error;
use hugekit_machine::process::Process;

use crate::facts::Facts;
use crate::facts::pool_pages::PoolPages;
use crate::facts::thp::{Choice, Defrag, Enabled, Khugepaged, PageSize, Setting, Shmem, Thp};
use crate::line::{Line, Topic};
use crate::units;

const TOPIC: Topic = Topic("transparent huge pages");
const DIRECTORY: &str = "/sys/kernel/mm/transparent_hugepage";

pub(crate) fn lines(facts: &Facts) -> Vec<Line> {
    let mut lines = vec![
        about("anonymous memory", &facts.thp, |thp| {
            anonymous_line(thp, size_policy(&facts.page_sizes, thp.page_size))
        }),
        about("shared memory", &facts.shmem, |shmem| {
            let page_size =
                facts.thp.as_ref().map_or(hugekit::HUGE_PAGE_BYTES as u64, |thp| thp.page_size);
            let policy =
                SharedPolicy::of(shmem, size_policy(&facts.page_sizes, page_size), page_size);
            shared_line(&policy, facts.pool_pages.as_ref())
        }),
        about("defrag", &facts.defrag, defrag_line),
        about("khugepaged", &facts.khugepaged, khugepaged_line),
    ];
    lines.extend(size_lines(&facts.page_sizes));
    lines.extend(facts.process.as_ref().ok().and_then(process_line));
    lines
}

/// A file that is not there means a kernel without the feature.
fn about<T>(name: &str, fact: &Result<T, Error>, judge: impl FnOnce(&T) -> Line) -> Line {
    match fact {
        Err(error) if error.is_not_found() => TOPIC
            .missing(name, error_chain(error).to_string())
            .remedy("needs a kernel with CONFIG_TRANSPARENT_HUGEPAGE=y"),
        fact => TOPIC.about(name, fact, judge),
    }
}

fn size_policy(sizes: &Result<Vec<PageSize>, Error>, bytes: u64) -> Option<&PageSize> {
    sizes.as_ref().ok()?.iter().find(|size| size.bytes == bytes)
}

fn anonymous_line(thp: &Thp, size: Option<&PageSize>) -> Line {
    let own = size.and_then(|size| size.enabled.as_ref()).map(|setting| setting.current);
    let (choice, file) = match own {
        Some(own) if own != Enabled::Inherit => (own, size_file(thp.page_size, "enabled")),
        _ => (thp.enabled.current, format!("{DIRECTORY}/enabled")),
    };
    let value = format!("{} ({} pages)", choice.word(), units::bytes(thp.page_size));
    match choice {
        Enabled::Never => {
            TOPIC.missing("anonymous memory", value).remedy(format!("echo madvise > {file}"))
        }
        _ => TOPIC.ok("anonymous memory", value),
    }
}

/// The policy for shared memory of the processor's page size, and the file that sets it.
struct SharedPolicy {
    choice: Shmem,
    file: String,
}

impl SharedPolicy {
    fn of(global: &Setting<Shmem>, size: Option<&PageSize>, page_size: u64) -> Self {
        let own = size.and_then(|size| size.shmem.as_ref()).map(|setting| setting.current);
        match (global.current, own) {
            (Shmem::Deny | Shmem::Force, _) | (_, None | Some(Shmem::Inherit)) => {
                Self { choice: global.current, file: format!("{DIRECTORY}/shmem_enabled") }
            }
            (_, Some(own)) => Self { choice: own, file: size_file(page_size, "shmem_enabled") },
        }
    }

    fn remedy(&self) -> String {
        format!("echo advise > {}", self.file)
    }
}

/// A pool's pages are a fact of this machine. Of a machine that is described by files, only the policy is known.
fn shared_line(policy: &SharedPolicy, pages: Option<&PoolPages>) -> Line {
    const NAME: &str = "shared memory";
    let value = |pages: &str| format!("{}: {pages}", policy.choice.word());
    match (policy.choice, pages) {
        (_, Some(PoolPages::Huge)) => TOPIC.ok(NAME, policy.choice.word()),
        (_, Some(PoolPages::Collapsed)) => TOPIC
            .limited(NAME, value("pools collapse base pages into huge ones, which takes longer"))
            .remedy(policy.remedy()),
        (choice, Some(PoolPages::Base(refused))) => {
            let remedy = match choice {
                Shmem::Never | Shmem::Deny => Some(policy.remedy()),
                _ => refused.remedy(),
            };
            let reason = error_chain(refused);
            let line = TOPIC.missing(NAME, value(&format!("pools get base pages: {reason}")));
            Line { remedy, ..line }
        }
        (Shmem::Deny, None) => {
            TOPIC.missing(NAME, value("pools get base pages")).remedy(policy.remedy())
        }
        (Shmem::Never, None) => TOPIC
            .limited(
                NAME,
                value("pools get huge pages only if MADV_COLLAPSE makes them (Linux 6.1)"),
            )
            .remedy(policy.remedy()),
        (choice, None) => TOPIC.ok(NAME, choice.word()),
    }
}

fn size_file(bytes: u64, name: &str) -> String {
    format!("{DIRECTORY}/hugepages-{}kB/{name}", bytes >> 10)
}

fn defrag_line(setting: &Setting<Defrag>) -> Line {
    let word = setting.current.word();
    match setting.current {
        Defrag::Never | Defrag::Defer => TOPIC
            .limited("defrag", format!("{word}: faults take base pages when no huge page is free"))
            .remedy(format!("echo madvise > {DIRECTORY}/defrag")),
        _ => TOPIC.ok("defrag", word),
    }
}

fn khugepaged_line(settings: &Khugepaged) -> Line {
    let Khugepaged { defrag, max_ptes_none, scan_sleep_ms } = settings;
    let defrag = if *defrag { "on" } else { "off" };
    let value = format!("defrag {defrag}, max_ptes_none {max_ptes_none}, every {scan_sleep_ms} ms");
    TOPIC.ok("khugepaged", value)
}

/// Neighbouring sizes of the same policy share a line.
fn size_lines(sizes: &Result<Vec<PageSize>, Error>) -> Vec<Line> {
    match sizes {
        Ok(sizes) => sizes.chunk_by(|a, b| policy(a) == policy(b)).map(sizes_line).collect(),
        Err(error) if error.is_not_found() => Vec::new(),
        Err(error) => vec![TOPIC.unknown("page sizes", error_chain(error))],
    }
}

fn policy(size: &PageSize) -> (Option<Enabled>, Option<Shmem>) {
    let enabled = size.enabled.as_ref().map(|setting| setting.current);
    (enabled, size.shmem.as_ref().map(|setting| setting.current))
}

fn sizes_line(sizes: &[PageSize]) -> Line {
    let (first, last) = (&sizes[0], &sizes[sizes.len() - 1]);
    let name = match sizes.len() {
        1 => units::bytes(first.bytes),
        _ => format!("{} to {}", units::bytes(first.bytes), units::bytes(last.bytes)),
    };
    let (enabled, shmem) = policy(first);
    let anonymous = enabled.map(|choice| format!("anonymous {}", choice.word()));
    let shared = shmem.map(|choice| format!("shared {}", choice.word()));
    let value: Vec<String> = anonymous.into_iter().chain(shared).collect();
    TOPIC.ok(name, value.join(", "))
}

fn process_line(process: &Process) -> Option<Line> {
    let value = "huge pages are disabled for it and its children (PR_SET_THP_DISABLE)";
    let remedy = "start it from a parent that did not call prctl(PR_SET_THP_DISABLE, 1)";
    (!process.thp_allowed).then(|| TOPIC.missing("this process", value).remedy(remedy))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::line::Verdict;
    use hugekit::PoolError;

    fn set<T>(current: T) -> Setting<T> {
        Setting { current, offered: Vec::new() }
    }

    fn size(bytes: u64, enabled: Option<Enabled>, shmem: Option<Shmem>) -> PageSize {
        PageSize { bytes, enabled: enabled.map(set), shmem: shmem.map(set) }
    }

    fn thp(enabled: Enabled) -> Thp {
        Thp { enabled: set(enabled), page_size: 2 << 20 }
    }

    #[test]
    fn the_size_overrules_the_global_policy_unless_it_inherits() {
        let inherits = size(2 << 20, Some(Enabled::Inherit), None);
        let never = size(2 << 20, Some(Enabled::Never), None);
        let verdict = |global, size| anonymous_line(&thp(global), size).verdict;
        assert_eq!(verdict(Enabled::Never, None), Verdict::Missing);
        assert_eq!(verdict(Enabled::Madvise, Some(&inherits)), Verdict::Ok);
        let line = anonymous_line(&thp(Enabled::Always), Some(&never));
        assert_eq!(line.verdict, Verdict::Missing);
        assert!(line.remedy.unwrap().ends_with("hugepages-2048kB/enabled"));
    }

    #[test]
    fn deny_overrules_every_size() {
        let always = size(2 << 20, None, Some(Shmem::Always));
        let verdict = |global, size| {
            shared_line(&SharedPolicy::of(&set(global), size, 2 << 20), None).verdict
        };
        assert_eq!(verdict(Shmem::Deny, Some(&always)), Verdict::Missing);
        assert_eq!(verdict(Shmem::Never, Some(&always)), Verdict::Ok);
        assert_eq!(verdict(Shmem::Never, None), Verdict::Limited);
        assert_eq!(verdict(Shmem::Advise, None), Verdict::Ok);
    }

    #[test]
    fn pages_of_a_pool_overrule_the_policy() {
        let line = |choice, pages| {
            shared_line(&SharedPolicy::of(&set(choice), None, 2 << 20), Some(&pages))
        };
        assert_eq!(line(Shmem::Never, PoolPages::Huge).verdict, Verdict::Ok);
        let collapsed = line(Shmem::Never, PoolPages::Collapsed);
        assert_eq!(collapsed.verdict, Verdict::Limited);
        assert!(collapsed.remedy.unwrap().starts_with("echo advise > "));
        let refused = || PoolPages::Base(PoolError::NoThp { reason: "EINVAL".to_owned() });
        for choice in [Shmem::Never, Shmem::Deny, Shmem::Advise] {
            let base = line(choice, refused());
            assert_eq!(base.verdict, Verdict::Missing);
            assert!(
                base.value.contains("base pages") && base.value.ends_with("EINVAL"),
                "{base:?}"
            );
            assert!(base.remedy.unwrap().starts_with("echo advise > "));
        }
    }

    #[test]
    fn sizes_of_one_policy_share_a_line() {
        let never = |kib: u64| size(kib << 10, Some(Enabled::Never), Some(Shmem::Never));
        let sizes = vec![never(16), never(32), size(2 << 20, Some(Enabled::Inherit), None)];
        let lines = size_lines(&Ok(sizes));
        assert_eq!(lines[0].name, "16 KiB to 32 KiB");
        assert_eq!(lines[0].value, "anonymous never, shared never");
        assert_eq!(
            (lines[1].name.as_str(), lines[1].value.as_str()),
            ("2 MiB", "anonymous inherit")
        );
    }

    #[test]
    fn waiting_for_a_huge_page_is_wanted() {
        assert_eq!(defrag_line(&set(Defrag::Never)).verdict, Verdict::Limited);
        assert_eq!(defrag_line(&set(Defrag::DeferMadvise)).verdict, Verdict::Ok);
    }

    #[test]
    fn a_kernel_without_thp_is_not_unreadable() {
        let absent = std::io::ErrorKind::NotFound.into();
        let fact: Result<Thp, Error> =
            Err(Error::Unreadable { path: DIRECTORY.into(), source: absent });
        let line = about("anonymous memory", &fact, |_| unreachable!());
        assert_eq!(line.verdict, Verdict::Missing);
    }
}
