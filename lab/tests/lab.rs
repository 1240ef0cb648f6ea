//! The lab's contract on the command line.

use std::io::Read;
use std::process::{Output, Stdio};
use std::sync::Mutex;

use assert_cmd::Command;
use hugekit_testing::trials::{Checks, skip, trials};
use libtest_mimic::Arguments;
use predicates::prelude::*;
use serde_json::Value;

/// Keeps no records: a measurement of a test is no result.
fn lab() -> Command {
    let mut command = Command::cargo_bin("hugekit-lab").unwrap();
    command.env("XDG_DATA_HOME", "/dev/null");
    command
}

/// The least that still measures everything the experiment has to say about small sizes.
fn smallest(experiment: &str) -> Command {
    smallest_of("64MiB", experiment)
}

fn smallest_of(memory: &str, experiment: &str) -> Command {
    let mut command = lab();
    command.args([experiment, "--memory", memory, "--rounds", "2"]);
    command
}

/// A run of a fraction of a second.
fn shortest() -> Command {
    let mut command = smallest("stores");
    command.args(["--routine", "memset"]);
    command
}

fn record(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("standard output holds JSON and nothing else")
}

fn strings<'a>(values: &'a Value, field: &str) -> Vec<&'a str> {
    values.as_array().unwrap().iter().map(|value| value[field].as_str().unwrap()).collect()
}

/// Skips the test if the experiment cannot be measured here. The record has a remedy then.
fn skip_if_skipped(experiment: &Value) {
    let skipped = &experiment["skipped"];
    if *skipped != Value::Null {
        assert!(skipped["remedy"].is_string(), "{skipped}");
        skip(skipped["reason"].as_str().unwrap());
    }
}

/// No figure stands beside a case or ratio as if its workload were the same, and each of these has one whose
/// kernel was another.
fn assert_published_elsewhere_only(experiment: &Value, beside: &[impl AsRef<str>]) {
    for kind in ["cases", "ratios"] {
        for one in experiment[kind].as_array().unwrap() {
            assert_eq!(one["published"], Value::Null, "{one}");
        }
    }
    let elsewhere = experiment["elsewhere"].as_array().unwrap();
    for id in beside {
        let one = elsewhere.iter().find(|one| one["beside"] == id.as_ref()).unwrap();
        let aspects = strings(&one["differs"], "aspect");
        assert!(aspects.contains(&"kernel"), "{one}");
    }
}

fn json_on_standard_output_is_all_there_is() {
    let output = shortest().args(["--json", "-"]).assert().success().get_output().clone();
    let record = record(&output);
    assert_eq!(record["schema"], "hugekit-lab/1");
    assert!(record["command"].as_str().unwrap().starts_with("hugekit lab stores"));
    assert_eq!(record["experiments"][0]["name"], "stores");
    assert_eq!(record["experiments"][0]["skipped"], Value::Null);
}

fn stores_has_every_routine_and_ratio_with_raw_samples() {
    let output = smallest("stores").args(["--json", "-"]).assert().success().get_output().clone();
    let stores = &record(&output)["experiments"][0];
    let cases = strings(&stores["cases"], "id");
    for routine in hugekit_bulk::arch::clear_routines().iter().filter(|r| r.is_available()) {
        assert!(cases.contains(&format!("stores/{}/16MiB", routine.name()).as_str()));
    }
    let ratios = strings(&stores["ratios"], "id");
    let plain = ["4KiB", "64KiB", "1MiB", "2MiB", "16MiB"];
    let read = ["1MiB+read", "2MiB+read", "16MiB+read"];
    for workload in plain.into_iter().chain(read) {
        assert!(ratios.contains(&format!("stores/memset-vs-auto/{workload}").as_str()));
        assert!(ratios.contains(&format!("stores/best-vs-auto/{workload}").as_str()));
    }
    for ratio in stores["ratios"].as_array().unwrap() {
        let read = ratio["id"].as_str().unwrap().ends_with("+read");
        assert!(!read || ratio["like_for_like"] == true, "the reader is counted: {ratio}");
    }
    let by_perf = cases.iter().any(|id| id.starts_with("stores/perf-"));
    let left_out = stores["notices"].to_string().contains("perf bench left out: ");
    let string = hugekit_bulk::arch::clear_routine("rep_stosb").is_some();
    assert!(!string || by_perf != left_out, "{cases:?}");
    for case in stores["cases"].as_array().unwrap() {
        assert_eq!(case["unit"], "GiB/s");
        assert_eq!(case["samples"].as_array().unwrap().len(), 2);
        assert!(case["samples"].as_array().unwrap().iter().all(|s| s.as_f64().unwrap() > 0.0));
    }
}

fn clear_has_every_method_and_what_comes_after() {
    let output = smallest("clear").args(["--json", "-"]).assert().success().get_output().clone();
    let clear = &record(&output)["experiments"][0];
    let ratios = strings(&clear["ratios"], "id");
    for after in ["", "+touch-4KiB", "+touch-64KiB", "+write-all"] {
        for method in ["extents", "converging", "engine"] {
            let id = format!("clear/page-at-a-time-vs-{method}/2MiB{after}");
            assert!(ratios.contains(&id.as_str()), "{id}");
        }
    }
    for ratio in clear["ratios"].as_array().unwrap() {
        assert_eq!(ratio["pairs"], 2);
        assert_eq!(ratio["like_for_like"] == true, ratio["moved"] == Value::Null);
    }
}

fn copies_has_every_routine_cold_and_warm() {
    let output = smallest("copies").args(["--json", "-"]).assert().success().get_output().clone();
    let copies = &record(&output)["experiments"][0];
    let cases = strings(&copies["cases"], "id");
    let ratios = strings(&copies["ratios"], "id");
    let used = ["2MiB-cold+read-copy-4KiB", "2MiB-cold+read-source-4KiB"];
    let plain = ["4KiB-warm", "2MiB-warm", "16MiB-warm", "4KiB-cold", "2MiB-cold", "16MiB-cold"];
    let read = ["1MiB-warm+read", "2MiB-warm+read", "16MiB-warm+read"];
    for workload in plain.into_iter().chain(read).chain(used) {
        for routine in hugekit_bulk::arch::copy_routines().iter().filter(|r| r.is_available()) {
            assert!(cases.contains(&format!("copies/{}/{workload}", routine.name()).as_str()));
        }
        assert!(ratios.contains(&format!("copies/memcpy-vs-auto/{workload}").as_str()));
        assert!(ratios.contains(&format!("copies/best-vs-auto/{workload}").as_str()));
    }
    for order in ["converging", "sectioned"] {
        let id = format!("copies/sequential-vs-{order}/2MiB-touch-64KiB-first");
        assert!(ratios.contains(&id.as_str()), "{ratios:?}");
    }
}

fn learn_has_every_look_beside_libc_the_best_and_the_built_in_choice() {
    let output = smallest("learn").args(["--json", "-"]).assert().success().get_output().clone();
    let learn = &record(&output)["experiments"][0];
    skip_if_skipped(learn);
    let (cases, ratios) = (strings(&learn["cases"], "id"), strings(&learn["ratios"], "id"));
    // A GiB does not fit.
    for workload in ["32MiB", "2MiB-cold"] {
        for method in ["first", "later", "built-in", "memcpy"] {
            assert!(cases.contains(&format!("learn/{method}/{workload}").as_str()), "{cases:?}");
        }
        for methods in ["memcpy-vs-first", "built-in-vs-later", "best-vs-later"] {
            assert!(ratios.contains(&format!("learn/{methods}/{workload}").as_str()), "{ratios:?}");
        }
    }
    assert!(ratios.contains(&"learn/best-vs-second/32MiB"));
    assert!(ratios.contains(&"learn/memset-vs-first/32MiB-clear"));
    let sequence = &learn["sequences"][2];
    assert_eq!(sequence["id"], "learn/2MiB-cold");
    assert_eq!(sequence["calls"].as_array().unwrap().len(), 80);
    assert_eq!(sequence["levels"].as_array().unwrap().len(), 3);
    let notices = learn["notices"].to_string();
    assert!(notices.contains("32MiB instead of 1GiB"), "{notices}");
    assert!(notices.contains("2MiB-cold: in the end by "), "{notices}");
}

fn parallel_compares_threads_with_one_and_a_job_with_a_loop() {
    let output = smallest("parallel").args(["--json", "-"]).assert().success().get_output().clone();
    let parallel = &record(&output)["experiments"][0];
    if std::thread::available_parallelism().unwrap().get() < 2 {
        assert_ne!(parallel["skipped"], Value::Null);
        skip_if_skipped(parallel);
    }
    let ratios = strings(&parallel["ratios"], "id");
    for id in [
        "parallel/serial-vs-threads/clear/2",
        "parallel/serial-vs-threads/copy/2",
        "parallel/serial-vs-threads/populate/2",
        "parallel/plain-threads-vs-job/clear/2",
        "parallel/plain-loop-vs-job/1MiB",
    ] {
        assert!(ratios.contains(&id), "{id}");
    }
    let cases = strings(&parallel["cases"], "id");
    assert!(cases.contains(&"parallel/clear-per-thread/2"));
    assert_published_elsewhere_only(parallel, &["parallel/serial-vs-threads/clear/2"]);
}

fn demand_says_what_moved_and_what_was_left_out() {
    let _reserved = RESERVED_PAGES.lock();
    let output = smallest("demand").args(["--json", "-"]).assert().success().get_output().clone();
    let demand = &record(&output)["experiments"][0];
    let cases = strings(&demand["cases"], "id");
    for id in ["demand/dirty/2MiB", "demand/clean/2MiB", "demand/sustained-region/2MiB"] {
        assert!(cases.contains(&id), "{id}");
    }
    for ratio in demand["ratios"].as_array().unwrap() {
        let id = ratio["id"].as_str().unwrap();
        // Where huge pages happen to be free, a process touches each of them once and twice.
        let moved = id.contains("-vs-clean/") || id.contains("-once-vs-twice-");
        assert_eq!(ratio["like_for_like"], !moved, "{ratio}");
    }
    let notices = demand["notices"].to_string();
    assert!(notices.contains("1GiB left out: it needs 2GiB of memory"), "{notices}");
    assert!(notices.contains("the pool is on "), "{notices}");
}

fn fault_compares_rows_first_faults_and_threads() {
    let _reserved = RESERVED_PAGES.lock();
    let output = smallest("fault").args(["--json", "-"]).assert().success().get_output().clone();
    let fault = &record(&output)["experiments"][0];
    let ratios = strings(&fault["ratios"], "id");
    for id in ["fault/kernel-4k-vs-clean/4KiB", "fault/kernel-4k-first-vs-clean-first/4KiB"] {
        assert!(ratios.contains(&id), "{id}");
    }
    let two = std::thread::available_parallelism().unwrap().get() > 1;
    assert_eq!(ratios.contains(&"fault/one-thread-vs-two/clean"), two);
    for ratio in fault["ratios"].as_array().unwrap() {
        let id = ratio["id"].as_str().unwrap();
        // Cleared earlier; and, where there is a page of 1 GiB, served behind another one.
        let unlike = ["vs-clean", "vs-minor", "vs-prefault", "vs-same-page", "vs-other-page"];
        let moved = unlike.iter().any(|subject| id.contains(subject));
        assert_eq!(ratio["like_for_like"], !moved, "{ratio}");
    }
}

fn fork_compares_tables_by_folio_size_and_says_what_it_left_out() {
    let output = smallest("fork").args(["--json", "-"]).assert().success().get_output().clone();
    let fork = &record(&output)["experiments"][0];
    let ratios = strings(&fork["ratios"], "id");
    let folios = ["4KiB", "16KiB", "32KiB", "64KiB", "128KiB", "256KiB", "512KiB", "1MiB", "2MiB"];
    let mixed = ["mixed-folios", "holes", "pinned", "mixed-dirty", "mixed-uffd"];
    let of = |label: &str| {
        ["unbatched-vs-batched", "unmap-unbatched-vs-batched"]
            .map(|methods| format!("fork/{methods}/{label}"))
    };
    assert_eq!(ratios, folios.into_iter().chain(mixed).flat_map(of).collect::<Vec<_>>());
    for ratio in fork["ratios"].as_array().unwrap() {
        assert_eq!((&ratio["like_for_like"], &ratio["pairs"]), (&true.into(), &2.into()));
    }
    assert_published_elsewhere_only(
        fork,
        &folios.map(|folio| format!("fork/unbatched-vs-batched/{folio}")),
    );
    let notices = fork["notices"].to_string();
    assert!(notices.contains("fork(2) of 1GiB left out, and forks of regions"), "{notices}");
}

fn fork_compares_regions_with_processes_where_there_is_memory() {
    let mut forks = lab();
    forks.args(["fork", "--memory", "2GiB", "--rounds", "2", "--quick", "--json", "-"]);
    let memory = hugekit_machine::Memory::read(&hugekit_machine::Root::default()).unwrap();
    if memory.available < 2 << 30 {
        forks.assert().code(2).stderr(predicate::str::contains("are available"));
        skip("less than 2 GiB of memory are available");
    }
    let output = forks.assert().success().get_output().clone();
    let fork = &record(&output)["experiments"][0];
    let notices = fork["notices"].to_string();
    if notices.contains("fork(2) of 1GiB left out") {
        // Only where there is too little: the kernel's memory and the regions'.
        let available = hugekit_machine::Memory::read(&hugekit_machine::Root::default());
        assert!(available.unwrap().available < 5 << 30, "{notices}");
        skip(notices);
    }
    let ratios = strings(&fork["ratios"], "id");
    let cases = strings(&fork["cases"], "id");
    for busy in ["", "-busy"] {
        let id = format!("fork/fork2-4k-vs-region/1GiB{busy}");
        assert!(ratios.contains(&id.as_str()), "{id}");
        assert!(cases.contains(&format!("fork/fork2-nothing/4KiB{busy}").as_str()));
    }
    for kind in ["", "-fragmented"] {
        assert!(cases.contains(&format!("fork/region-base{kind}/256MiB").as_str()));
    }
    let on = |backing: &str| notices.contains(&format!("region in ratios is region-{backing};"));
    for ratio in fork["ratios"].as_array().unwrap() {
        let id = ratio["id"].as_str().unwrap();
        let alike = match id.strip_prefix("fork/fork2-") {
            None => true,
            Some(rest) if rest.starts_with("hugetlb") => on("hugetlb"),
            Some(rest) if rest.starts_with("thp") => on("thp"),
            Some(_) => on("base"),
        };
        assert_eq!(ratio["like_for_like"], alike, "{ratio}");
    }
}

fn cow_has_writers_in_order_and_at_random_and_single_copies() {
    let _reserved = RESERVED_PAGES.lock();
    let output =
        smallest_of("16MiB", "cow").args(["--json", "-"]).assert().success().get_output().clone();
    let cow = &record(&output)["experiments"][0];
    let cases = strings(&cow["cases"], "id");
    for workload in ["1", "1-random"] {
        for case in ["region", "region-user", "region-system"] {
            assert!(cases.contains(&format!("cow/{case}/{workload}").as_str()), "{cases:?}");
        }
    }
    assert!(cases.iter().any(|id| id.starts_with("cow/parent-write/")), "{cases:?}");
    let notices = cow["notices"].to_string();
    assert!(notices.contains("writers: 1, which read and write 4MiB at a time"), "{notices}");
    let ratios = strings(&cow["ratios"], "id");
    for order in ["converging", "sectioned", "converging-copy", "converging-stores"] {
        assert!(
            ratios.contains(&format!("cow/sequential-vs-{order}/1-first").as_str()),
            "{ratios:?}"
        );
    }
    let reserved = notices.contains("the pool is on hugetlb");
    let orders = |ratio: &&Value| ratio["id"].as_str().unwrap().contains("/sequential-vs-");
    for ratio in cow["ratios"].as_array().unwrap().iter().filter(|ratio| !orders(ratio)) {
        let hugetlb = ratio["id"].as_str().unwrap().contains("hugetlb-vs-");
        assert_eq!(ratio["like_for_like"], hugetlb && reserved, "{ratio}");
    }
}

/// Held by tests that need reserved huge pages: some need nearly all.
static RESERVED_PAGES: Mutex<()> = Mutex::new(());

fn lease_has_all_comparisons_or_says_what_it_lacks() {
    let _reserved = RESERVED_PAGES.lock();
    let mut lab = lab();
    lab.args(["lease", "--memory", "256MiB", "--rounds", "2", "--quick", "--json", "-"]);
    let output = lab.output().unwrap();
    let lease = &record(&output)["experiments"][0];
    if let Some(skipped) = lease["skipped"].as_object() {
        let said = (skipped["reason"].as_str().unwrap(), skipped["remedy"].as_str().unwrap());
        assert!(
            said.0.contains("pages of 2MiB are free") && said.1.contains("--setup"),
            "{said:?}"
        );
        skip(said.0);
    }
    // Other processes may have the pages at that moment.
    if let Some(failures) = lease["failures"].as_array() {
        assert_eq!(output.status.code(), Some(4));
        let is_lack = |failure: &Value| {
            let reason = failure["reason"].as_str().unwrap();
            ["huge pages", "cannot map", "no unit was ready", "populated", "Cannot allocate memory"]
                .iter()
                .any(|lack| reason.contains(lack))
        };
        assert!(failures.iter().all(is_lack), "{failures:?}");
        skip(failures[0]["reason"].as_str().unwrap());
    }
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let ratios = strings(&lease["ratios"], "id");
    let notices = lease["notices"].to_string();
    let expected = [
        ("kernel-vs-lease", ""),
        ("kernel-cpu-vs-refill-cpu", ""),
        ("alone-vs-refilling", "throughput beside a refill left out"),
        ("qemu-prealloc-vs-lease", "QEMU left out"),
        ("qemu-prealloc-2-threads-vs-lease", "QEMU left out"),
        ("qemu-alone-vs-lease", "QEMU left out"),
    ];
    for (methods, unless) in expected {
        let is_left_out = !unless.is_empty() && notices.contains(unless);
        let begins = format!("lease/{methods}/");
        let is_there = ratios.iter().any(|id| id.starts_with(&begins));
        assert!(is_there || is_left_out, "{methods}: {notices}");
    }
    for ratio in lease["ratios"].as_array().unwrap() {
        assert_eq!(ratio["pairs"], 2);
        let alike = ratio["id"] == "lease/kernel-cpu-vs-refill-cpu/1GiB";
        assert_eq!(ratio["like_for_like"], alike, "{ratio}");
    }
}

fn snapshot_watches_a_writer_before_during_and_after() {
    let _reserved = RESERVED_PAGES.lock();
    let output = smallest_of("16MiB", "snapshot")
        .args(["--json", "-"])
        .assert()
        .success()
        .get_output()
        .clone();
    let snapshot = &record(&output)["experiments"][0];
    let cases = strings(&snapshot["cases"], "id");
    let ratios = strings(&snapshot["ratios"], "id");
    // Lines that fit the cache are known where the machine says how large that is.
    let caches = hugekit_machine::cache::read(&hugekit_machine::Root::default());
    let kinds: &[&str] = if caches.is_ok() { &["", "-zipf", "-fitting"] } else { &["", "-zipf"] };
    for kind in kinds {
        for subject in ["region-base", "fork2-4k", "fork2-thp", "anonymous", "anonymous-64k"] {
            for what in ["stall", "throughput", "save", "made", "memory"] {
                let id = format!("snapshot/{subject}/{what}{kind}");
                assert!(cases.contains(&id.as_str()), "{id}: {cases:?}");
            }
        }
        for ratio in ["fork2-4k-vs-anonymous/stall", "fork2-thp-vs-anonymous/throughput"] {
            let id = format!("snapshot/{ratio}{kind}");
            assert!(ratios.contains(&id.as_str()), "{id}: {ratios:?}");
        }
    }
    let calls = ["fork2-vs-anonymous/call-base", "mprotect-vs-anonymous/call-untouched-thp"];
    for id in
        ["memcpy-vs-save/8MiB", "fork2-thp-vs-anonymous-unreserved/stall"].iter().chain(&calls)
    {
        assert!(ratios.contains(&format!("snapshot/{id}").as_str()), "{id}: {ratios:?}");
    }
    for ratio in snapshot["ratios"].as_array().unwrap() {
        let id = ratio["id"].as_str().unwrap();
        let alike = ["fork2-thp-vs-anonymous-unreserved", "fork2-vs-anonymous"];
        let alike = alike.iter().any(|methods| id.starts_with(&format!("snapshot/{methods}/")));
        assert_eq!(ratio["like_for_like"], alike, "{ratio}");
    }
    let events = strings(&snapshot["distributions"], "id");
    assert!(events.contains(&"snapshot/fork2-4k/during"), "{events:?}");
    for timeline in snapshot["timelines"].as_array().unwrap() {
        let (stores, longest) = (&timeline["stores"], &timeline["longest"]);
        let steps = stores.as_array().unwrap().len();
        assert_eq!(longest.as_array().unwrap().len(), steps, "{timeline}");
        assert!(steps as f64 * 5000.0 > timeline["began"].as_f64().unwrap(), "{timeline}");
    }
}

fn tend_forks_programs_that_are_tended_and_such_that_are_not() {
    let arguments = ["tend", "--quick", "--memory", "32MiB", "--rounds", "2", "--json", "-"];
    let output = lab().args(arguments).assert().success().get_output().clone();
    let tend = &record(&output)["experiments"][0];
    skip_if_skipped(tend);
    let (cases, ratios) = (strings(&tend["cases"], "id"), strings(&tend["ratios"], "id"));
    for id in ["plain/fork-2MiB", "tended/fork-2MiB", "khugepaged/fork-2MiB", "tended/rss"] {
        assert!(cases.contains(&format!("tend/{id}").as_str()), "{id}: {cases:?}");
    }
    for id in ["plain-vs-tended/fork-2MiB", "untended-vs-tended/rss"] {
        assert!(ratios.contains(&format!("tend/{id}").as_str()), "{id}: {ratios:?}");
    }
    let notices = tend["notices"].to_string();
    assert!(notices.contains("redis-"), "left out, with what is missing: {notices}");
}

fn redis_saves_in_each_way_that_the_machine_has() {
    let arguments = ["redis", "--quick", "--memory", "16MiB", "--rounds", "2", "--json", "-"];
    let output = lab().args(arguments).assert().success().get_output().clone();
    let redis = &record(&output)["experiments"][0];
    skip_if_skipped(redis);
    let cases = strings(&redis["cases"], "id");
    let notices = redis["notices"].to_string();
    for way in ["stock", "tend", "malloc", "both"] {
        let id = |what: &str| format!("redis/{way}/{what}-16MiB");
        let is_left_out = notices.contains(&format!("{way} and both left out"))
            || way == "both" && notices.contains("and both left out");
        for what in ["fork-first", "fork-later", "wait-at-fork-later", "rss-after-flush"] {
            assert_eq!(cases.contains(&id(what).as_str()), !is_left_out, "{what}: {cases:?}");
        }
    }
    assert!(notices.contains("always left out"), "it changes settings: {notices}");
}

/// The least that restores a guest in every way.
fn quick_restore(temporary: &tempfile::TempDir) -> std::process::Command {
    quick_guests("restore", temporary)
}

fn quick_guests(experiment: &str, temporary: &tempfile::TempDir) -> std::process::Command {
    let mut lab = std::process::Command::new(assert_cmd::cargo::cargo_bin("hugekit-lab"));
    lab.args([experiment, "--quick", "--memory", "256MiB", "--rounds", "2", "--json", "-"]);
    lab.env("TMPDIR", temporary.path()).env("XDG_DATA_HOME", "/dev/null");
    lab.stdout(Stdio::piped()).stderr(Stdio::null());
    lab
}

fn restore_has_all_comparisons_or_says_what_it_lacks() {
    let _reserved = RESERVED_PAGES.lock();
    let temporary = tempfile::tempdir().unwrap();
    let output = quick_restore(&temporary).output().unwrap();
    let restore = &record(&output)["experiments"][0];
    if let Some(reason) = hugekit_guests::lacking() {
        assert_eq!(restore["skipped"]["reason"], reason);
        skip(reason);
    }
    assert_eq!(restore["skipped"], Value::Null);
    // Other processes may have the pages at that moment.
    for failure in restore["failures"].as_array().into_iter().flatten() {
        assert!(failure["case"].as_str().unwrap().contains("/hugetlb-"), "{failure}");
    }
    let (ratios, notices) = (strings(&restore["ratios"], "id"), restore["notices"].to_string());
    let expected = [
        ("tmpfs-vs-image/touch-64MiB", "tmpfs left out"),
        ("image-vs-control-image/touch-64MiB", ""),
        ("xfs-vs-xfs-warmed/touch-64MiB", "xfs left out"),
        ("xfs-cold-vs-xfs-cold-transparent/load-and-touch-64MiB", "xfs left out"),
        ("on-demand-4k-vs-pager/touch-64MiB", "handlers of page faults left out"),
        ("on-demand-4k-vs-pager/first-reply", "handlers of page faults left out"),
        ("pager-vs-pager-working-set/cpu-64MiB", "handlers of page faults left out"),
        ("full-copy-vs-pager-ahead/load-and-touch-64MiB", "handlers of page faults left out"),
    ];
    for (ratio, unless) in expected {
        let is_left_out = !unless.is_empty() && notices.contains(unless);
        let id = format!("restore/{ratio}");
        assert!(is_left_out || ratios.contains(&id.as_str()), "{id}: {ratios:?} {notices}");
    }
    let cases = strings(&restore["cases"], "id");
    let states = ["2-clones-untouched", "2-clones", "4-clones", "4-clones-written-1%"];
    for state in states.into_iter().chain(["4-clones-written-10%", "4-clones-written-50%"]) {
        let id = format!("restore/image/pss-{state}");
        assert!(cases.contains(&id.as_str()), "{id}: {cases:?}");
    }
    let left: Vec<_> = temporary.path().read_dir().unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

fn warm_has_all_comparisons_and_the_faults_of_each_page_cache() {
    let temporary = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let output = quick_guests("warm", &temporary).output().unwrap();
    let warm = &record(&output)["experiments"][0];
    skip_if_skipped(warm);
    // Other programs may take the free blocks of 2 MiB at that moment.
    if let Some(failure) = warm["failures"].as_array().and_then(|all| all.first()) {
        let reason = failure["reason"].as_str().unwrap();
        assert!(reason.contains("memory is fragmented"), "{failure}");
        skip(reason);
    }
    let (ratios, cases) = (strings(&warm["ratios"], "id"), strings(&warm["cases"], "id"));
    for what in ["touch", "touch-cpu", "touch-faults", "loads"] {
        for methods in ["small-vs-warmed", "read-vs-warmed", "warmed-vs-control-warmed"] {
            let id = format!("warm/{methods}/{what}-128MiB");
            assert!(ratios.contains(&id.as_str()), "{id}: {ratios:?}");
        }
    }
    assert!(ratios.contains(&"warm/cat-vs-warm/cold-128MiB"), "{ratios:?}");
    let median = |method: &str, what: &str| {
        let id = format!("warm/{method}/{what}-128MiB");
        let place = cases.iter().position(|case| *case == id).unwrap();
        warm["cases"][place]["median"].as_f64().unwrap()
    };
    let faults = |method: &str| median(method, "touch-faults");
    let (units, pages) = (128.0 / 2.0, 128.0 * 256.0);
    // An address that is no multiple of 2 MiB has small page tables, on a file system that does not choose it.
    assert!(faults("warmed") >= units && faults("warmed") < faults("small"));
    assert_eq!((median("small", "huge"), median("read", "huge")), (0.0, 0.0));
    assert_eq!(median("warmed", "huge") > 0.0, faults("warmed") < 2.0 * units);
    // Of pages that are in the cache, the kernel maps those around the touched one, too.
    assert!(faults("small") < pages && faults("read") >= pages);
    let left: Vec<_> = temporary.path().read_dir().unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

fn checkpoint_has_all_comparisons_or_says_what_it_lacks() {
    let _reserved = RESERVED_PAGES.lock();
    let temporary = tempfile::tempdir().unwrap();
    let output = quick_guests("checkpoint", &temporary).output().unwrap();
    let checkpoint = &record(&output)["experiments"][0];
    if checkpoint["skipped"] != Value::Null {
        let reason = checkpoint["skipped"]["reason"].as_str().unwrap();
        let lacking = hugekit_guests::lacking();
        assert!(lacking.map_or(reason.contains("userfaultfd"), |lack| lack == reason), "{reason}");
        skip(reason);
    }
    for failure in checkpoint["failures"].as_array().into_iter().flatten() {
        assert!(failure["case"].as_str().unwrap().contains("hugetlb"), "{failure}");
    }
    let ratios = strings(&checkpoint["ratios"], "id");
    for ratio in [
        "idle-vs-checkpoint/throughput-written-1%",
        "stock-diff-vs-delta/paused",
        "stock-diff-vs-delta/stall-written-100%",
        "checkpoint-vs-delta/bytes-written-1%",
        "checkpoint-base-vs-checkpoint/complete",
        "idle-vs-delta/throughput",
    ] {
        let id = format!("checkpoint/{ratio}");
        assert!(ratios.contains(&id.as_str()), "{id}: {ratios:?}");
    }
    let cases = strings(&checkpoint["cases"], "id");
    for id in ["checkpoint/fork/answered-2-children", "checkpoint/fork/paused-2-children"] {
        assert!(cases.contains(&id), "{id}: {cases:?}");
    }
    let left: Vec<_> = temporary.path().read_dir().unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

/// The guest writes before it is paused: its longest stall is not shorter than the pause, but for
/// the requests that pause and resume it.
fn guest_of_a_checkpoint_sees_pauses() {
    let _reserved = RESERVED_PAGES.lock();
    let temporary = tempfile::tempdir().unwrap();
    let output = quick_guests("checkpoint", &temporary).output().unwrap();
    let checkpoint = &record(&output)["experiments"][0];
    skip_if_skipped(checkpoint);
    let median = |name: &str| {
        let id = format!("checkpoint/stock-diff/{name}-written-100%");
        let cases = checkpoint["cases"].as_array().unwrap();
        let case = cases.iter().find(|case| case["id"] == *id).unwrap();
        case["median"].as_f64().unwrap()
    };
    let (stall, paused) = (median("stall"), median("paused"));
    assert!(stall > paused / 2.0, "{stall} {paused}");
}

/// CPU time of a process in user mode, in hundredths of a second.
fn ticks(of: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{of}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    fields.split(' ').nth(11).unwrap().parse().unwrap()
}

/// Children of a process that still run.
fn running_children(of: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children"));
    text.unwrap_or_default().split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

/// Not even as a zombie that waits for its parent.
fn is_running(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
    while !is_so() {
        assert!(std::time::Instant::now() < until, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

fn restore_that_is_ended_leaves_no_vmm() {
    if let Some(reason) = hugekit_guests::lacking() {
        skip(reason);
    }
    use rustix::process::{Pid, Signal, kill_process};
    for signal in [Signal::KILL, Signal::INT] {
        let temporary = tempfile::tempdir().unwrap();
        let mut lab = scopeguard::guard(quick_restore(&temporary).spawn().unwrap(), |mut lab| {
            let _ = lab.kill();
            let _ = lab.wait();
        });
        until("a VMM is started", || !running_children(lab.id()).is_empty());
        let children = running_children(lab.id());
        kill_process(Pid::from_child(&lab), signal).unwrap();
        let status = lab.wait().unwrap();
        assert!(!status.success(), "{status}");
        until("the VMMs have ended", || children.iter().all(|&pid| !is_running(pid)));
    }
}

fn one_routine_stands_beside_memset_and_auto() {
    let output = shortest().args(["--json", "-"]).assert().success().get_output().clone();
    let cases = record(&output)["experiments"][0]["cases"].clone();
    assert!(strings(&cases, "id").iter().all(|id| id.contains("memset") || id.contains("auto")));
}

/// The width of the first column depends on the experiments.
fn has_clear(summary: &str) -> bool {
    let mut lines = summary.lines().filter_map(|line| line.trim_start().strip_prefix("clear "));
    lines.any(|result| result.trim_start().starts_with("page-at-a-time → engine: "))
}

fn results_come_first_and_tables_fit_80_columns() {
    let _reserved = RESERVED_PAGES.lock();
    let mut everything = lab();
    everything.args(["--tables", "--memory", "64MiB", "--rounds", "2"]);
    // 4: other processes may have the reserved huge pages, so some cases are left out.
    let output = everything.output().unwrap();
    assert!(matches!(output.status.code(), Some(0 | 4)), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{line}");
    }
    let (summary, tables) = text.split_once("\n\n").unwrap();
    assert!(summary.starts_with("Summary"), "{summary}");
    assert!(has_clear(summary), "{summary}");
    assert!(tables.contains("\nMedians, GiB/s\n"), "{tables}");
}

fn experiments_that_are_not_named_have_results_and_warnings_alone() {
    let mut everything = lab();
    everything.args(["--memory", "64MiB", "--rounds", "2", "--no-record"]);
    let output = everything.assert().success().get_output().clone();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(has_clear(&text), "{text}");
    assert!(text.contains("\nWarnings\n"), "{text}");
    assert!(!text.contains("\nmedian"), "{text}");
}

fn a_record_is_written_to_a_file_beside_the_tables() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("record.json");
    shortest()
        .arg("--json")
        .arg(&path)
        .assert()
        .success()
        .stdout(predicate::str::contains("Summary"));
    let record: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    assert_eq!(record["experiments"][0]["name"], "stores");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
}

fn a_record_that_cannot_be_written_is_an_error_before_anything_runs() {
    shortest()
        .args(["--json", "/no/such/folder/record.json"])
        .assert()
        .failure()
        .stdout("")
        .stderr(predicate::str::contains("cannot write /no/such/folder/record.json"));
}

fn a_device_is_written_to_and_stays_a_device() {
    use std::os::unix::fs::FileTypeExt;
    shortest()
        .args(["--json", "/dev/full"])
        .assert()
        .failure()
        .stderr(predicate::str::contains("cannot write /dev/full"));
    assert!(std::fs::metadata("/dev/full").unwrap().file_type().is_char_device());
}

fn a_folder_is_no_place_for_a_record() {
    let folder = tempfile::tempdir().unwrap();
    shortest().arg("--json").arg(folder.path()).assert().failure().stdout("");
    assert!(folder.path().is_dir());
}

fn an_unknown_experiment_names_the_valid_ones() {
    lab()
        .arg("storse")
        .assert()
        .code(2)
        .stderr(predicate::str::contains("stores").and(predicate::str::contains("clear")));
}

fn an_unknown_routine_names_the_valid_ones() {
    lab().args(["--routine", "bzero"]).assert().code(2).stderr(predicate::str::contains("memset"));
}

fn a_routine_this_cpu_lacks_is_named_as_unavailable() {
    let clears: Vec<_> =
        hugekit_bulk::arch::clear_routines().iter().filter(|r| r.is_available()).collect();
    let copies =
        hugekit_bulk::arch::copy_routines().iter().filter(|routine| !routine.is_available());
    for routine in copies.filter(|copy| clears.iter().all(|clear| clear.name() != copy.name())) {
        lab().args(["--routine", routine.name()]).assert().code(2).stderr(
            predicate::str::contains("not available on this CPU")
                .and(predicate::str::contains(routine.needs()))
                .and(predicate::str::contains("memset")),
        );
    }
}

fn a_size_that_is_none_is_a_usage_error_that_shows_a_valid_one() {
    lab().args(["--memory", "lots"]).assert().code(2).stderr(predicate::str::contains("512MiB"));
}

fn more_memory_than_there_is_names_both_figures() {
    lab().args(["--memory", "999TiB"]).assert().code(2).stderr(
        predicate::str::contains("not enough memory: 999TiB requested")
            .and(predicate::str::contains("GiB available")),
    );
}

fn too_little_memory_to_measure_on_is_a_usage_error() {
    lab().args(["--memory", "4KiB"]).assert().code(2).stderr(predicate::str::contains("16MiB"));
}

fn one_round_is_too_few_to_compare() {
    lab().args(["--rounds", "1"]).assert().code(2).stderr(predicate::str::contains("2.."));
}

fn the_noise_of_a_result_is_in_the_record() {
    let output = smallest("fork").args(["--json", "-"]).assert().success().get_output().clone();
    let record = record(&output);
    let counters = record["machine"]["hardware_counters"].as_str().unwrap();
    assert!(counters == "available" || counters.starts_with("not available: "), "{counters}");
    assert!(!record["uncontrolled"].as_array().unwrap().is_empty());
    let noise = &record["experiments"][0]["noise"];
    assert!(noise["seconds"].as_f64().unwrap() > 0.0 && noise["others_percent"].is_number());
    let few = noise["warnings"].to_string();
    assert!(few.contains("too few rounds to say how certain they are"), "{few}");
    let counted = strings(&noise["counters"], "id");
    assert!(counted.contains(&"fork/batched/2MiB"), "{counted:?}");
    assert!(noise["counters"][0]["per_round"]["minor-faults"].is_number());
}

fn colour_is_for_terminals_that_want_it() {
    let plain = shortest().assert().success().get_output().clone();
    assert!(!plain.stdout.contains(&0x1b));
    for (variable, value, coloured) in [("CLICOLOR_FORCE", "1", true), ("NO_COLOR", "1", false)] {
        let output = shortest().env(variable, value).assert().success().get_output().clone();
        assert_eq!(output.stdout.contains(&0x1b), coloured, "{variable}");
    }
}

fn an_interrupt_ends_the_run_with_what_is_finished() {
    let child = std::process::Command::new(assert_cmd::cargo::cargo_bin("hugekit-lab"))
        .args(["stores", "--memory", "64MiB", "--rounds", "1000000", "--json", "-"])
        .arg("--no-record")
        .stdout(std::process::Stdio::piped())
        .spawn();
    let mut child = hugekit_testing::processes::Killed(child.unwrap());
    hugekit_testing::processes::wait_for_handler(child.id(), libc::SIGINT);
    // What comes before it measures uses far less.
    until("it measures", || ticks(child.id()) > 20);
    hugekit_testing::processes::signal(child.id(), rustix::process::Signal::INT);
    let mut stdout = Vec::new();
    child.stdout.take().unwrap().read_to_end(&mut stdout).unwrap();
    let output = Output { status: child.wait().unwrap(), stdout, stderr: Vec::new() };
    assert_eq!(output.status.code(), Some(130));
    assert_eq!(record(&output)["experiments"], Value::Array(Vec::new()));
}

const CHECKS: Checks = hugekit_testing::checks![
    json_on_standard_output_is_all_there_is,
    "[nightly: it measures for many seconds] " stores_has_every_routine_and_ratio_with_raw_samples,
    clear_has_every_method_and_what_comes_after,
    "[nightly: it measures for many seconds] " copies_has_every_routine_cold_and_warm,
    learn_has_every_look_beside_libc_the_best_and_the_built_in_choice,
    parallel_compares_threads_with_one_and_a_job_with_a_loop,
    demand_says_what_moved_and_what_was_left_out,
    fault_compares_rows_first_faults_and_threads,
    "[nightly: it measures for many seconds] " fork_compares_tables_by_folio_size_and_says_what_it_left_out,
    "[nightly: it forks gigabytes] " fork_compares_regions_with_processes_where_there_is_memory,
    "[nightly: it measures for many seconds] " cow_has_writers_in_order_and_at_random_and_single_copies,
    "[nightly: it measures for many seconds] " lease_has_all_comparisons_or_says_what_it_lacks,
    snapshot_watches_a_writer_before_during_and_after,
    tend_forks_programs_that_are_tended_and_such_that_are_not,
    redis_saves_in_each_way_that_the_machine_has,
    "[nightly: it restores a guest in every way] " restore_has_all_comparisons_or_says_what_it_lacks,
    "[nightly: it saves a guest in every way] " checkpoint_has_all_comparisons_or_says_what_it_lacks,
    "[nightly: it compares measured times] " guest_of_a_checkpoint_sees_pauses,
    restore_that_is_ended_leaves_no_vmm,
    warm_has_all_comparisons_and_the_faults_of_each_page_cache,
    one_routine_stands_beside_memset_and_auto,
    "[nightly: it runs every experiment] " results_come_first_and_tables_fit_80_columns,
    "[nightly: it runs every experiment] " experiments_that_are_not_named_have_results_and_warnings_alone,
    a_record_is_written_to_a_file_beside_the_tables,
    a_record_that_cannot_be_written_is_an_error_before_anything_runs,
    a_device_is_written_to_and_stays_a_device,
    a_folder_is_no_place_for_a_record,
    an_unknown_experiment_names_the_valid_ones,
    an_unknown_routine_names_the_valid_ones,
    a_routine_this_cpu_lacks_is_named_as_unavailable,
    a_size_that_is_none_is_a_usage_error_that_shows_a_valid_one,
    more_memory_than_there_is_names_both_figures,
    too_little_memory_to_measure_on_is_a_usage_error,
    one_round_is_too_few_to_compare,
    "[nightly: it measures for many seconds] " the_noise_of_a_result_is_in_the_record,
    colour_is_for_terminals_that_want_it,
    an_interrupt_ends_the_run_with_what_is_finished,
];

fn main() {
    libtest_mimic::run(&Arguments::from_args(), trials(CHECKS, None)).exit();
}
