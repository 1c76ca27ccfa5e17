//! One arm: a server with its setting, the calls, the neighbour.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::args::PressureArgs;
use super::enclosure::Enclosure;
use super::monitor::{self, Monitor};
use super::neighbour::Event;
use super::room::Room;
use super::schedule;
use super::script::Script;
use super::server::Server;
use super::timeline::{CallPoint, EventPoint, StepPoint, Timeline};
use super::verdict::Verdict;
use crate::cli::bench::arrivals::ArrivalKind;
use crate::cli::bench::driver::{Control, Pacing};
use crate::cli::bench::measure::{Target, UNDISTURBED_LOAD, Undisturbed};
use crate::cli::bench::recorder::{Bar, Recorder};
use crate::cli::bench::report::{Part, parts};
use crate::cli::bench::workload::Workload;
use crate::units::Bytes;

/// How long the undisturbed p99 is measured.
const UNDISTURBED: Duration = Duration::from_secs(10);

/// The most calls waiting for an answer.
const IN_FLIGHT_MAX: u32 = 10_000;

const CONNECTIONS: usize = 4;

/// A setting of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arm {
    /// As shipped.
    Shipped,
    /// Batches of so many rows, whatever is free; one that does not fit fails its calls.
    Fixed(u32),
    /// Batches from the profile, but free memory is read at the start only; one that does not fit fails its calls.
    ReadingsOff,
}

impl Arm {
    /// All of them, with these fixed batches.
    pub(super) fn all(fixed: &[u32]) -> Vec<Arm> {
        let fixed = fixed.iter().map(|&rows| Arm::Fixed(rows));
        [Arm::Shipped, Arm::ReadingsOff].into_iter().chain(fixed).collect()
    }

    fn options(self) -> Vec<String> {
        match self {
            Arm::Shipped => Vec::new(),
            Arm::Fixed(rows) => {
                ["--batching", &format!("fixed:{rows}"), "--out-of-memory", "refuse"].map(str::to_owned).into()
            }
            Arm::ReadingsOff => ["--readings", "off", "--out-of-memory", "refuse"].map(str::to_owned).into(),
        }
    }
}

impl fmt::Display for Arm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Arm::Shipped => f.pad("as shipped"),
            Arm::Fixed(rows) => f.pad(&format!("fixed:{rows}")),
            Arm::ReadingsOff => f.pad("readings off"),
        }
    }
}

/// What an arm came to.
pub(super) struct ArmResult {
    pub(super) arm: Arm,
    pub(super) total: Part,
    pub(super) kills: u64,
    pub(super) neighbour_finished: bool,
    pub(super) verdict: Verdict,
    pub(super) timeline: Timeline,
}

/// What all arms share.
pub(super) struct Stage {
    args: StageArgs,
    bar: Bar,
    /// Of the server as shipped.
    pub(super) undisturbed: Undisturbed,
    /// When calls are sent.
    pub(super) pacing: Pacing,
    /// What the idle server as shipped leaves free: what percentages of the script are of.
    pub(super) spare: Bytes,
    /// In words: the kind of limit.
    pub(super) limited_by: &'static str,
}

/// The part of the command line that every arm needs, and the script in a file for the neighbour.
struct StageArgs {
    pressure: PressureArgs,
    program: PathBuf,
    script_file: PathBuf,
    logs: PathBuf,
    _folder: Scratch,
}

/// A folder that is removed when dropped.
struct Scratch(PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0); // in the folder for temporary files anyway
    }
}

/// Measures what all arms are compared by, on a server as shipped without a neighbour.
///
/// # Errors
/// A server that does not start, or whose undisturbed calls fail.
pub(super) async fn prepare(args: &PressureArgs, script: &Script) -> anyhow::Result<Stage> {
    let folder = std::env::temp_dir().join(format!("plimsoll-pressure-{}", std::process::id()));
    std::fs::create_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
    let logs = args.logs.clone().unwrap_or_else(|| folder.clone());
    std::fs::create_dir_all(&logs).with_context(|| format!("--logs {}", logs.display()))?;
    let script_file = folder.join("script");
    std::fs::write(&script_file, script.to_string()).with_context(|| format!("{}", script_file.display()))?;
    let args = StageArgs {
        pressure: args.clone(),
        program: std::env::current_exe().context("the path of this executable")?,
        script_file,
        logs,
        _folder: Scratch(folder),
    };
    eprintln!("undisturbed, as shipped");
    let enclosure = Enclosure::make(args.pressure.limit, args.pressure.limit_by)?;
    let mut server = args.server(&enclosure, Arm::Shipped, "undisturbed")?;
    let watch = Monitor::start(&enclosure, server.pid(), None, Instant::now());
    let target = args.target(&mut server).await?;
    // The file of a virtual limit is right after the monitor's first look.
    tokio::time::sleep(10 * monitor::PERIOD).await;
    let spare = enclosure.room().free()?;
    let mut bar = target.undisturbed_answers().await?;
    let undisturbed = target.undisturbed_load(UNDISTURBED).await?;
    bar.late_after = Some(undisturbed.late_after());
    let pacing = match (args.pressure.concurrency, args.pressure.rate) {
        (Some(callers), _) => Pacing::Closed { callers },
        (None, rate) => {
            let rate = rate.unwrap_or(undisturbed.capacity * UNDISTURBED_LOAD);
            Pacing::Open { kind: ArrivalKind::Poisson, rate }
        }
    };
    let limited_by = match enclosure.room() {
        Room::Cgroup2(_) => "cgroup, version 2",
        Room::Cgroup1(_) => "cgroup, version 1",
        Room::File(_) => "virtual",
        Room::Card(_) => "the GPU",
    };
    watch.finish();
    Ok(Stage { args, bar, undisturbed, pacing, spare, limited_by })
}

impl StageArgs {
    fn server(&self, enclosure: &Enclosure, arm: Arm, name: &str) -> anyhow::Result<Server> {
        let options = [self.pressure.serve.clone(), arm.options()].concat();
        Server::start(&self.program, enclosure, &options, self.logs.join(format!("{name}.log")))
    }

    async fn target(&self, server: &mut Server) -> anyhow::Result<Target> {
        let client = server.settle(CONNECTIONS).await?;
        let workload = Workload::new(&self.pressure.workload, client.models().await?)?;
        Ok(Target {
            client: Arc::new(client),
            workload: Arc::new(workload),
            in_flight_max: IN_FLIGHT_MAX,
            seed: self.pressure.workload.seed,
        })
    }
}

impl Stage {
    /// The seed of the calls.
    pub(super) fn seed(&self) -> u64 {
        self.args.pressure.workload.seed
    }

    /// Runs one arm from the start of its server to its end.
    ///
    /// # Errors
    /// A server that does not start, or a neighbour that cannot be started. What they do under pressure is the result.
    pub(super) async fn run(&self, arm: Arm) -> anyhow::Result<ArmResult> {
        let enclosure = Enclosure::make(self.args.pressure.limit, self.args.pressure.limit_by)?;
        let name = arm.to_string().replace([' ', ':'], "-");
        let mut server = self.args.server(&enclosure, arm, &name)?;
        let settling = Monitor::start(&enclosure, server.pid(), None, Instant::now());
        let target = self.args.target(&mut server).await?;
        settling.finish();

        let started = Instant::now();
        let mut neighbour = self.neighbour(&enclosure)?;
        let control = Arc::new(Control::default());
        let monitor = Monitor::start(&enclosure, server.pid(), Some(neighbour.id()), started);
        let listener = listen(&mut neighbour, started, control.clone())?;
        let models = target.workload.models().cloned().collect();
        let mut recorder = Recorder::new(models, Duration::ZERO..super::script::LONGEST, self.bar.clone());
        let mut timeline = Timeline::default();
        target
            .observe(schedule(self.pacing), started, control, |sample| {
                let good = !recorder.record(&sample).failed();
                let done_s = sample.done.as_secs_f64();
                timeline.calls.push(CallPoint { done_s, rows: sample.rows as u32, good });
            })
            .await;
        timeline.events = listener.join().expect("the listener does not panic");
        let neighbour_finished = neighbour.wait().is_ok_and(|status| status.success());
        timeline.end_s = timeline.events.last().map_or(0.0, |point| point.at_s);
        let kills = enclosure.room().kills().unwrap_or(0);
        let watched = monitor.finish();
        timeline.memory = watched.points;
        timeline.server_died_s = (!server.runs()).then(|| watched.server_gone_s.unwrap_or(timeline.end_s));
        timeline.steps = recorder.steps().iter().map(|seen| step_point(seen.at, &seen.step)).collect();
        // Rates are per second of the script, not of the endless window.
        let total = parts(&recorder, timeline.end_s).0;
        Ok(ArmResult { arm, total, kills, neighbour_finished, verdict: Verdict::of(&timeline), timeline })
    }

    fn neighbour(&self, enclosure: &Enclosure) -> anyhow::Result<Child> {
        let mut command = enclosure.command(&self.args.program);
        command.args(["bench", "neighbour", "--script"]).arg(&self.args.script_file);
        command.args(["--spare", &self.spare.get().to_string(), "--room", &enclosure.room().to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().context("the neighbour")
    }
}

fn step_point(at: Duration, step: &crate::cli::bench::client::SeenStep) -> StepPoint {
    let seen_s = at.as_secs_f64();
    StepPoint {
        seen_s,
        began_s: seen_s - step.compute_us as f64 / 1e6,
        rows: step.rows,
        padded_tokens: step.computed_tokens,
        reason: step.reason,
        predicted_bytes: step.predicted,
        true_bytes: step.peak,
        headroom_bytes: step.headroom,
    }
}

/// Follows what the neighbour says: pauses and ends the calls, and keeps the events until it ends or dies.
fn listen(
    neighbour: &mut Child,
    started: Instant,
    control: Arc<Control>,
) -> anyhow::Result<std::thread::JoinHandle<Vec<EventPoint>>> {
    let out = neighbour.stdout.take().context("the neighbour's stdout")?;
    Ok(std::thread::spawn(move || {
        let mut events = Vec::new();
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            let at_s = started.elapsed().as_secs_f64();
            let Ok(event) = serde_json::from_str(&line) else { continue };
            if let Event::Load { on } = event {
                control.set_paused(!on);
            }
            events.push(EventPoint { at_s, event });
        }
        control.stop();
        events
    }))
}
