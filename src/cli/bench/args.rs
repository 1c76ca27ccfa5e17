//! The command line of `plimsoll bench`.

use std::path::PathBuf;
use std::time::Duration;

use super::arrivals::ArrivalKind;
use super::client::Protocol;
use super::connect::CredentialArgs;
use super::duration::parse_duration;
use super::fail_on::FailOn;
use super::pressure::{NeighbourArgs, PressureArgs};
use super::workload::WorkloadArgs;

/// Sends load to a server and says what came of it.
///
/// With --rate calls are sent on a schedule whatever the server does (an open loop), and latency counts from the moment
/// a call was due. With --concurrency each of so many callers waits for its answer first (a closed loop).
/// "Failed" is a call that was not OK, whose answer was outside the dtype's tolerance of the undisturbed answer, or
/// that came later than ten times the undisturbed p99 in an open loop at 70 % of the capacity (--find-capacity measures
/// that, --late-after sets it).
#[derive(clap::Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub struct BenchArgs {
    /// What else to run.
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// The plain benchmark.
    #[command(flatten)]
    pub run: RunArgs,
}

/// Benchmarks that bring their own surroundings.
#[derive(clap::Subcommand, Debug)]
pub enum BenchCommand {
    /// Runs servers beside a neighbour that takes and frees memory.
    Pressure(Box<PressureArgs>),
    /// The neighbour of `bench pressure`: takes and frees memory on a script.
    #[command(hide = true)]
    Neighbour(NeighbourArgs),
}

/// The plain benchmark.
#[derive(clap::Args, Debug)]
pub struct RunArgs {
    /// The server.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8001")]
    pub address: String,
    /// What the server asks of its callers.
    #[command(flatten)]
    pub credentials: CredentialArgs,
    /// Protocol to speak.
    #[arg(long, value_enum, default_value = "plimsoll")]
    pub protocol: Protocol,
    /// Connections, taken in turn.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub connections: u16,
    /// Calls per second, on a schedule. Default with --find-capacity: 70 % of what is found.
    #[arg(long, value_name = "CALLS/S", conflicts_with = "concurrency", value_parser = parse_rate)]
    pub rate: Option<f64>,
    /// How the schedule is drawn.
    #[arg(long, value_enum, default_value_t = ArrivalKind::Poisson)]
    pub arrivals: ArrivalKind,
    /// Callers, each waiting for its answer before it asks again. Default without --rate and --find-capacity: 8.
    #[arg(long, value_name = "CALLERS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub concurrency: Option<u32>,
    /// First measures the capacity and, at 70 % of it, the undisturbed p99.
    #[arg(long)]
    pub find_capacity: bool,
    /// How long the undisturbed load of --find-capacity lasts.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub undisturbed: Duration,
    /// An answer after this is late. Default with --find-capacity: ten times the undisturbed p99.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub late_after: Option<Duration>,
    /// How long calls are judged.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_duration)]
    pub duration: Duration,
    /// How long calls are sent before that.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = parse_duration)]
    pub warmup: Duration,
    /// The most calls waiting for an answer; further ones count as failed (not sent). Each costs its rows in memory here.
    #[arg(long, value_name = "CALLS", default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub in_flight_max: u32,
    /// What is asked.
    #[command(flatten)]
    pub workload: WorkloadArgs,
    /// Sample the memory of this process (the server) from outside, every 10 ms.
    #[arg(long, alias = "pid", value_name = "PID")]
    pub smaps_pid: Option<u32>,
    /// Write the report here as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Exit with 1 when this holds, such as failed>0 or p99_ms>50; repeatable.
    #[arg(long, value_name = "METRIC>NUMBER")]
    pub fail_on: Vec<FailOn>,
}

/// A positive number of calls per second.
pub(super) fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| rate.is_finite() && *rate > 0.0);
    rate.ok_or_else(|| format!("'{text}' is not a rate: allowed is a number of calls per second above 0"))
}
