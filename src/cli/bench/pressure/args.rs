//! The command lines of `bench pressure` and of its neighbour.

use std::path::PathBuf;

use super::enclosure::LimitBy;
use super::room::Room;
use crate::cli::bench::args::parse_rate;
use crate::cli::bench::workload::WorkloadArgs;
use crate::units::Bytes;

/// Runs servers of this executable beside a neighbour that takes and frees memory on a script: as shipped, with fixed
/// batches, with readings off; the same calls at the same times for each.
///
/// Server and neighbour share a limit. With --limit-by cgroup it is a memory cgroup (version 2 or 1; needs root) and
/// the kernel kills who exceeds it, the server first, because the memory is the neighbour's own. With
/// virtual nothing is killed: the server reads its free memory from a file (--memory-reading-file) that this program
/// writes every 10 ms, and what server and neighbour hold together beyond the limit is counted as overrun. With card
/// they share the first GPU, all of it, and --limit is not looked at; the server needs --device cuda among its options.
///
/// The script has one statement a line; amounts are bytes, or a percentage of what the idle server leaves free:
///   hold DURATION                        wait
///   take AMOUNT                          hold so much, whoever else needs it
///   leave AMOUNT                         take, 32 MiB a second, until only so much is free and stays so
///   free all | free AMOUNT               give back
///   ask AMOUNT floor AMOUNT for DURATION hold so much, but take only while the floor stays free; give up after that
///   load stop | load start               no calls; calls again
///   start server                         start it, wait until it is ready, then go on and send calls
///
/// Without `start server` the server is ready before the script begins. What stands before it happens beside no server,
/// and what `leave` and `ask` leave free there lies beside what an idle server needs: measured as what the undisturbed
/// one took from its start until it was idle and had returned its cached workspace. Give such a server a budget
/// (--memory-budget among its options): by default it is a part of what is free at its start, whoever has the rest then.
/// A server that does not start is the result of its arm, but for the one as shipped an error.
#[derive(clap::Args, Clone, Debug)]
#[command(verbatim_doc_comment, mut_arg("rows", |rows| rows.default_value("32")))]
pub struct PressureArgs {
    /// Memory that server and neighbour have together.
    #[arg(long, default_value = "1GiB")]
    pub limit: Bytes,
    /// How the limit is made.
    #[arg(long, value_enum, default_value_t = LimitBy::Auto)]
    pub limit_by: LimitBy,
    /// What the neighbour does; a built-in script of some 45 s without it.
    #[arg(long, value_name = "FILE")]
    pub script: Option<PathBuf>,
    /// Batch sizes of the arms with fixed batches; the best one is compared with.
    #[arg(long, value_name = "ROWS", value_delimiter = ',', default_value = "8,32,128", value_parser = clap::value_parser!(u32).range(1..))]
    pub fixed: Vec<u32>,
    /// Calls per second. Default: 70 % of the capacity that the server as shipped has without a neighbour.
    #[arg(long, value_name = "CALLS/S", value_parser = parse_rate, conflicts_with = "concurrency")]
    pub rate: Option<f64>,
    /// Callers that each wait for their answer, instead of calls on a schedule: the goodput is then the capacity.
    #[arg(long, value_name = "CALLERS", value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub concurrency: Option<u32>,
    /// What is asked. The default for --rows here is 32: small calls would never make large batches.
    #[command(flatten)]
    pub workload: WorkloadArgs,
    /// Write the report here as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw free memory, batch sizes and goodput over time here, as SVG.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
    /// Keep the servers' logs in this folder.
    #[arg(long, value_name = "FOLDER")]
    pub logs: Option<PathBuf>,
    /// Exit with 1 when the arm as shipped fails a call, overruns, or loses a process.
    #[arg(long)]
    pub fail_on_shipped: bool,
    /// Further options for every `plimsoll serve`, after `--`, such as `--model`.
    #[arg(last = true, value_name = "SERVE OPTIONS")]
    pub serve: Vec<String>,
}

/// What the neighbour process is told.
#[derive(clap::Args, Debug)]
pub struct NeighbourArgs {
    /// What to do.
    #[arg(long, value_name = "FILE")]
    pub script: PathBuf,
    /// What percentages are of.
    #[arg(long)]
    pub spare: Bytes,
    /// What an idle server takes: what stands before `start server` leaves so much more free.
    #[arg(long)]
    pub server_needs: Bytes,
    /// Where free memory is read: `cgroup2:FOLDER`, `cgroup1:FOLDER`, `file:FILE` or `card:NUMBER`.
    #[arg(long)]
    pub room: Room,
}
