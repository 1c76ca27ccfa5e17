//! A device that carries out orders when it is told to, and fails where it is told to.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex};

use crate::device::profile_store::ProfileFacts;
use crate::device::statistics::{DeviceSnapshot, Use, WorkspaceUse};
use crate::device::trace::Recording;
use crate::device::{
    Device, Executor, LoadFailure, Loaded, Order, Ran, Released, Report, RowFailure, Run, RunPurpose, Shortfall,
    Stopped,
};
use crate::memory::{Axes, Observed, Outcome, Reading, Rungs, ShapeKind, Slack, Terms};
use crate::model::{Batch, DeviceForm, Fault};
use crate::units::{Bytes, Micros, ModelId, Timestamp};

/// What the next step for requests, or the next load, meets.
#[derive(Clone, Debug)]
pub(super) enum Misfortune {
    /// This row of the batch is not finite.
    BadRow(usize),
    /// The model panics.
    Panic,
    /// The ladder refuses this row, with these numbers.
    Refused(usize, Shortfall),
    /// The ladder evicts the first model that may go.
    Evicts,
    /// The device is lost.
    Lost,
}

/// The numbers of one model on this device.
#[derive(Clone, Debug)]
pub(super) struct Tenant {
    pub(super) resident: Bytes,
    pub(super) axes: Axes,
}

pub(super) struct Machine {
    pub(super) orders: VecDeque<Order>,
    /// It works on an order that it has taken out.
    pub(super) working: bool,
    /// It takes a step behind the one it works on.
    pub(super) runs_ahead: bool,
    pub(super) tenants: BTreeMap<ModelId, Tenant>,
    pub(super) total: Bytes,
    /// What somebody else has of it.
    pub(super) neighbour: Bytes,
    pub(super) held: BTreeMap<ModelId, Bytes>,
    /// Workspace that steps have left.
    pub(super) cached: Bytes,
    pub(super) trims: usize,
    /// What is cached cannot be given back.
    pub(super) clings: bool,
    pub(super) misfortune: Option<Misfortune>,
    pub(super) load_fault: Option<Fault>,
    /// So many runs of probes of so many tokens or more fail.
    pub(super) probe_faults: (u32, u64),
    /// Bytes that a load can have, whatever the reading says; by how many loads that is noticed.
    pub(super) load_room: Option<(Bytes, u32)>,
    /// Time that a load takes.
    pub(super) load_time: Micros,
    /// Time that a step takes beside what its tokens take.
    pub(super) step_time: Micros,
    /// Workspace of a token.
    pub(super) token_bytes: Bytes,
    /// Rows of requests that were run, by the step: the first id of each.
    pub(super) ran: Vec<(ModelId, Vec<u32>)>,
    /// Runs of probes.
    pub(super) probes: usize,
    pub(super) traces: usize,
    pub(super) loads: Vec<ModelId>,
    pub(super) unloads: Vec<ModelId>,
}

impl Machine {
    pub(super) fn new(tenants: BTreeMap<ModelId, Tenant>) -> Machine {
        Machine {
            orders: VecDeque::new(),
            working: false,
            runs_ahead: false,
            tenants,
            total: Bytes::gib(1),
            neighbour: Bytes::ZERO,
            held: BTreeMap::new(),
            cached: Bytes::ZERO,
            trims: 0,
            clings: false,
            misfortune: None,
            load_fault: None,
            probe_faults: (0, 0),
            load_room: None,
            load_time: Micros::millis(100),
            step_time: Micros::new(200),
            token_bytes: Bytes::kib(4),
            ran: Vec::new(),
            probes: 0,
            traces: 0,
            loads: Vec::new(),
            unloads: Vec::new(),
        }
    }

    /// The order that the device is to work on.
    pub(super) fn next(&mut self) -> Option<Order> {
        self.orders.pop_front()
    }

    /// Orders that are not reported as done.
    pub(super) fn errands(&self) -> usize {
        self.orders.len() + usize::from(self.working)
    }

    /// How long an order takes, and what is reported then.
    pub(super) fn carry_out(&mut self, order: Order) -> (Micros, Vec<Report>) {
        match order {
            Order::Load { model, ceiling, .. } => {
                assert!(!self.held.contains_key(&model), "{model} is loaded twice");
                self.loads.push(model);
                let result = match (self.load_fault.take(), self.short(model, ceiling)) {
                    (Some(fault), _) => Err(fault.into()),
                    (None, Some(shortfall)) => Err(LoadFailure::OutOfMemory(shortfall)),
                    (None, None) => {
                        let Tenant { resident, axes } = self.tenant(model).clone();
                        self.held.insert(model, resident);
                        Ok(Loaded { resident, peak: resident, time: self.load_time, axes })
                    }
                };
                (self.load_time, vec![Report::Loaded { model, result }])
            }
            Order::Unload { model } => (Micros::millis(1), vec![Report::Unloaded(self.release(model))]),
            Order::Run(run) => self.run(run),
            Order::Trim { keep } => {
                let keep = if self.clings { self.cached } else { keep };
                let released = self.cached.saturating_sub(keep);
                self.cached = self.cached.min(keep);
                self.trims += 1;
                (Micros::millis(1), vec![Report::Trimmed { released }])
            }
            Order::Stop => unreachable!("it ends with the device"),
        }
    }

    /// The numbers of a model. Revisions that come later have those of the first model: all have the same files.
    fn tenant(&self, model: ModelId) -> &Tenant {
        let first = self.tenants.first_key_value().map(|(_, first)| first);
        self.tenants.get(&model).or(first).expect("a model is loaded, so there is one")
    }

    /// What a load lacks: of its lease, or of what there is.
    fn short(&mut self, model: ModelId, ceiling: Bytes) -> Option<Shortfall> {
        let needed = self.tenant(model).resident;
        if needed > ceiling {
            return Some(Shortfall { needed: ceiling + Bytes::new(1), available: ceiling });
        }
        let (room, loads) = self.load_room.as_mut().filter(|(_, loads)| *loads > 0)?;
        *loads -= 1;
        Some(Shortfall { needed: ceiling, available: *room })
    }

    fn release(&mut self, model: ModelId) -> Released {
        self.unloads.push(model);
        let released = self.held.remove(&model).expect("only models that are here are thrown out");
        Released { model, released, left: Bytes::ZERO, free: None }
    }

    fn run(&mut self, run: Run) -> (Micros, Vec<Report>) {
        let Run { step, model, batch: Batch::Tokens(rows), purpose, evictable, .. } = run;
        assert!(self.held.contains_key(&model), "{model} runs without being loaded");
        let tokens: u64 = rows.iter().map(|row| row.ids.len() as u64).sum();
        let peak = self.token_bytes * tokens + Bytes::kib(100);
        let mut observed = Observed {
            peak,
            reach: peak,
            time: self.step_time + Micros::new(10 * tokens),
            rungs: Rungs::default(),
            outcome: Outcome::Done,
        };
        self.cached = self.cached.max(observed.peak);
        let resident = self.held[&model];
        let recording = (purpose == RunPurpose::Trace).then(Recording::default);
        let ran = |rows, observed: Observed| {
            Report::Ran(Ran { step, model, rows, observed, busy: observed.time, resident, recording })
        };
        match purpose {
            RunPurpose::Measure => {
                self.probes += 1;
                let mut results = Vec::new();
                let (left, from) = &mut self.probe_faults;
                if *left > 0 && tokens >= *from {
                    *left -= 1;
                    observed.outcome = Outcome::Faulted;
                    results = vec![Err(RowFailure::Fault(Fault::NotFinite { row: 0 })); rows.len()];
                }
                return (observed.time, vec![ran(results, observed)]);
            }
            RunPurpose::Trace => {
                self.traces += 1;
                return (observed.time, vec![ran(Vec::new(), observed)]);
            }
            RunPurpose::Serve => {}
        }
        self.ran.push((model, rows.iter().map(|row| row.ids[0]).collect()));
        let mut results: Vec<_> =
            rows.iter().map(|row| Ok(vec![row.ids.iter().sum::<u32>() as f32, row.ids.len() as f32])).collect();
        let mut reports = Vec::new();
        let all = |fault: Fault| vec![Err(RowFailure::Fault(fault)); rows.len()];
        match self.misfortune.take() {
            None => {}
            Some(Misfortune::BadRow(row)) => {
                let row = row % results.len();
                results[row] = Err(RowFailure::Fault(Fault::NotFinite { row }));
                observed.outcome = Outcome::Faulted;
            }
            Some(Misfortune::Panic) => {
                results = all(Fault::Panicked { message: "told to".to_owned() });
                observed.outcome = Outcome::Faulted;
            }
            Some(Misfortune::Lost) => {
                results = all(Fault::DeviceLost { message: "told to".to_owned() });
                observed.outcome = Outcome::Faulted;
            }
            Some(Misfortune::Refused(row, shortfall)) => {
                let row = row % results.len();
                results[row] = Err(RowFailure::OutOfMemory(shortfall));
                observed.outcome = Outcome::OutOfMemory;
                observed.rungs = Rungs { trims: 1, halvings: 1, evictions: 0, refusals: 1 };
            }
            Some(Misfortune::Evicts) => {
                if let Some(&victim) = evictable.iter().find(|victim| self.held.contains_key(victim)) {
                    observed.rungs = Rungs { trims: 1, halvings: 0, evictions: 1, refusals: 0 };
                    reports.push(Report::Evicted(self.release(victim)));
                }
            }
        }
        reports.push(ran(results, observed));
        (observed.time, reports)
    }
}

/// The engine's side of the machine.
pub(super) struct FakeDevice(pub(super) Arc<Mutex<Machine>>);

impl Executor for FakeDevice {
    fn send(&self, order: Order) -> Result<(), Stopped> {
        self.0.lock().unwrap().orders.push_back(order);
        Ok(())
    }
}

impl Device for FakeDevice {
    fn name(&self) -> String {
        "machine".to_owned()
    }

    fn form(&self) -> DeviceForm {
        DeviceForm::Cpu
    }

    fn reading(&self, now: Timestamp) -> io::Result<Reading> {
        let machine = self.0.lock().unwrap();
        let held: Bytes = machine.held.values().copied().sum();
        Ok(Reading {
            at: now,
            free: machine.total.saturating_sub(machine.neighbour + held + machine.cached),
            total: machine.total,
            workspace_reserved: machine.cached,
            workspace_cached: machine.cached,
            library: Bytes::ZERO,
            leftovers: Bytes::ZERO,
        })
    }

    fn snapshot(&self) -> io::Result<DeviceSnapshot> {
        let reading = self.reading(Timestamp::START)?;
        Ok(DeviceSnapshot {
            card: None,
            device: self.name(),
            free_bytes: reading.free.get(),
            total_bytes: reading.total.get(),
            workspace: WorkspaceUse::default(),
            library: Use::default(),
            server_bytes: 0,
            models: BTreeMap::new(),
            events: Vec::new(),
        })
    }

    fn runs_ahead(&self) -> bool {
        self.0.lock().unwrap().runs_ahead
    }

    fn slack(&self, _: ShapeKind) -> Slack {
        Slack::CPU
    }

    fn terms(&self) -> Terms {
        Terms::CPU
    }

    fn profile_facts(&self, content: String, dtype: &str, length_max: u32) -> ProfileFacts {
        ProfileFacts::cpu(content, dtype, length_max)
    }
}
