//! `plimsoll bench pressure`: servers beside a neighbour that takes and frees memory.
//!
//! Server and neighbour share an [`enclosure`], a limit on the memory of both, or a GPU. Each *arm* is a server with its own
//! setting under the same calls at the same times and the same neighbour: as shipped, with fixed batches of several
//! sizes, with readings off. What happened is a [`timeline`]; a [`verdict`] is computed from it alone.

mod args;
mod script;
mod room;
mod card;
mod neighbour;
mod process;
mod enclosure;
mod server;
mod monitor;
mod timeline;
mod arm;
mod verdict;
mod comparison;
mod report;
mod render;
mod plot;

use std::process::ExitCode;

use anyhow::Context;

use super::measure::Schedule;
pub(super) use args::{NeighbourArgs, PressureArgs};
use arm::{Arm, Stage, prepare};
pub(super) use neighbour::run as run_neighbour;
use report::PressureReport;
use script::Script;

/// Runs every arm, prints the table, writes what was asked for. The exit code is 1 when `--fail-on-shipped` was given
/// and the arm as shipped failed a call, overran or lost a process.
pub(super) async fn run(args: PressureArgs) -> anyhow::Result<ExitCode> {
    let script = match &args.script {
        Some(path) => {
            let text = std::fs::read_to_string(path).with_context(|| format!("--script {}", path.display()))?;
            Script::parse(&text).with_context(|| format!("--script {}", path.display()))?
        }
        None => Script::default(),
    };
    let stage: Stage = prepare(&args, &script).await?;
    let mut arms = Vec::new();
    for arm in Arm::all(&args.fixed) {
        eprintln!("arm {arm}");
        arms.push(stage.run(arm).await.with_context(|| format!("arm {arm}"))?);
    }
    let report = PressureReport::new(&stage, arms);
    print!("{}", report.render());
    if let Some(path) = &args.json {
        let json = serde_json::to_vec_pretty(&report)?;
        std::fs::write(path, json).with_context(|| format!("--json {}", path.display()))?;
    }
    if let Some(path) = &args.plot {
        plot::write(path, &report).with_context(|| format!("--plot {}", path.display()))?;
    }
    let failed = args.fail_on_shipped && report.shipped().is_some_and(|shipped| !shipped.clean());
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The part of a schedule that all arms share: calls are sent until the script ends.
fn schedule(pacing: super::driver::Pacing) -> Schedule {
    let (warmup, length) = (std::time::Duration::ZERO, script::LONGEST);
    Schedule { pacing, warmup, length, first_call: 0 }
}
