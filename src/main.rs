//! Parses the command line and dispatches.

use std::process::ExitCode;

use clap::Parser;
use plimsoll::cli::{check, config, pull};

/// An inference server that knows, in bytes, what every batch will cost before it runs it.
#[derive(Parser)]
#[command(version)]
enum Command {
    Check(check::CheckArgs),
    Config(config::ConfigArgs),
    Pull(pull::PullArgs),
}

fn main() -> ExitCode {
    let result = match Command::parse() {
        Command::Check(args) => check::run(args),
        Command::Config(args) => config::run(args),
        Command::Pull(args) => pull::run(args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::FAILURE
    })
}
