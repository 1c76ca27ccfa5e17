//! The plain benchmark: one server, one load, one report.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;

use super::args::RunArgs;
use super::client::Client;
use super::driver::Pacing;
use super::duration::milliseconds;
use super::measure::{Schedule, Target, UNDISTURBED_LOAD, Undisturbed};
use super::report::{Report, parts};
use super::smaps::MemoryWatch;
use super::table;
use super::workload::Workload;

/// Callers of a closed loop when nothing is said.
const CALLERS: u32 = 8;

/// Runs the benchmark, prints its table, and says by the exit code whether a `--fail-on` condition held.
pub(super) async fn run(args: RunArgs) -> anyhow::Result<ExitCode> {
    let report = measure(&args).await?;
    print!("{}", table::render(&report));
    if let Some(path) = &args.json {
        let json = serde_json::to_vec_pretty(&report)?;
        std::fs::write(path, json).with_context(|| format!("--json {}", path.display()))?;
    }
    let broken: Vec<String> = args.fail_on.iter().filter_map(|condition| condition.broken_by(&report)).collect();
    for line in &broken {
        eprintln!("fail-on {line}");
    }
    Ok(if broken.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs the benchmark.
pub(super) async fn measure(args: &RunArgs) -> anyhow::Result<Report> {
    let client = Client::connect(&args.address, &args.credentials, args.protocol, args.connections.into()).await?;
    let workload = Workload::new(&args.workload, client.models().await?)?;
    // Before the first call: the server is idle now.
    let memory = args.smaps_pid.map(MemoryWatch::start).transpose()?;
    let target = Target {
        client: Arc::new(client),
        workload: Arc::new(workload),
        in_flight_max: args.in_flight_max,
        seed: args.workload.seed,
    };
    let mut bar = target.undisturbed_answers().await?;
    let undisturbed = match args.find_capacity {
        true => Some(target.undisturbed_load(args.undisturbed).await?),
        false => None,
    };
    bar.late_after = args.late_after.or(undisturbed.map(|found| found.late_after()));
    let late_after = bar.late_after;
    let pacing = pacing(args, undisturbed);
    let schedule = Schedule { pacing, warmup: args.warmup, length: args.duration, first_call: 0 };
    let recorder = target.load_until_interrupt(schedule, bar, "load").await;
    let (total, models) = parts(&recorder, recorder.window_seconds());
    Ok(Report {
        schema: 1,
        plimsoll: env!("CARGO_PKG_VERSION"),
        load: in_words(args, pacing),
        undisturbed: undisturbed.map(Into::into),
        late_after_ms: late_after.map(milliseconds),
        window_s: recorder.window_seconds(),
        send_lag_p99_ms: recorder.send_lag().value_at_quantile(0.99) as f64 / 1e3,
        first_wrong: recorder.first_wrong().map(str::to_owned),
        total,
        models,
        memory: memory.map(MemoryWatch::finish),
    })
}

fn pacing(args: &RunArgs, undisturbed: Option<Undisturbed>) -> Pacing {
    let kind = args.arrivals;
    match (args.rate, args.concurrency, undisturbed) {
        (Some(rate), ..) => Pacing::Open { kind, rate },
        (None, Some(callers), _) => Pacing::Closed { callers },
        (None, None, Some(found)) => Pacing::Open { kind, rate: found.capacity * UNDISTURBED_LOAD },
        (None, None, None) => Pacing::Closed { callers: CALLERS },
    }
}

/// What was asked: enough to ask it again.
fn in_words(args: &RunArgs, pacing: Pacing) -> BTreeMap<&'static str, String> {
    let workload = &args.workload;
    let rows: Vec<_> = workload.rows.iter().map(u32::to_string).collect();
    let form = format!("{:?}", workload.form).to_lowercase();
    let of = format!("{:?}", workload.lengths_of).to_lowercase();
    let mut words = BTreeMap::from([
        ("server", format!("{} ({:?}, {} connections)", args.address, args.protocol, args.connections)),
        ("pacing", pacing.to_string()),
        ("rows", format!("{} a call", rows.join(" or "))),
        ("seed", workload.seed.to_string()),
        (
            "lengths",
            match &workload.texts {
                Some(path) => format!("texts of {}", path.display()),
                None => format!("{} tokens, drawn for {of}, as {form}", workload.lengths),
            },
        ),
    ]);
    if let Some(deadline) = workload.deadline {
        words.insert("deadline", format!("{:.1} ms", milliseconds(deadline)));
    }
    if workload.cancel > 0.0 {
        let within = milliseconds(workload.cancel_after);
        words.insert("cancelled", format!("{:.1} % within {within:.1} ms", workload.cancel * 100.0));
    }
    words
}
