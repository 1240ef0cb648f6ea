//! The lab's page, opened in a browser: nothing goes wrong, nothing is fetched, everything is there, in
//! both colour schemes and on a telephone. What it looks like is left in the target's temporary folder,
//! to be looked at.

mod browser;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use base64::Engine;
use hugekit_lab::EXPERIMENTS;
use libtest_mimic::{Arguments, Completion, Failed, Trial};
use serde_json::{Value, json};

use browser::{Browser, View};

const DESK: u32 = 1100;
const TELEPHONE: u32 = 390;

const VIEWS: [View; 4] = [
    View { width: DESK, height: 900, scheme: "light" },
    View { width: DESK, height: 900, scheme: "dark" },
    View { width: TELEPHONE, height: 844, scheme: "light" },
    View { width: TELEPHONE, height: 844, scheme: "dark" },
];

const KEPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/record.json");

fn main() -> ExitCode {
    let arguments = Arguments::from_args();
    let Some(program) = browser::find() else {
        let reason = "no Chromium (apt-get install chromium)";
        let skip = move || Ok(Completion::ignored_with(reason));
        let trial = Trial::ignorable_test("in_a_browser", skip);
        return libtest_mimic::run(&arguments, vec![trial]).exit_code();
    };
    let trial = Trial::test("in_a_browser", move || in_a_browser(&program));
    libtest_mimic::run(&arguments, vec![trial]).exit_code()
}

/// All checks are one test, because the measurement takes a while.
fn in_a_browser(program: &Path) -> Result<(), Failed> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let (page, record) = (folder.join("page.html"), folder.join("record.json"));
    measure(&page, &record);
    let record: Value = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
    let mut browser = Browser::start(program);
    let mut papers = BTreeSet::new();
    for view in VIEWS {
        let events = browser.open(&page, view);
        nothing_went_wrong(&events, &page);
        everything_is_there(&mut browser);
        charts_are_drawn(&mut browser);
        nothing_is_cut_off(&mut browser, view);
        papers.insert(
            browser.evaluate("getComputedStyle(document.body).backgroundColor").to_string(),
        );
        keep_picture(&mut browser, &folder, view);
    }
    assert_eq!(papers.len(), 2, "light and dark differ: {papers:?}");
    every_number_is_in_the_record(&mut browser, &record);
    prints(&mut browser);

    let compared = folder.join("compared.html");
    let records = [folder.join("record.json"), KEPT.into()];
    lab(&["--html"], &[&compared], &[vec!["--show".into()], records.to_vec()].concat());
    let events = browser.open(&compared, VIEWS[2]);
    nothing_went_wrong(&events, &compared);
    nothing_is_cut_off(&mut browser, VIEWS[2]);
    assert_eq!(browser.evaluate("document.querySelectorAll('section').length"), 3);
    Ok(())
}

fn lab(arguments: &[&str], paths: &[&Path], more: &[PathBuf]) {
    let status = Command::new(assert_cmd::cargo::cargo_bin("hugekit-lab"))
        .args(arguments)
        .args(paths)
        .args(more)
        .output()
        .unwrap();
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
}

/// Every experiment, as short as may be.
fn measure(page: &Path, record: &Path) {
    let least = ["--memory", "64MiB", "--rounds", "2", "--no-record"];
    let [json, html] = ["--json", "--html"].map(PathBuf::from);
    lab(&least, &[], &[json, record.to_owned(), html, page.to_owned()]);
}

/// No word on the console, no exception, and no request but that for the page itself.
fn nothing_went_wrong(events: &[Value], page: &Path) {
    let bad = ["Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"];
    let complaints: Vec<&Value> =
        events.iter().filter(|event| bad.iter().any(|method| event["method"] == *method)).collect();
    assert!(complaints.is_empty(), "{complaints:?}");
    let requests: Vec<&str> = events
        .iter()
        .filter(|event| event["method"] == "Network.requestWillBeSent")
        .filter_map(|event| event["params"]["request"]["url"].as_str())
        .collect();
    assert_eq!(requests, [format!("file://{}", page.display())]);
}

fn everything_is_there(browser: &mut Browser) {
    let names = browser.evaluate(
        "[...document.querySelectorAll('article[data-experiment]')].map(e => e.dataset.experiment)",
    );
    let core = EXPERIMENTS.iter().filter(|experiment| experiment.is_core);
    let names_of_core: Vec<&str> = core.map(|experiment| experiment.name).collect();
    assert_eq!(names, json!(names_of_core));
    let lonely = "[...document.querySelectorAll('nav a')].map(a => a.getAttribute('href'))\
                  .filter(target => !document.querySelector(target))";
    assert_eq!(browser.evaluate(lonely), json!([]), "links that lead nowhere");
}

/// Each experiment has a drawing unless it was skipped; each drawing has a name, a text, and marks that
/// are visible and within it.
fn charts_are_drawn(browser: &mut Browser) {
    let bare = "[...document.querySelectorAll('article')]\
                .filter(e => !e.querySelector('.skipped') && !e.querySelector('.plot svg'))\
                .map(e => e.id)";
    assert_eq!(browser.evaluate(bare), json!([]), "experiments without a drawing");
    let wrong = "[...document.querySelectorAll('.plot')].map(plot => {
        const box = plot.querySelector('svg').getBoundingClientRect();
        const marks = [...plot.querySelectorAll('polyline, polygon, circle, rect')]
            .map(mark => mark.getBoundingClientRect())
            .filter(mark => mark.width > 1 || mark.height > 1);
        const inside = marks.every(mark => mark.left > box.left - 1 && mark.right < box.right + 1
            && mark.top > box.top - 1 && mark.bottom < box.bottom + 1);
        const words = [...plot.querySelectorAll('text')].map(text => text.getBoundingClientRect());
        const legible = words.every(word => word.left > box.left - 1 && word.right < box.right + 1);
        const title = plot.closest('figure').querySelector('figcaption').textContent;
        const named = plot.getAttribute('role') == 'img'
            && plot.getAttribute('aria-label').length > title.length;
        return marks.length && inside && legible && named ? null
            : [title, plot.closest('article')?.id, marks.length, inside, legible, named];
    }).filter(plot => plot)";
    assert_eq!(
        browser.evaluate(wrong),
        json!([]),
        "title, experiment, marks, inside, legible, named"
    );
    let twice = "(ids => ids.filter((id, at) => ids.indexOf(id) != at))\
                 ([...document.querySelectorAll('[id]')].map(e => e.id))";
    assert_eq!(browser.evaluate(twice), json!([]), "ids that are not unique");
}

fn nothing_is_cut_off(browser: &mut Browser, view: View) {
    let width = browser.evaluate("document.documentElement.scrollWidth");
    assert!(width.as_u64().unwrap() <= view.width.into(), "{width} wide on {view:?}");
}

/// Every figure in the body of a table is one of the record, printed as all figures are.
fn every_number_is_in_the_record(browser: &mut Browser, record: &Value) {
    let mut known = BTreeSet::new();
    collect(record, &mut known);
    let cells = browser.evaluate(
        "[...document.querySelectorAll('article tbody td:not(.words)')].map(cell => {
            const figure = cell.cloneNode(true);
            figure.querySelectorAll('sup').forEach(mark => mark.remove());
            return figure.textContent;
        })",
    );
    let cells: Vec<&str> = cells.as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert!(cells.len() > 100, "{}", cells.len());
    let unknown: Vec<&&str> =
        cells.iter().filter(|cell| !cell.is_empty() && !known.contains(**cell)).collect();
    assert!(unknown.is_empty(), "not in the record: {unknown:?}");
}

/// Every number below this value, as it is printed.
fn collect(value: &Value, known: &mut BTreeSet<String>) {
    match value {
        Value::Number(number) => {
            known.insert(number.to_string());
            known.extend(number.as_f64().map(hugekit_lab::table::figure));
        }
        Value::Array(values) => values.iter().for_each(|value| collect(value, known)),
        Value::Object(fields) => fields.values().for_each(|value| collect(value, known)),
        _ => {}
    }
}

fn prints(browser: &mut Browser) {
    let pdf = browser.call("Page.printToPDF", json!({}));
    let pdf = decode(&pdf["data"]);
    assert!(pdf.starts_with(b"%PDF") && pdf.len() > 20_000, "{} bytes", pdf.len());
}

fn keep_picture(browser: &mut Browser, folder: &Path, view: View) {
    let picture = browser.call("Page.captureScreenshot", json!({"captureBeyondViewport": true}));
    let path = folder.join(format!("page-{}-{}.png", view.width, view.scheme));
    std::fs::write(path, decode(&picture["data"])).unwrap();
}

fn decode(data: &Value) -> Vec<u8> {
    base64::prelude::BASE64_STANDARD.decode(data.as_str().unwrap()).unwrap()
}
