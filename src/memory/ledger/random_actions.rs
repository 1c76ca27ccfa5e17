//! The ledger against a simulated device: random actions, and after each one the books balance and what was promised
//! is really there.

use proptest::prelude::*;

use super::*;
use crate::memory::{Budget, BudgetChange, Lease, Observed, Outcome, Rungs};
use crate::units::{Micros, Timestamp};

const MODELS: u32 = 4;
const TOTAL: u64 = 4_000;
const GRANULE: Bytes = Bytes::new(4);

#[derive(Clone, Debug)]
enum Action {
    Register {
        model: u32,
        guaranteed: u64,
        room: u64,
        pinned: bool,
    },
    SetBudget {
        model: u32,
        guaranteed: u64,
        room: u64,
    },
    Pin {
        model: u32,
        pinned: bool,
    },
    Load {
        model: u32,
        resident: u64,
        transient: u64,
        least: u64,
    },
    Unload {
        model: u32,
    },
    Lease {
        model: u32,
        part: f64,
        kv: u64,
    },
    /// The device's thread finishes the oldest thing that it has to do.
    Finish {
        part: f64,
        well: bool,
    },
    Neighbour {
        holds: u64,
    },
    Trim {
        later: u64,
    },
}

fn action() -> impl Strategy<Value = Action> {
    let model = || 0..MODELS;
    prop_oneof![
        2 => (model(), 0u64..800, 0u64..3_000, any::<bool>()).prop_map(|(model, guaranteed, room, pinned)| {
            Action::Register { model, guaranteed, room, pinned }
        }),
        1 => (model(), 0u64..800, 0u64..3_000)
            .prop_map(|(model, guaranteed, room)| Action::SetBudget { model, guaranteed, room }),
        1 => (model(), any::<bool>()).prop_map(|(model, pinned)| Action::Pin { model, pinned }),
        3 => (model(), 1u64..1_500, 0u64..300, 0u64..300).prop_map(|(model, resident, transient, least)| {
            Action::Load { model, resident, transient, least }
        }),
        1 => model().prop_map(|model| Action::Unload { model }),
        4 => (model(), 0f64..1.1, 0u64..30).prop_map(|(model, part, kv)| Action::Lease { model, part, kv }),
        5 => (0f64..1.0, any::<bool>()).prop_map(|(part, well)| Action::Finish { part, well }),
        2 => (0u64..3_000).prop_map(|holds| Action::Neighbour { holds }),
        1 => (0u64..2_000_000).prop_map(|later| Action::Trim { later }),
    ]
}

/// What the device's thread has been told to do, in order.
#[derive(Debug)]
enum Job {
    Step(Lease),
    Load(ModelId, LoadNeed),
}

/// A device as it really is, and our server on it.
struct World {
    ledger: Ledger,
    jobs: Vec<Job>,
    /// What each model really holds.
    held: BTreeMap<ModelId, u64>,
    neighbour: u64,
    workspace: u64,
    now: Timestamp,
    /// Unpinned resident models, the least recently used first.
    recent: Vec<ModelId>,
}

const SAFETY: u64 = 50;
const FIXED: u64 = 100;
const LIBRARY: u64 = 30;
const CAPACITY: u64 = 3_000;

impl World {
    fn new(readings: Readings, exhaustion: Exhaustion) -> World {
        let books = DeviceBooks {
            capacity: Bytes::new(CAPACITY),
            safety: Bytes::new(SAFETY),
            fixed: Bytes::new(FIXED),
            terms: Terms { granule: GRANULE, trim_least: GRANULE, workspace_min: GRANULE * 4, exhaustion },
            readings,
        };
        World {
            ledger: Ledger::new(books).expect("the budget is large enough"),
            jobs: Vec::new(),
            held: BTreeMap::new(),
            neighbour: 0,
            workspace: 0,
            now: Timestamp::START,
            recent: Vec::new(),
        }
    }

    fn ours(&self) -> u64 {
        self.held.values().sum::<u64>() + FIXED + LIBRARY
    }

    fn reading(&self) -> Reading {
        Reading {
            at: self.now,
            free: Bytes::new(TOTAL.saturating_sub(self.ours() + self.workspace + self.neighbour)),
            total: Bytes::new(TOTAL),
            workspace_reserved: Bytes::new(self.workspace),
            workspace_cached: Bytes::new(self.workspace),
            library: Bytes::new(LIBRARY),
            leftovers: Bytes::ZERO,
        }
    }

    fn promised_to_loads(&self) -> u64 {
        let load = |job: &Job| match job {
            Job::Load(_, need) => (need.resident + need.transient).get(),
            Job::Step(_) => 0,
        };
        self.jobs.iter().map(load).sum()
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Register { model, guaranteed, room, pinned } => {
                let _ = self.ledger.register(ModelId::new(model), budget(guaranteed, room), pinned);
            }
            Action::SetBudget { model, guaranteed, room } => {
                let (model, budget) = (ModelId::new(model), budget(guaranteed, room));
                let before = self.ledger.clone();
                match self.ledger.set_budget(model, budget) {
                    Ok(BudgetChange::Applied) => assert_eq!(self.ledger.overage(model), Bytes::ZERO),
                    Ok(BudgetChange::Deferred { overage }) => assert_eq!(self.ledger.overage(model), overage),
                    Err(_) => assert_eq!(self.ledger.snapshot(&self.reading()), before.snapshot(&self.reading())),
                }
            }
            Action::Pin { model, pinned } => self.ledger.pin(ModelId::new(model), pinned),
            Action::Load { model, resident, transient, least } => {
                let need = LoadNeed {
                    resident: Bytes::new(resident),
                    transient: Bytes::new(transient),
                    least_workspace: Bytes::new(least),
                };
                self.load(ModelId::new(model), need);
            }
            Action::Unload { model } => {
                let model = ModelId::new(model);
                if self.is_idle(model) {
                    self.unload(model);
                }
            }
            Action::Lease { model, part, kv } => self.lease(ModelId::new(model), part, Bytes::new(kv)),
            Action::Finish { part, well } => self.finish(part, well),
            Action::Neighbour { holds } => {
                self.neighbour = holds.min(TOTAL.saturating_sub(self.ours() + self.workspace));
            }
            Action::Trim { later } => {
                self.now = self.now + Micros::new(later);
                if let Some(keep) = self.ledger.trim(self.now, &self.reading()) {
                    assert!(keep.get() < self.workspace, "a trim that keeps everything");
                    self.workspace = keep.get();
                }
            }
        }
    }

    /// Nothing that the device still has to do is the model's.
    fn is_idle(&self, model: ModelId) -> bool {
        self.held.contains_key(&model)
            && !self.jobs.iter().any(|job| match job {
                Job::Step(lease) => lease.model == model,
                Job::Load(loading, _) => *loading == model,
            })
    }

    fn unload(&mut self, model: ModelId) {
        self.held.remove(&model);
        self.recent.retain(|other| *other != model);
        self.ledger.unloaded(model);
    }

    fn load(&mut self, model: ModelId, need: LoadNeed) {
        if self.held.contains_key(&model) || !self.jobs.is_empty() {
            return;
        }
        let idle = self.recent.clone();
        match self.ledger.plan_load(model, need, &self.reading(), &idle) {
            LoadPlan::Fits => {}
            LoadPlan::Evict(gone) => {
                assert!(gone.iter().all(|id| idle.contains(id) && !self.ledger.accounts[id].pinned), "{gone:?}");
                self.expect_no_fewer(model, need, &gone);
                gone.into_iter().for_each(|id| self.unload(id));
                assert_eq!(self.ledger.plan_load(model, need, &self.reading(), &[]), LoadPlan::Fits);
            }
            LoadPlan::Refuse(plan) => {
                assert!(plan.needed > plan.available, "refused, but the numbers say that it fits: {plan:?}");
                return;
            }
        }
        // What was promised is there: within the budget, on the device, and beside what others are guaranteed.
        let total = need.resident + need.transient.max(need.least_workspace);
        let after = self.ours() + total.get();
        assert!(after + SAFETY <= CAPACITY);
        if self.ledger.books.readings == Readings::Live {
            let margin = if self.ledger.books.terms.exhaustion == Exhaustion::Kills { SAFETY } else { 0 };
            assert!(after + margin + self.neighbour <= TOTAL);
        }
        let unclaimed = |(id, account): (&ModelId, &Account)| {
            let held = self.held.get(id).copied().unwrap_or(0);
            if *id == model { 0 } else { account.budget.guaranteed.get().saturating_sub(held) }
        };
        let guarantees: u64 = self.ledger.accounts.iter().map(unclaimed).sum();
        assert!(after + guarantees + SAFETY <= CAPACITY, "a guarantee was given away");
        self.ledger.loading(model, need);
        self.jobs.push(Job::Load(model, need));
    }

    /// Evicting all but one of the chosen would not have been enough.
    fn expect_no_fewer(&self, model: ModelId, need: LoadNeed, gone: &[ModelId]) {
        for spared in gone {
            let (mut ledger, mut reading) = (self.ledger.clone(), self.reading());
            for id in gone.iter().filter(|id| *id != spared) {
                ledger.unloaded(*id);
                reading.free += Bytes::new(self.held[id]);
            }
            assert_ne!(ledger.plan_load(model, need, &reading, &[]), LoadPlan::Fits, "{spared} need not go");
        }
    }

    fn lease(&mut self, model: ModelId, part: f64, kv: Bytes) {
        if self.jobs.iter().any(|job| matches!(job, Job::Step(_))) {
            return;
        }
        let headroom = self.ledger.headroom(model, &self.reading());
        let predicted = headroom.bytes.scale(part);
        match self.ledger.lease(model, predicted, kv, &self.reading()) {
            Ok(lease) => {
                assert!(self.held.contains_key(&model), "a lease for a model that is not there");
                assert!(predicted <= lease.ceiling && lease.ceiling + kv == headroom.bytes);
                let used = self.ours() + self.promised_to_loads() + (lease.ceiling + kv).get();
                assert!(headroom.bytes == Bytes::ZERO || used + SAFETY <= CAPACITY, "{used} used of {CAPACITY}");
                // Where a neighbour has taken even the safety margin, an empty lease is all that is left.
                if self.ledger.books.readings == Readings::Live && headroom.bytes > Bytes::ZERO {
                    let reserved = headroom.bytes.get() <= self.workspace;
                    let smallest = headroom.bytes <= self.ledger.accounts[&model].least_workspace;
                    let margin = match self.ledger.books.terms.exhaustion {
                        Exhaustion::Refuses if reserved || smallest => 0,
                        Exhaustion::Refuses | Exhaustion::Kills => SAFETY,
                    };
                    assert!(used + margin + self.neighbour <= TOTAL, "{used} used beside {}", self.neighbour);
                }
                *self.held.get_mut(&model).expect("it is resident") += kv.get();
                self.workspace = self.workspace.min(TOTAL.saturating_sub(self.ours() + self.neighbour));
                self.recent.retain(|other| *other != model);
                self.jobs.push(Job::Step(lease));
            }
            Err(shortfall) => {
                assert_eq!(shortfall.headroom, headroom);
                assert!(shortfall.needed > headroom.bytes || !self.held.contains_key(&model));
            }
        }
    }

    fn finish(&mut self, part: f64, well: bool) {
        if self.jobs.is_empty() {
            return;
        }
        match self.jobs.remove(0) {
            Job::Step(lease) => {
                // The neighbour may have taken in the meantime what the lease was given: the device has the last word.
                let left = TOTAL.saturating_sub(self.ours() + self.neighbour);
                let peak = ((lease.ceiling.get() as f64 * part) as u64).min(left);
                let outcome = if well { Outcome::Done } else { Outcome::Faulted };
                let seen = Observed {
                    peak: Bytes::new(peak),
                    reach: Bytes::new(peak),
                    time: Micros::millis(1),
                    rungs: Rungs::default(),
                    outcome,
                };
                self.workspace = self.workspace.max(peak);
                if !well {
                    *self.held.get_mut(&lease.model).expect("a model with a step is not unloaded") -= lease.kv.get();
                }
                self.recent.push(lease.model);
                self.ledger.give_back(lease, &seen);
            }
            Job::Load(model, need) => {
                // A little less is taken than was announced. The cache makes way for it; a neighbour does not.
                let resident = (need.resident.get() as f64 * (0.5 + part / 2.0)) as u64;
                let free = TOTAL.saturating_sub(self.ours() + self.neighbour);
                if !well || resident > free {
                    return self.ledger.load_failed(model);
                }
                self.workspace = self.workspace.min(free - resident);
                self.held.insert(model, resident);
                self.recent.push(model);
                self.ledger.loaded(model, Bytes::new(resident));
            }
        }
    }
}

fn budget(guaranteed: u64, room: u64) -> Budget {
    // Every fourth has no limit of its own.
    let limit = if room.is_multiple_of(4) { Bytes::MAX } else { Bytes::new(room) };
    Budget { guaranteed: Bytes::new(guaranteed), limit }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_books_balance_after_every_action(
        live: bool,
        refuses: bool,
        actions in prop::collection::vec(action(), 1..120),
    ) {
        let exhaustion = if refuses { Exhaustion::Refuses } else { Exhaustion::Kills };
        let mut world = World::new(if live { Readings::Live } else { Readings::Off }, exhaustion);
        for action in actions {
            let text = format!("{action:?}");
            world.act(action);
            prop_assert_eq!(world.ledger.check(), Ok(()), "after {}", text);
            // The ledger's own count agrees with the device's.
            for (model, account) in &world.ledger.accounts {
                let held = if account.is_resident() { account.held().get() } else { 0 };
                prop_assert_eq!(held, world.held.get(model).copied().unwrap_or(0), "{} after {}", model, text);
            }
        }
    }
}
