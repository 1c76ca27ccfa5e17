//! The rules of the sources that no compiler checks: who may know whom, where `unsafe` and statuses live, how long a
//! file is. Each rule is a scan of the text; each says in its failure what to do instead.

#[path = "tidy/scanner.rs"]
mod scanner;

use std::fmt::Write;
use std::fs;

use scanner::{Source, files, has_word, root, sources};

/// The longest that a file may be without a word about why; unit tests at its end are not counted.
const LINES_MAX: usize = 370;
/// The same for a file of tests, which is a list.
const TEST_LINES_MAX: usize = 600;

/// Files that are longer because one thing holds them together.
const LONG: &[(&str, &str)] = &[];

/// Which top-level modules each may name: the direction of the data flow. `cli` and `main` may name everything.
const LAYERS: &[(&str, &[&str])] = &[
    ("units", &[]),
    ("config", &["units"]),
    ("memory", &["units"]),
    ("admission", &["memory", "units"]),
    ("scheduler", &["admission", "memory", "units"]),
    ("ops", &["config", "units"]),
    ("tokenize", &["config", "model", "units"]),
    ("model", &["config", "memory", "ops", "tokenize", "units"]),
    ("device", &["memory", "model", "ops", "units"]),
    ("telemetry", &["admission", "config", "memory", "model", "scheduler", "units"]),
    ("engine", &["admission", "config", "device", "memory", "model", "scheduler", "telemetry", "tokenize", "units"]),
    ("service", &["admission", "config", "engine", "memory", "model", "scheduler", "telemetry", "tokenize", "units"]),
    (
        "server",
        &["admission", "config", "device", "engine", "memory", "model", "scheduler", "service", "telemetry", "units"],
    ),
];

/// Modules that are deterministic: everything they know came in as an argument.
const PURE: [&str; 4] = ["units", "memory", "admission", "scheduler"];

/// What a deterministic module may not name. `Duration` is not among it: it is a number, it reads no clock.
const IMPURE: &str = "tokio tonic prost candle_core candle_nn crossbeam_channel rayon rand tracing serde libc Instant \
    SystemTime thread mpsc Mutex RwLock RandomState env fs net process async await println eprintln";

/// What makes a gRPC status.
const STATUSES: &str = "Status::new Status::ok Status::cancelled Status::unknown Status::invalid_argument \
    Status::deadline_exceeded Status::not_found Status::already_exists Status::permission_denied \
    Status::resource_exhausted Status::failed_precondition Status::aborted Status::out_of_range \
    Status::unimplemented Status::internal Status::unavailable Status::data_loss Status::unauthenticated \
    Status::with_details Status::with_error_details";

/// Hosts that a file may link to. A URL of anywhere else is a mistake, or wants a line here.
/// That of W3C is part of SVG's name.
const HOSTS: &[&str] =
    &["127.0.0.1", "localhost", "www.apache.org", "keepachangelog.com", "semver.org", "github.com", "www.w3.org"];

/// Fails with all complaints at once.
#[track_caller]
fn check(advice: &str, complaints: Vec<String>) {
    let mut report = String::new();
    for complaint in &complaints {
        writeln!(report, "  {complaint}").expect("writing to a String does not fail");
    }
    assert!(report.is_empty(), "{advice}:\n{report}");
}

/// A complaint for each mention of one of the words, which are separated by spaces.
fn mentions(sources: impl IntoIterator<Item = Source>, words: &str) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        for word in words.split_whitespace() {
            found.extend(source.mentions(word).iter().map(|line| format!("{}:{line} names {word}", source.path)));
        }
    }
    found
}

fn inside(modules: &[&str]) -> impl Iterator<Item = Source> {
    sources("src").into_iter().filter(move |source| modules.contains(&source.module()))
}

fn outside(modules: &[&str]) -> impl Iterator<Item = Source> {
    sources("src").into_iter().filter(move |source| !modules.contains(&source.module()))
}

/// All Rust files of ours, tests and benches too.
fn everywhere() -> impl Iterator<Item = Source> {
    ["src", "tests", "benches", "fuzz"].into_iter().filter(|folder| root().join(folder).is_dir()).flat_map(sources)
}

#[test]
fn modules_name_only_what_lies_below_them() {
    let mut found = Vec::new();
    for source in outside(&["cli", "main", "lib"]) {
        let module = source.module();
        let Some((_, allowed)) = LAYERS.iter().find(|(name, _)| *name == module) else {
            panic!("{} belongs to no layer: give its module a line in LAYERS", source.path);
        };
        let above = LAYERS.iter().map(|(name, _)| *name).chain(["cli"]);
        // A group (`use crate::{..}`) would hide names from this scan.
        let mut words = vec!["crate::{".to_owned()];
        words.extend(
            above.filter(|name| *name != module && !allowed.contains(name)).map(|name| format!("crate::{name}")),
        );
        found.extend(mentions([source], &words.join(" ")));
    }
    check("a module names one that is not below it: pass a value in instead", found);
}

#[test]
fn the_pure_cores_know_no_clock_thread_device_or_randomness() {
    check("a pure core may not know this: take the fact as an argument", mentions(inside(&PURE), IMPURE));
}

/// The order of a hash map differs from run to run: in the cores it could be seen in the steps that they choose.
#[test]
fn the_pure_cores_use_ordered_collections_only() {
    check("use BTreeMap, BTreeSet or an index", mentions(inside(&PURE), "HashMap HashSet"));
}

#[test]
fn wire_types_end_in_the_services() {
    let found = mentions(outside(&["service", "cli", "main"]), "tonic tonic_health tonic_types prost");
    check("wire types are for service/ and cli/: convert them there", found);
}

#[test]
fn one_module_makes_statuses() {
    let others = inside(&["service"]).filter(|source| source.path != "src/service/errors.rs");
    check("only service/errors.rs turns a reason into a status", mentions(others, STATUSES));
}

#[test]
fn unsafe_code_lives_at_the_rim() {
    check("unsafe is for src/device and src/ops", mentions(outside(&["device", "ops"]), "unsafe"));
}

#[test]
fn nothing_panics_without_saying_why() {
    check("say with expect() what proves that this cannot fail, or handle it", mentions(sources("src"), ".unwrap()"));
}

#[test]
fn only_the_command_line_prints() {
    check("log it instead", mentions(outside(&["cli", "main"]), "print! println! eprint! eprintln!"));
}

#[test]
fn every_file_is_one_idea_that_its_first_line_names() {
    let mut found = Vec::new();
    for source in everywhere() {
        if !source.text.starts_with("//! ") {
            found.push(format!("{} does not start with //! and a sentence", source.path));
        }
        let lines = source.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().lines().count();
        let max = if source.code.is_empty() || source.path.starts_with("tests/") { TEST_LINES_MAX } else { LINES_MAX };
        let allowed = LONG.iter().any(|(path, _)| *path == source.path);
        if lines > max && !allowed {
            found.push(format!("{} has {lines} lines, more than {max}", source.path));
        }
        if lines <= max && allowed {
            found.push(format!("{} has {lines} lines and needs no exception any more", source.path));
        }
    }
    check("split it, or say in LONG what holds it together", found);
}

#[test]
fn what_is_left_to_do_names_what_would_make_it_worth_doing() {
    let word = concat!("TO", "DO");
    let mut found = Vec::new();
    for source in everywhere() {
        for (index, line) in source.text.lines().enumerate().filter(|(_, line)| has_word(line, word)) {
            if !["when", "once", "if"].iter().any(|reason| has_word(line, reason)) {
                found.push(format!("{}:{}", source.path, index + 1));
            }
        }
    }
    check("say when it should be done", found);
}

#[test]
fn no_test_is_ignored() {
    let mark = concat!("#[ig", "nore");
    let found = everywhere().filter(|source| source.text.contains(mark)).map(|source| source.path).collect();
    check("if behaviour is wrong, assert the wrong behaviour and say so", found);
}

/// Files are for everyone's machine: no absolute path of somebody's, no host of somebody's network.
#[test]
fn files_name_no_private_place() {
    let private = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];
    let mut found = Vec::new();
    for path in files("") {
        // What is no text, such as weights, names nothing; the lock file's addresses are cargo's own.
        let Ok(text) = fs::read_to_string(root().join(&path)) else { continue };
        if path.ends_with("Cargo.lock") {
            continue;
        }
        for (index, line) in text.lines().enumerate() {
            let place = format!("{}:{}", path.display(), index + 1);
            found.extend(private.iter().filter(|p| line.contains(**p)).map(|p| format!("{place} names {p}")));
            let links = ["http://", "https://"].into_iter().flat_map(|scheme| line.split(scheme).skip(1));
            for host in links.map(host) {
                if !host.is_empty() && !HOSTS.contains(&host) && !host.ends_with(".invalid") {
                    found.push(format!("{place} names the host {host}"));
                }
            }
        }
    }
    check("a file names a private place, or a host that is not in HOSTS", found);
}

/// The host at the beginning of a URL whose scheme is cut off.
fn host(url: &str) -> &str {
    let end = url.find(|c: char| !(c.is_ascii_alphanumeric() || ".-".contains(c))).unwrap_or(url.len());
    &url[..end]
}
