//! `plimsoll bench`: a client that sends load and judges what comes back. It knows a server only through gRPC.
//!
//! A [`workload`] says what call 17 is, [`arrivals`] when it is due; the [`driver`] sends it through a [`client`], the
//! [`recorder`] judges its end, the [`report`] says what it all amounts to.

mod args;
pub(super) mod duration;
mod lengths;
mod words;
mod weighted;
mod workload;
mod arrivals;
pub(super) mod connect;
mod client;
mod plimsoll_client;
mod oip_client;
mod answer;
mod driver;
mod steps;
mod recorder;
mod measure;
mod smaps;
mod report;
mod table;
mod fail_on;
mod run;
mod pressure;
#[cfg(test)]
mod end_to_end;
#[cfg(test)]
mod tries;

use std::process::ExitCode;

pub use args::BenchArgs;
use args::BenchCommand;

/// Runs a benchmark on a tokio runtime of its own.
///
/// # Errors
/// Bad input, an unreachable server, a file that cannot be written: one sentence each. Failed calls are no error but a
/// result; `--fail-on` turns them into the exit code 1.
pub fn run(args: BenchArgs) -> anyhow::Result<ExitCode> {
    // The neighbour is the one part that must stay small and free of threads: its memory is the experiment.
    if let Some(BenchCommand::Neighbour(neighbour)) = &args.command {
        return pressure::run_neighbour(neighbour);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        match args.command {
            None => run::run(args.run).await,
            Some(BenchCommand::Pressure(pressure)) => pressure::run(*pressure).await,
            Some(BenchCommand::Neighbour(_)) => unreachable!("handled above"),
        }
    })
}
