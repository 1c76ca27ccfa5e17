//! Parses the command line and dispatches.

use std::process::ExitCode;

use clap::Parser;
use plimsoll::cli::bench::{self, BenchArgs};

#[derive(Parser)]
#[command(name = "plimsoll", version)]
enum Command {
    /// Sends load to a server and judges the answers.
    Bench(Box<BenchArgs>),
}

fn main() -> anyhow::Result<ExitCode> {
    match Command::parse() {
        Command::Bench(args) => bench::run(*args),
    }
}
