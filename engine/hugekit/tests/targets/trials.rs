//! One trial for each touch, backing and fault mode.

use hugekit::fault::FaultMode;
use hugekit::pool::Backing;
use hugekit_machine::Root;
use hugekit_machine::userfaultfd::{Features, Userfaultfd};
use hugekit_sys::injection::{Call, Lasting};
use hugekit_testing::backings::{lacking, unless_lacking, usual};
use hugekit_testing::permitted;
use libtest_mimic::{Arguments, Failed, Trial};
use rustix::param::page_size;

use super::refusals::target_without_last;
use super::touch::{GRANULES, OF_ANONYMOUS, OF_REGIONS, Touch, copy_of_a_page, granule, touched};

const IN_PLACE: FaultMode = FaultMode::InPlace;
const THREADED: FaultMode = FaultMode::Threaded { threads: 1 };

pub(crate) fn main() {
    let mut trials: Vec<_> = usual().flat_map(|backing| on(backing, OF_REGIONS)).collect();
    let of_anonymous = [Backing::Base, Backing::Thp].into_iter();
    trials.extend(of_anonymous.flat_map(|backing| of(backing, OF_ANONYMOUS)));
    trials.push(trial("copy_that_the_kernel_refuses".to_owned(), IN_PLACE, || {
        let touch = || copy_of_a_page(IN_PLACE);
        if let Some(target) = target_without_last(Call::ProcessVmReadv, Lasting::Filter, touch) {
            assert_eq!(target, Some(touched(page_size()) % page_size()));
        }
    }));
    // The process has one last target.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    libtest_mimic::run(&arguments, trials).exit();
}

/// Trials of touches on pages that the machine may lack.
fn on(backing: Backing, touches: &[(&str, Touch)]) -> Vec<Trial> {
    let lacking = lacking(backing, 2 * GRANULES * granule(backing) / backing.page_size());
    of(backing, touches)
        .into_iter()
        .map(|trial| unless_lacking(trial, lacking.as_deref()))
        .collect()
}

fn of(backing: Backing, touches: &[(&str, Touch)]) -> Vec<Trial> {
    touches.iter().flat_map(|&(name, touch)| all_modes(backing, name, touch)).collect()
}

fn all_modes(backing: Backing, name: &str, touch: Touch) -> [Trial; 3] {
    let name = |condition: &str| format!("{backing:?}::{name}{condition}").to_lowercase();
    let exact = touched(granule(backing)) % granule(backing);
    let page = if is_exact() { exact } else { page_of(exact, backing) };
    [
        trial(name("_in_place"), IN_PLACE, move || {
            assert_eq!(touch(backing, IN_PLACE), Some(exact));
        }),
        trial(name("_by_a_thread"), THREADED, move || {
            assert_eq!(touch(backing, THREADED), Some(page));
        }),
        trial(name("_by_a_thread_without_exact_addresses"), THREADED, move || {
            let touch = || touch(backing, THREADED);
            let target = target_without_last(Call::UffdApi, Lasting::Once, touch);
            assert_eq!(target, Some(Some(page_of(exact, backing))));
        }),
    ]
}

/// Before Linux 5.18 a handler thread learns the first address of the page, which the kernel has in its page table.
fn page_of(address: usize, backing: Backing) -> usize {
    let page = if backing.is_reserved() { backing.page_size() } else { page_size() };
    address / page * page
}

fn is_exact() -> bool {
    let found = Userfaultfd::read(&Root::default()).unwrap();
    found.features.contains(Features::EXACT_ADDRESS)
}

/// Skipped where this process may not serve faults in this way.
fn trial(name: String, fault_mode: FaultMode, check: impl FnOnce() + Send + 'static) -> Trial {
    let run = move || -> Result<(), Failed> {
        check();
        Ok(())
    };
    unless_lacking(Trial::test(name, run), permitted::lacking_for(fault_mode).as_deref())
}
