//! One arm: a server with its setting, the calls, the neighbour.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::args::PressureArgs;
use super::enclosure::Enclosure;
use super::monitor::Monitor;
use super::process::NeighbourProcess;
use super::room::Room;
use super::schedule;
use super::script::Script;
use super::server::Server;
use super::timeline::{CallPoint, EventPoint, StepPoint, Timeline};
use super::verdict::Verdict;
use crate::cli::bench::arrivals::ArrivalKind;
use crate::cli::bench::client::ModelFacts;
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

/// An idle server has returned what it cached when for so long no more came free: longer than two windows of its usual
/// `--idle-decay`.
const REST: Duration = Duration::from_secs(3);

/// The longest that this is waited for.
const REST_MAX: Duration = Duration::from_secs(30);

/// How often free memory is looked at meanwhile.
const GLANCE: Duration = Duration::from_millis(100);

/// Free memory that comes and goes by itself.
const NOISE: Bytes = Bytes::mib(1);

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
    /// Why its server did not start beside a neighbour that was there before it.
    pub(super) did_not_start: Option<String>,
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
    /// All that server and neighbour share.
    pub(super) limit: Bytes,
    /// What the idle server as shipped leaves free of it: what percentages of the script are of.
    pub(super) spare: Bytes,
    /// What it takes: context, weights, whatever it keeps between steps.
    pub(super) server_needs: Bytes,
    /// The models that are asked.
    models: Vec<ModelFacts>,
    starts_server: bool,
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
    let watch = Monitor::start(&enclosure, Instant::now());
    let before = enclosure.room().free()?;
    let mut server = args.server(&enclosure, Arm::Shipped, "undisturbed")?;
    watch.server(server.pid());
    let target = args.target(&mut server).await?;
    let spare = free_at_rest(enclosure.room()).await?;
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
    Ok(Stage {
        args,
        bar,
        undisturbed,
        pacing,
        limit: enclosure.limit(),
        spare,
        server_needs: before.saturating_sub(spare),
        models: target.workload.models().cloned().collect(),
        starts_server: script.starts_server(),
        limited_by,
    })
}

/// What is free beside a server that is idle and has returned what it cached.
async fn free_at_rest(room: &Room) -> anyhow::Result<Bytes> {
    let (began, mut most, mut rose) = (Instant::now(), room.free()?, Instant::now());
    while rose.elapsed() < REST && began.elapsed() < REST_MAX {
        tokio::time::sleep(GLANCE).await;
        let free = room.free()?;
        if free > most + NOISE {
            rose = Instant::now();
        }
        most = most.max(free);
    }
    room.free()
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

    /// Runs one arm from its start to its end.
    ///
    /// # Errors
    /// A neighbour that cannot be started, or a server that does not start; but where a neighbour was there before it,
    /// that is the result, unless it is the one as shipped. What they do under pressure is the result.
    pub(super) async fn run(&self, arm: Arm) -> anyhow::Result<ArmResult> {
        let enclosure = Enclosure::make(self.args.pressure.limit, self.args.pressure.limit_by)?;
        let control = Arc::new(Control::default());
        let arrived = Instant::now();
        let monitor = Monitor::start(&enclosure, arrived);
        let mut first = None;
        if self.starts_server {
            let mut neighbour = self.neighbour(&enclosure, &monitor, &control)?;
            neighbour.until_it_waits().await?;
            first = Some(neighbour);
        }
        let name = arm.to_string().replace([' ', ':'], "-");
        let mut server = self.args.server(&enclosure, arm, &name)?;
        monitor.server(server.pid());
        let target = self.args.target(&mut server).await;

        let started = Instant::now();
        let mut recorder = Recorder::new(self.models.clone(), Duration::ZERO..super::script::LONGEST, self.bar.clone());
        let mut timeline = Timeline::default();
        let (said, did_not_start, neighbour_finished) = match (target, first) {
            (Ok(target), first) => {
                let neighbour = match first {
                    Some(mut neighbour) => {
                        neighbour.go_on();
                        neighbour
                    }
                    None => self.neighbour(&enclosure, &monitor, &control)?,
                };
                target
                    .observe(schedule(self.pacing), started, control, |sample| {
                        let good = !recorder.record(&sample).failed();
                        let done_s = sample.done.as_secs_f64();
                        timeline.calls.push(CallPoint { done_s, rows: sample.rows as u32, good });
                    })
                    .await;
                let (said, finished) = neighbour.finish();
                (said, None, finished)
            }
            (Err(reason), Some(neighbour)) if arm != Arm::Shipped => {
                (neighbour.give_up(), Some(format!("{reason:#}")), false)
            }
            (Err(reason), _) => return Err(reason),
        };
        let kills = enclosure.room().kills().unwrap_or(0);
        let mut watched = monitor.finish();
        let signed = |at: Instant| match at.checked_duration_since(started) {
            Some(after) => after.as_secs_f64(),
            None => -started.duration_since(at).as_secs_f64(),
        };
        timeline.events = said.into_iter().map(|(at, event)| EventPoint { at_s: signed(at), event }).collect();
        timeline.begin_s = timeline.events.first().map_or(0.0, |point| point.at_s.min(0.0));
        timeline.end_s = timeline.events.last().map_or(0.0, |point| point.at_s);
        watched.count_from(-signed(arrived), timeline.begin_s);
        timeline.memory = watched.points;
        let died = did_not_start.is_none() && !server.runs();
        timeline.server_died_s = died.then(|| watched.server_gone_s.unwrap_or(timeline.end_s));
        timeline.steps = recorder.steps().iter().map(|seen| step_point(seen.at, &seen.step)).collect();
        // Rates are per second of the script, not of the endless window.
        let total = parts(&recorder, timeline.end_s).0;
        let verdict = Verdict::of(&timeline);
        Ok(ArmResult { arm, did_not_start, total, kills, neighbour_finished, verdict, timeline })
    }

    fn neighbour(
        &self,
        enclosure: &Enclosure,
        monitor: &Monitor,
        control: &Arc<Control>,
    ) -> anyhow::Result<NeighbourProcess> {
        let mut command = enclosure.command(&self.args.program);
        command.args(["bench", "neighbour", "--script"]).arg(&self.args.script_file);
        command.args(["--spare", &self.spare.get().to_string()]);
        command.args(["--server-needs", &self.server_needs.get().to_string()]);
        command.args(["--room", &enclosure.room().to_string()]);
        let neighbour = NeighbourProcess::start(&mut command, control.clone())?;
        monitor.neighbour(neighbour.pid());
        Ok(neighbour)
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
