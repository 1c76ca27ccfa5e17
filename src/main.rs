//! Parses the command line and dispatches.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    match plimsoll::cli::Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            // One sentence with its causes; a backtrace is for bugs, and those panic.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
