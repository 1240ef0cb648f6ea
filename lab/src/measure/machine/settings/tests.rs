use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc;
use std::thread;

use super::*;
use crate::measure::Quiet;

/// A machine with so many huge pages of 2 MiB in all and free, and a choice.
fn machine(total: u64, free: u64) -> (tempfile::TempDir, Root) {
    let dir = tempfile::tempdir().unwrap();
    let pool = dir.path().join("sys/kernel/mm/hugepages/hugepages-2048kB");
    fs::create_dir_all(&pool).unwrap();
    let counts = [
        ("nr_hugepages", total),
        ("free_hugepages", free),
        ("resv_hugepages", 2),
        ("surplus_hugepages", 0),
        ("nr_overcommit_hugepages", 0),
    ];
    for (name, count) in counts {
        fs::write(pool.join(name), count.to_string()).unwrap();
    }
    fs::write(dir.path().join("enabled"), "always madvise [never]\n").unwrap();
    let root = Root::at(dir.path());
    (dir, root)
}

fn settings(root: &Root) -> Settings {
    Settings::in_turn(root, Duration::ZERO, &Quiet).unwrap()
}

fn enabled(root: &Root) -> PathBuf {
    root.path("/enabled")
}

fn choice(root: &Root) -> String {
    fs::read_to_string(enabled(root)).unwrap().trim().to_owned()
}

fn count(root: &Root) -> String {
    fs::read_to_string(count_of(root, 2 << 20)).unwrap()
}

fn journal(root: &Root) -> PathBuf {
    root.path("/run/hugekit/settings.journal")
}

/// Does the work of SIGKILL: nothing is restored, and the kernel releases the lock.
fn kill(settings: Settings) {
    let Settings(Some(mut allowed)) = settings else { panic!("nothing may be changed") };
    allowed.journal =
        Journal::left_behind(Path::new("/no/such/folder"), &Root::default()).unwrap().0;
}

#[test]
fn what_is_enough_stays() {
    let (_dir, root) = machine(10, 7);
    let mut settings = settings(&root);
    assert!(settings.choose(&enabled(&root), &["always", "never"], "madvise").unwrap());
    assert_eq!(choice(&root), "always madvise [never]");
    assert!(!journal(&root).exists());
}

#[test]
fn nothing_changes_unless_allowed() {
    let (_dir, root) = machine(10, 7);
    let mut settings = Settings::none();
    assert!(!settings.choose(&enabled(&root), &["madvise"], "madvise").unwrap());
    let pool = settings.reserve(&root, 2 << 20, 512).unwrap().unwrap();
    assert_eq!((count(&root).as_str(), pool.unpromised()), ("10", 5));
    assert_eq!(choice(&root), "always madvise [never]");
}

#[test]
fn a_change_is_put_back_on_drop_and_on_panic() {
    let (_dir, root) = machine(10, 7);
    let changed = std::panic::catch_unwind(|| {
        let mut settings = settings(&root);
        assert!(settings.choose(&enabled(&root), &["madvise"], "madvise").unwrap());
        assert_eq!(choice(&root), "madvise");
        panic!("an experiment failed");
    });
    assert!(changed.is_err());
    assert_eq!(choice(&root), "never");
    assert!(!journal(&root).exists());
}

#[test]
fn huge_pages_for_all_programs_are_set_and_restored_or_refused_where_a_setting_is_missing() {
    let (_dir, root) = machine(10, 7);
    let folder = root.path(FOLIOS);
    fs::create_dir_all(folder.join("khugepaged")).unwrap();
    let files = [
        ("enabled", "always [madvise] never\n", "always", "madvise"),
        ("khugepaged/scan_sleep_millisecs", "10000\n", "1000", "10000"),
        ("khugepaged/pages_to_scan", "4096\n", "65536", "4096"),
        ("khugepaged/max_ptes_none", "511\n", "51", "511"),
    ];
    for (file, before, ..) in files {
        fs::write(folder.join(file), before).unwrap();
    }
    let read = |file| fs::read_to_string(folder.join(file)).unwrap().trim().to_owned();
    assert!(!Settings::none().huge_pages_for_all(&root).unwrap());
    let mut settings = settings(&root);
    assert!(settings.huge_pages_for_all(&root).unwrap());
    files.iter().for_each(|(file, _, set, _)| assert_eq!(read(file), *set));
    settings.restore().unwrap();
    files.iter().for_each(|(file, .., before)| assert_eq!(read(file), *before));
    fs::remove_file(folder.join("khugepaged/max_ptes_none")).unwrap();
    assert!(!settings.huge_pages_for_all(&root).unwrap());
}

#[test]
fn huge_pages_are_added_to_what_is_free_and_taken_back() {
    let (_dir, root) = machine(10, 7);
    let mut settings = settings(&root);
    settings.reserve(&root, 2 << 20, 5).unwrap();
    assert_eq!(count(&root), "10");
    let pool = settings.reserve(&root, 2 << 20, 512).unwrap().unwrap();
    // Of the seven free ones, two are promised.
    assert_eq!((count(&root).as_str(), pool.total), ("517", 517));
    settings.restore().unwrap();
    assert_eq!(count(&root), "10");
    assert!(settings.notes().is_empty(), "what a run puts back itself is not worth a word");
}

#[test]
fn surplus_pages_become_reserved_ones_before_the_kernel_adds_any() {
    let (_dir, root) = machine(10, 2);
    fs::write(root.path("/sys/kernel/mm/hugepages/hugepages-2048kB/surplus_hugepages"), "4")
        .unwrap();
    let mut settings = settings(&root);
    settings.reserve(&root, 2 << 20, 8).unwrap();
    assert_eq!(count(&root), "18");
}

#[test]
fn what_was_changed_again_meanwhile_is_left_as_it_is() {
    let (_dir, root) = machine(10, 7);
    let mut settings = settings(&root);
    settings.reserve(&root, 2 << 20, 512).unwrap();
    settings.choose(&enabled(&root), &["madvise"], "madvise").unwrap();
    fs::write(count_of(&root, 2 << 20), "300").unwrap();
    fs::write(enabled(&root), "[always] madvise never").unwrap();
    settings.restore().unwrap();
    assert_eq!((count(&root).as_str(), choice(&root).as_str()), ("300", "[always] madvise never"));
    let notes = settings.notes().join("\n");
    assert!(notes.contains("is always now, which the lab did not set"), "{notes}");
    assert!(notes.contains("is 300 now, which the lab did not set"), "{notes}");
    assert!(!journal(&root).exists());
}

#[test]
fn what_a_killed_run_changed_is_put_back_at_the_next_start_and_said() {
    let (_dir, root) = machine(10, 7);
    let mut killed = settings(&root);
    killed.reserve(&root, 2 << 20, 512).unwrap();
    killed.choose(&enabled(&root), &["madvise"], "madvise").unwrap();
    kill(killed);
    assert_eq!((count(&root).as_str(), choice(&root).as_str()), ("517", "madvise"));
    let said = put_back(&root).unwrap().join("\n");
    assert_eq!((count(&root).as_str(), choice(&root).as_str()), ("10", "never"));
    assert_eq!(said.matches("of a `--setup` that was killed: ").count(), 2, "{said}");
    assert!(said.contains("nr_hugepages is 10 again") && said.contains("enabled is never again"));
    assert!(!journal(&root).exists() && put_back(&root).unwrap().is_empty());
}

/// Killed at every moment: before the change, while the kernel finds pages, after it, after it was undone.
#[test]
fn a_journal_of_any_moment_brings_back_what_was_there() {
    for (at, now) in [("before", "10"), ("during", "200"), ("after", "517")] {
        let (_dir, root) = machine(10, 7);
        let mut killed = settings(&root);
        let change = SettingChange::pages(&root, 2 << 20, 10, 517);
        killed.0.as_mut().unwrap().journal.about_to(change).unwrap();
        kill(killed);
        fs::write(count_of(&root, 2 << 20), now).unwrap();
        put_back(&root).unwrap();
        assert_eq!(count(&root), "10", "{at}");
    }
}

#[test]
fn the_journal_is_there_before_the_change() {
    let (_dir, root) = machine(10, 7);
    let mut settings = settings(&root);
    // A setting that cannot be written: what was about to be changed is in the journal all the same.
    let unwritable = root.path("/folder");
    fs::create_dir(&unwritable).unwrap();
    let change = |value: &str| SettingChange::Word {
        path: unwritable.clone(),
        before: "never".into(),
        value: value.into(),
    };
    settings.0.as_mut().unwrap().journal.about_to(change("madvise")).unwrap();
    let text = fs::read_to_string(journal(&root)).unwrap();
    assert!(text.contains("madvise") && text.contains("never"), "{text}");
    assert!(settings.restore().is_err());
    assert!(journal(&root).exists(), "what could not be put back is kept for the next start");
}

#[test]
fn changes_of_a_while_are_put_back_and_the_others_stay() {
    let (_dir, root) = machine(10, 7);
    let mut settings = settings(&root);
    settings.choose(&enabled(&root), &["madvise"], "madvise").unwrap();
    let mark = settings.mark();
    settings.reserve(&root, 2 << 20, 512).unwrap();
    settings.restore_to(mark).unwrap();
    assert_eq!((count(&root).as_str(), choice(&root).as_str()), ("10", "madvise"));
    settings.restore().unwrap();
    assert_eq!(choice(&root), "never");
}

#[test]
fn two_labs_take_turns_and_who_waits_in_vain_says_for_whom() {
    let (_dir, root) = machine(10, 7);
    let first = settings(&root);
    let error = Settings::in_turn(&root, Duration::ZERO, &Quiet).unwrap_err();
    let LabError::Busy { holder, .. } = &error else { panic!("{error}") };
    assert!(holder.starts_with(&format!("process {}: ", std::process::id())), "{holder}");
    assert!(put_back(&root).unwrap().is_empty(), "a lab at work keeps its settings");
    let (sender, receiver) = mpsc::channel();
    let waiting = thread::spawn({
        let root = root.clone();
        move || {
            sender.send(()).unwrap();
            Settings::in_turn(&root, Duration::from_secs(60), &Quiet).map(drop)
        }
    });
    receiver.recv().unwrap();
    drop(first);
    waiting.join().unwrap().unwrap();
}

#[test]
fn who_waits_can_be_interrupted() {
    struct Stop;
    impl Observer for Stop {
        fn check(&self) -> Result<(), crate::measure::Interrupted> {
            Err(crate::measure::Interrupted)
        }
    }
    let (_dir, root) = machine(10, 7);
    let _first = settings(&root);
    let error = Settings::in_turn(&root, Duration::from_secs(60), &Stop).unwrap_err();
    assert!(matches!(error, LabError::Interrupted(_)));
}

#[test]
fn a_damaged_journal_is_put_aside_and_said() {
    let (_dir, root) = machine(10, 7);
    drop(settings(&root));
    fs::write(journal(&root), "[{\"Word\":").unwrap();
    let said = put_back(&root).unwrap().join("\n");
    assert!(said.contains("settings.damaged is damaged"), "{said}");
    assert!(put_back(&root).unwrap().is_empty());
}

#[test]
fn a_state_folder_that_cannot_be_made_is_an_error_that_names_it() {
    let (_dir, root) = machine(10, 7);
    fs::write(root.path("/run"), "").unwrap();
    let error = Settings::in_turn(&root, Duration::ZERO, &Quiet).unwrap_err();
    assert!(error.to_string().ends_with("/run/hugekit"), "{error}");
}

#[test]
fn journal_left_behind_is_readable_by_every_user() {
    let (_dir, root) = machine(10, 7);
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode();
    let mut settings = settings(&root);
    settings.choose(&enabled(&root), &["madvise"], "madvise").unwrap();
    assert_eq!(mode(root.path("/run/hugekit")) & 0o005, 0o005);
}

#[test]
fn turn_is_not_for_other_users_to_take() {
    let (_dir, root) = machine(10, 7);
    let lock = root.path("/run/hugekit/settings.lock");
    fs::create_dir_all(root.path("/run/hugekit")).unwrap();
    // As an earlier version left it.
    fs::write(&lock, "").unwrap();
    fs::set_permissions(&lock, fs::Permissions::from_mode(0o644)).unwrap();
    let _settings = settings(&root);
    assert_eq!(fs::metadata(&lock).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_size_that_the_kernel_lacks_is_none() {
    let (_dir, root) = machine(10, 7);
    assert!(settings(&root).reserve(&root, 1 << 30, 1).unwrap().is_none());
}

#[test]
fn folios_of_one_size_are_allowed_for_a_while() {
    let dir = tempfile::tempdir().unwrap();
    let page = rustix::param::page_size() >> 10;
    let [small, middle, large] = [4, 16, 512].map(|pages| pages * page);
    let file = |kib: usize| dir.path().join(format!("{}/hugepages-{kib}kB/enabled", &FOLIOS[1..]));
    for (kib, text) in [(small, "always inherit madvise [never]"), (large, "[inherit] never")] {
        fs::create_dir_all(file(kib).parent().unwrap()).unwrap();
        fs::write(file(kib), text).unwrap();
    }
    let (root, read) = (Root::at(dir.path()), |kib| fs::read_to_string(file(kib)).unwrap());
    assert!(!Settings::none().only_folios_of(&root, small << 10).unwrap());
    let mut settings = settings(&root);
    assert!(!settings.only_folios_of(&root, middle << 10).unwrap());
    assert_eq!(read(large), "[inherit] never");
    assert!(settings.only_folios_of(&root, small << 10).unwrap());
    assert_eq!((read(small).as_str(), read(large).as_str()), ("madvise", "never"));
    settings.restore().unwrap();
    assert_eq!((read(small).as_str(), read(large).as_str()), ("never", "inherit"));
}

#[test]
fn an_unreadable_setting_names_its_file() {
    let error = Settings::none().choose(Path::new("/no/such/file"), &[], "x").unwrap_err();
    assert_eq!(error.to_string(), "cannot read /no/such/file");
}
