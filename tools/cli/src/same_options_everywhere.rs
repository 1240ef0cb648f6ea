//! The options of the tools are arguments here, JSON elsewhere, and the same by default.

use std::fmt::Debug;

use clap::Parser;
use hugekit::pool::Backing;
use hugekit_broker::Quota;
use hugekit_vm::checkpoint::{CheckpointOptions, ForkOptions, RunningVm, SeriesOptions};
use hugekit_vm::pager::PagerOptions;
use hugekit_warm::{WarmMode, WarmOptions};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{from_str, from_value, json, to_value};

#[derive(Debug, Parser)]
struct CommandLine<T: clap::Args> {
    #[command(flatten)]
    options: T,
}

/// Parses arguments.
fn of<T: clap::Args>(arguments: &str) -> T {
    let arguments = arguments.split(' ').filter(|argument| !argument.is_empty());
    CommandLine::try_parse_from(["hugekit"].into_iter().chain(arguments)).unwrap().options
}

/// Checks options with these required arguments, which are these fields.
fn check<T>(expected: &T, required: &str, fields: &str)
where
    T: clap::Args + Serialize + DeserializeOwned + PartialEq + Debug,
{
    assert_eq!(&of::<T>(required), expected);
    assert_eq!(&from_str::<T>(fields).unwrap(), expected);
    let mut written = to_value(expected).unwrap();
    assert_eq!(&from_value::<T>(written.clone()).unwrap(), expected);
    written["no_such_field"] = json!(1);
    assert!(from_value::<T>(written).is_err(), "an unknown field is accepted");
}

#[test]
fn options_are_the_same_by_default_in_rust_in_arguments_and_in_json() {
    check(&hugekit_tend::TendOptions::default(), "", "{}");
    check(&hugekit_broker::BrokerOptions::default(), "", "{}");
    check(&PagerOptions::default(), "", "{}");
    check(&WarmOptions::default(), "", "{}");
    let keep = WarmOptions { mode: WarmMode::Keep, fill_holes: true, ..WarmOptions::default() };
    check(&keep, "--keep --fill-holes", r#"{"mode": "keep", "fill_holes": true}"#);
    let vm = || RunningVm::new("a".into());
    let (arguments, fields) = ("--api a", r#"{"api": "a"}"#);
    check(&vm(), arguments, fields);
    let checkpoint = CheckpointOptions::new(vm(), "b".into());
    let saved = format!(r#"{{"vm": {fields}, "output": "b"}}"#);
    check(&checkpoint, &format!("{arguments} -o b"), &saved);
    let forked = format!(r#"{{"vm": {fields}, "children": []}}"#);
    check(&ForkOptions::new(vm(), Vec::new()), arguments, &forked);
    let series = SeriesOptions::new(std::time::Duration::from_secs(5));
    check(&series, "--every 5", r#"{"interval": {"secs": 5, "nanos": 0}}"#);
}

#[test]
fn numbers_are_read_as_they_are_printed() {
    let tend: hugekit_tend::TendOptions =
        of("--density 95 --growth 0 --cpu 5 --rate 2M --keep-free 0");
    assert_eq!((tend.density, tend.growth, tend.cpu_share), (0.95, 0.0, 0.05));
    assert_eq!((tend.bytes_per_second, tend.keep_free), (2 << 20, 0));
    let pager: PagerOptions = of("--around 4KiB --record 0 --no-prefetch --user 5 --user 6");
    assert_eq!((pager.around, pager.record.as_secs(), pager.prefetch), (4096, 0, false));
    assert_eq!(pager.users, [5, 6]);
    let broker: hugekit_broker::BrokerOptions = of("--quota 5=1GiB --quota *=2GiB --charge /sys/a");
    assert_eq!(broker.quotas[0], Quota { user: Some(5), bytes: 1 << 30 });
    assert_eq!(broker.quotas[1].to_string(), "*=2GiB");
    assert_eq!(broker.charge.to_string(), "/sys/a");
    for &backing in Backing::ALL {
        let broker: hugekit_broker::BrokerOptions = of(&format!("--backing {}", backing.option()));
        let written = to_value(&broker).unwrap();
        assert_eq!(
            (broker.backing, written["backing"].as_str()),
            (backing, Some(backing.option()))
        );
        assert_eq!(from_value::<hugekit_broker::BrokerOptions>(written).unwrap(), broker);
    }
    let wrong = from_str::<hugekit_broker::BrokerOptions>(r#"{"backing": "gold"}"#).unwrap_err();
    let names: Vec<_> = Backing::ALL.iter().map(|backing| backing.option()).collect();
    let message = format!("string \"gold\", expected one of {}", names.join(", "));
    assert!(wrong.to_string().contains(&message), "{wrong}");
    let vm: RunningVm = of("--pid 7 --api a --no-collapse --proxy");
    assert!(!vm.collapse && vm.proxy);
    assert!(!of::<ForkOptions>("--pid 7 --api a --paused").resume);
}
