//! Parses the command line and dispatches.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    if let Some(missing) = plimsoll::device::cpu::missing_instructions() {
        eprintln!(
            "error: this program was built for processors with {missing}, which this one lacks: build it with \
             RUSTFLAGS=\"-C target-cpu=native\""
        );
        return ExitCode::FAILURE;
    }
    match plimsoll::cli::Cli::parse().run() {
        Ok(code) => code,
        Err(error) => {
            // One sentence with its causes; a backtrace is for bugs, and those panic.
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
