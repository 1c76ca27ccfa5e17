//! `plimsoll profile MODEL --by-op`: the program, from the command line to the table and the picture.

use std::path::Path;
use std::process::{Command, Output};

fn profile(home: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.arg("profile").args(arguments).env_clear().env("HOME", home).current_dir(home);
    command.output().expect("the program starts")
}

#[test]
fn the_table_names_who_holds_the_peak_and_the_picture_is_written() {
    let home = tempfile::tempdir().expect("a folder can be made");
    let svg = home.path().join("step.svg");
    let picture = svg.to_str().expect("the folder's name is text");
    let output = profile(home.path(), &["tiny-embed", "--by-op", "--shape", "4x100", "--svg", picture]);
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("a step of 400 tokens (longest 100): "), "{text}");
    // The widest memory of a step comes first: 400 tokens of 768 values in f32 are 1.17 MiB.
    let head = text.lines().position(|line| line.starts_with("bytes ")).expect("a table");
    let widest = text.lines().nth(head + 1).expect("a first line");
    assert!(widest.starts_with("1.17 MiB") && widest.ends_with("400 x 768"), "{text}");
    assert!(widest.contains("workspace") && text.contains("embeddings"), "{text}");
    assert!(!text.contains("no event accounts for") && !text.contains("too late"), "{text}");
    let svg = std::fs::read_to_string(svg).expect("the picture is written");
    assert!(svg.contains("tiny-embed: memory of a step of 400 tokens (longest 100)"), "{svg}");
}

#[test]
fn a_step_that_the_model_cannot_run_is_refused_with_the_bound() {
    let home = tempfile::tempdir().expect("a folder can be made");
    let output = profile(home.path(), &["tiny-embed", "--by-op", "--shape", "1x257"]);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && errors.contains("at most 256 tokens"), "{errors}");
}
