//! How revisions of models follow each other while the server serves.
//!
//! A revision that shall replace another is loaded beside it if both fit, and its name stands for it from the moment that
//! it can serve. If they do not fit together the name stands for the new one at once: requests for it wait while the old
//! one finishes what it has, leaves, and the new one is loaded. Either way a call that has found the old one, and has been
//! tokenized for it, is served by it: an old revision leaves when nobody holds it any more.
//!
//! All of a reload is checked before anything of it is done, and one reload is under way at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::core::Core;
use super::inbox::Reply;
use super::lifecycle::{Lifecycle, Role};
use super::register::{Guarantee, budget};
use super::registry::{Definition, Registered};
use super::start::Offer;
use super::status::ModelState;
use crate::admission::Rejection;
use crate::config::{LoadPolicy, ModelConfig};
use crate::memory::{Budget, BudgetRefusal, Ledger, LoadNeed, LoadPlan, Reading};
use crate::telemetry::ModelLevels;
use crate::units::{Bytes, Micros, ModelId, Timestamp};

/// How long calls that hold an old revision are waited for. A call that takes longer than this to be tokenized and
/// submitted is refused, and its client told to send it again.
const LEAVE_WITHIN: Micros = Micros::secs(60);

/// One difference between what is served and what shall be.
pub enum Change {
    /// A model that is new.
    Add(Offer),
    /// Another revision of a model: its files are others, or are read in another way.
    Replace(Offer),
    /// The same revision under other settings.
    Tune(ModelConfig),
    /// A model that shall not be served any more.
    Remove(String),
}

/// The kinds of [`Change`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// A model came.
    Added,
    /// Another revision took a model's place.
    Replaced,
    /// Budget, share, latency, linger, pinning or load policy changed.
    Tuned,
    /// A model went.
    Removed,
}

impl ChangeKind {
    /// The word for logs and tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            ChangeKind::Added => "added",
            ChangeKind::Replaced => "replaced",
            ChangeKind::Tuned => "tuned",
            ChangeKind::Removed => "removed",
        }
    }
}

/// What became of one change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    /// The model's name.
    pub model: String,
    /// What was to be done.
    pub kind: ChangeKind,
    /// The version that is served now, or what went wrong.
    pub outcome: Result<u32, String>,
    /// Whether the model is as it was asked for, though it may not be loaded; else it is as it was before.
    pub in_place: bool,
}

/// Why nothing of a reload was done.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ChangeRefusal {
    /// The server goes down.
    #[error("the server is going down")]
    Draining,
    /// Another reload is under way.
    #[error("another reload is under way: its models are still being loaded")]
    Busy,
    /// A model cannot be served as it is configured.
    #[error("'{name}' cannot be served: {reason}")]
    Broken {
        /// The model.
        name: String,
        /// What is wrong.
        reason: String,
    },
    /// A model's budget cannot be kept beside the others'.
    #[error("the budget of '{name}' cannot be kept: {refusal}")]
    Budget {
        /// The model.
        name: String,
        /// The numbers.
        refusal: BudgetRefusal,
    },
    /// No model has this name.
    #[error("no model is named '{name}'")]
    Unknown {
        /// The name.
        name: String,
    },
}

/// A reload whose models are on their way.
pub(super) struct Reloading {
    lines: Vec<Changed>,
    /// Revisions that are waited for, with their line.
    open: BTreeMap<ModelId, usize>,
    reply: Reply<Result<Vec<Changed>, ChangeRefusal>>,
}

impl Core {
    /// Does what a reload asks for, or nothing of it. Answered when every model that it loads is there or has failed.
    pub(super) fn apply(
        &mut self,
        now: Timestamp,
        changes: Vec<Change>,
        reply: Reply<Result<Vec<Changed>, ChangeRefusal>>,
    ) {
        let changes = match self.examine(changes) {
            Ok(changes) => changes,
            Err(refusal) => return drop(reply.send(Err(refusal))),
        };
        let mut reloading = Reloading { lines: Vec::new(), open: BTreeMap::new(), reply };
        for change in changes {
            let (model, kind, done) = self.change(now, change);
            if let Done::Later(id) = done {
                reloading.open.insert(id, reloading.lines.len());
            }
            let outcome = match done {
                Done::Now(outcome) => outcome,
                Done::Later(_) => Err("it is not ready yet".to_owned()),
            };
            let in_place = outcome.is_ok();
            reloading.lines.push(Changed { model, kind, outcome, in_place });
        }
        self.reloading = Some(reloading);
        // What one has given up another may have.
        self.grant_what_is_due();
        self.publish_health();
        self.tell_reload();
    }

    /// Checks all changes against the books as they would be, and makes what is offered for the device.
    fn examine(&self, changes: Vec<Change>) -> Result<Vec<Change>, ChangeRefusal> {
        if self.is_draining() || self.poisoned {
            return Err(ChangeRefusal::Draining);
        }
        if self.reloading.is_some() {
            return Err(ChangeRefusal::Busy);
        }
        let available = self.ledger.books().available();
        let mut budgets: BTreeMap<String, Budget> = BTreeMap::new();
        for registered in self.shared.registry.current() {
            let status = self.shared.board.copy(registered.id);
            budgets.insert(status.name, status.budget);
        }
        let known = |name: &str| match self.shared.registry.find(name) {
            Some(_) => Ok(()),
            None => Err(ChangeRefusal::Unknown { name: name.to_owned() }),
        };
        let mut fitting = Vec::with_capacity(changes.len());
        for change in changes {
            let change = match change {
                Change::Add(Offer { name, .. }) if known(&name).is_ok() => {
                    return Err(ChangeRefusal::Broken { name, reason: "it is served already".to_owned() });
                }
                Change::Add(offer) => Change::Add(self.sound(offer)?),
                Change::Replace(offer) => {
                    known(&offer.name)?;
                    Change::Replace(self.sound(offer)?)
                }
                other => other,
            };
            match &change {
                Change::Add(Offer { name, model: Ok((config, _)), .. })
                | Change::Replace(Offer { name, model: Ok((config, _)), .. }) => {
                    budgets.insert(name.clone(), budget(config, available));
                }
                Change::Add(Offer { model: Err(_), .. }) | Change::Replace(Offer { model: Err(_), .. }) => {}
                Change::Tune(config) => {
                    known(&config.name)?;
                    budgets.insert(config.name.clone(), budget(config, available));
                }
                Change::Remove(name) => {
                    known(name)?;
                    budgets.remove(name);
                }
            }
            fitting.push(change);
        }
        // As they would be side by side, whoever holds what now.
        let mut books = Ledger::new(*self.ledger.books()).expect("these books are in use");
        for (index, (name, budget)) in budgets.into_iter().enumerate() {
            let registered = books.register(ModelId::new(index as u32), budget, false);
            registered.map_err(|refusal| ChangeRefusal::Budget { name, refusal })?;
        }
        Ok(fitting)
    }

    /// An offer that the device can run and that fits it.
    fn sound(&self, offer: Offer) -> Result<Offer, ChangeRefusal> {
        let offer = self.for_device(offer);
        let reason = match (&offer.model, self.never_fits(&offer)) {
            (Err(reason), _) => reason.clone(),
            (Ok(_), Some((needed, available))) => format!("it needs {needed} to load, and {available} can be had"),
            (Ok(_), None) => return Ok(offer),
        };
        Err(ChangeRefusal::Broken { name: offer.name, reason })
    }

    fn change(&mut self, now: Timestamp, change: Change) -> (String, ChangeKind, Done) {
        match change {
            Change::Add(offer) => {
                let name = offer.name.clone();
                let done = match self.register(offer, Role::Current, Guarantee::Later) {
                    Ok(id) => {
                        self.grant(id);
                        self.arrive(now, id)
                    }
                    Err(refusal) => Done::Now(Err(refusal.to_string())),
                };
                (name, ChangeKind::Added, done)
            }
            Change::Replace(offer) => {
                let name = offer.name.clone();
                let done = self.replace(now, offer);
                (name, ChangeKind::Replaced, done)
            }
            Change::Tune(config) => {
                let name = config.name.clone();
                let outcome = self.tune(config);
                (name, ChangeKind::Tuned, Done::Now(outcome))
            }
            Change::Remove(name) => {
                let outcome = match self.shared.registry.find(&name) {
                    Some(registered) => {
                        self.shared.registry.forget_name(registered.id);
                        self.part(now, registered.id);
                        Ok(registered.version())
                    }
                    None => Err("no model has this name".to_owned()),
                };
                (name, ChangeKind::Removed, Done::Now(outcome))
            }
        }
    }

    /// A revision that its name stands for: it is loaded where that is not left to requests.
    fn arrive(&mut self, now: Timestamp, id: ModelId) -> Done {
        let registered = self.shared.registry.get(id);
        let at_once = matches!(&registered.definition, Ok(found) if found.config.load == LoadPolicy::Startup);
        self.rig.model_metrics(id).state(self.models[id.get() as usize].state.as_str());
        if !at_once {
            return Done::Now(Ok(registered.version()));
        }
        self.enqueue_load(now, id);
        Done::Later(id)
    }

    fn replace(&mut self, now: Timestamp, offer: Offer) -> Done {
        let Some(old) = self.shared.registry.find(&offer.name) else {
            return Done::Now(Err("no model has this name".to_owned()));
        };
        let version = old.version() + 1;
        let model = offer.model.map(|(config, blueprint)| (config, blueprint.with_version(version)));
        let role = Role::Successor { of: old.id };
        let new = match self.register(Offer { model, ..offer }, role, Guarantee::Later) {
            Ok(new) => new,
            Err(refusal) => return Done::Now(Err(refusal.to_string())),
        };
        match self.life(old.id).state {
            // There, or on its way.
            ModelState::Ready | ModelState::Loading => {
                self.enqueue_load(now, new);
                Done::Later(new)
            }
            ModelState::NotLoaded | ModelState::Draining | ModelState::Broken => {
                // Made to go for another, it comes back with the first request: and so does the new one.
                let evicted = self.life(old.id).evicted;
                self.take_over(now, new);
                self.life(new).evicted = evicted;
                match evicted || self.life(new).unloaded_by_hand {
                    true => Done::Now(Ok(version)),
                    false => self.arrive(now, new),
                }
            }
        }
    }

    /// Other settings for what is there.
    fn tune(&mut self, config: ModelConfig) -> Result<u32, String> {
        let registered = self.shared.registry.find(&config.name).ok_or("no model has this name")?;
        let id = registered.id;
        let (Some(blueprint), Ok(definition)) = (self.life(id).blueprint.clone(), &registered.definition) else {
            return Err("its files cannot be read".to_owned());
        };
        self.scheduler.set_lane(id, self.lane_rules.of(&config, &blueprint));
        self.shared.board.with(id, |status| {
            status.share = config.share;
            status.revision += 1;
        });
        let (name, required, version) = (registered.name.clone(), config.required, registered.version());
        let definition = Ok(Arc::new(Definition { config, card: definition.card.clone() }));
        self.shared.registry.amend(Registered { id, name, required, definition });
        let known_as = &mut self.life(id).known_as;
        known_as.retain(|former| Arc::strong_count(former) > 1);
        known_as.push(registered);
        self.grant(id);
        Ok(version)
    }

    /// Puts budget and pin of a configuration in force. Of a guarantee that others' bytes are in the way of, when those are
    /// back: until then there is none.
    fn grant(&mut self, id: ModelId) {
        let Ok(definition) = self.shared.registry.get(id).definition.clone() else { return };
        let (wanted, pinned) = (budget(&definition.config, self.ledger.books().available()), definition.config.pinned);
        self.ledger.pin(id, pinned);
        let granted = self.ledger.set_budget(id, wanted).is_ok();
        let in_force = if granted { wanted } else { Budget { guaranteed: Bytes::ZERO, ..wanted } };
        if !granted && let Err(refusal) = self.ledger.set_budget(id, in_force) {
            tracing::warn!(model = self.name(id), "the budget of {} is as before: {refusal}", self.name(id));
            return;
        }
        self.life(id).guarantee_due = !granted;
        self.shared.board.with(id, |status| (status.budget, status.pinned) = (in_force, pinned));
    }

    /// Gives guarantees that could not be given before, as far as they can be now.
    fn grant_what_is_due(&mut self) {
        for id in self.model_ids() {
            let Lifecycle { guarantee_due, role, .. } = *self.life(id);
            if guarantee_due && role == Role::Current {
                self.grant(id);
            }
        }
    }

    /// A successor takes the place of the one before it: from now on its name stands for it.
    pub(super) fn take_over(&mut self, now: Timestamp, new: ModelId) {
        let Role::Successor { of: old } = self.life(new).role else { return };
        // Whoever has unloaded the model has unloaded this revision, too.
        let stays_away = self.life(old).unloaded_by_hand;
        let life = self.life(new);
        (life.role, life.unloaded_by_hand) = (Role::Current, stays_away);
        self.shared.registry.point_to(new);
        self.part(now, old);
        self.grant(new);
        let registered = self.shared.registry.get(new);
        let (state, name) = (self.life(new).state, registered.name.clone());
        self.rig.model_metrics(new).state(state.as_str());
        tracing::info!(model = name, version = registered.version(), "{name} is version {} now", registered.version());
        self.publish_health();
    }

    /// Whether a successor that does not fit beside the one before would in its place, idle models evicted.
    pub(super) fn fits_in_its_place(&self, now: Timestamp, new: ModelId, need: LoadNeed, reading: &Reading) -> bool {
        let Role::Successor { of: old } = self.models[new.get() as usize].role else { return false };
        let mut without = self.ledger.clone();
        without.pin(old, false);
        // Lowering a guarantee is never refused.
        let _ = without.set_budget(old, Budget::SHARED);
        let mut may_go = vec![old];
        may_go.extend(self.evictable(now, new).0.into_iter().filter(|other| *other != old));
        !matches!(without.plan_load(new, need, reading, &may_go), LoadPlan::Refuse(_))
    }

    /// A successor's name stands for it before it is loaded: those who ask for it wait. The server is as ready as it was,
    /// as it is where a model had to make room and comes back.
    pub(super) fn take_place(&mut self, now: Timestamp, new: ModelId) {
        let load_by = now + LEAVE_WITHIN + self.load_rules.timeout;
        let life = self.life(new);
        (life.load_by, life.evicted) = (load_by, true);
        self.take_over(now, new);
    }

    /// A revision that no name stands for any more keeps no room from others.
    fn part(&mut self, now: Timestamp, old: ModelId) {
        self.life(old).role = Role::Replaced { leave_by: now + LEAVE_WITHIN };
        self.ledger.pin(old, false);
        let Budget { limit, .. } = self.shared.board.copy(old).budget;
        let budget = Budget { guaranteed: Bytes::ZERO, limit };
        if self.ledger.set_budget(old, budget).is_ok() {
            self.shared.board.with(old, |status| (status.budget, status.pinned) = (budget, false));
        }
    }

    /// Lets revisions go that no name stands for and nobody holds.
    pub(super) fn see_off(&mut self, now: Timestamp) {
        self.give_up_waiting(now);
        for model in self.model_ids() {
            let Role::Replaced { leave_by } = self.life(model).role else { continue };
            if !self.scheduler.is_drained(model) {
                continue;
            }
            let former = &self.models[model.get() as usize].known_as;
            let held = self.shared.registry.is_held(model) || former.iter().any(|former| Arc::strong_count(former) > 1);
            let state = self.life(model).state;
            match state {
                ModelState::Ready if !held || now >= leave_by => {
                    // Requests do not bring it back.
                    self.life(model).unloaded_by_hand = true;
                    self.begin_drain(model);
                }
                ModelState::Loading if !held && self.loads.remove(model) => {
                    self.go_down(now, model, ModelState::NotLoaded, None, Rejection::NotLoaded);
                }
                // It is there, and its profile is being measured.
                ModelState::Loading if !held && self.ledger.is_resident(model) => self.begin_drain(model),
                ModelState::NotLoaded | ModelState::Broken if !held => self.retire(model),
                // On its way in or out, or held.
                _ => {}
            }
        }
    }

    /// Models of a reload that are there and do not get the room to be measured within the time for a load: a successor takes
    /// the other's place to have it; of others the reload is told, and they go on.
    fn give_up_waiting(&mut self, now: Timestamp) {
        let open: Vec<ModelId> = self.reloading.iter().flat_map(|reloading| reloading.open.keys().copied()).collect();
        for model in open {
            if now < self.life(model).load_by || !self.ledger.is_resident(model) {
                continue;
            }
            match self.life(model).role {
                Role::Successor { .. } => self.take_place(now, model),
                Role::Current | Role::Replaced { .. } | Role::Retired => {
                    self.arrived(now, model, Err("its smallest step finds no room".to_owned()));
                }
            }
        }
    }

    /// Whether a revision is still there whose place this one shall have.
    pub(super) fn waits_for_its_place(&self, model: ModelId) -> bool {
        let replaced = |life: &Lifecycle| matches!(life.role, Role::Replaced { .. }) && life.resident > Bytes::ZERO;
        let name = self.name(model);
        self.models.iter().any(|life| life.name == name && replaced(life))
    }

    fn retire(&mut self, model: ModelId) {
        if self.speaks_for_its_name(model) {
            // Nobody publishes its levels from now on.
            let gone = ModelLevels {
                budget: Budget::SHARED,
                resident: Bytes::ZERO,
                kv: Bytes::ZERO,
                headroom: Bytes::ZERO,
                drift: 1.0,
                batch_rows_max: 0,
            };
            self.rig.model_metrics(model).levels(&gone);
        }
        // It may be queued without anybody waiting for it.
        self.loads.remove(model);
        self.ledger.close(model);
        self.scheduler.remove_lane(model);
        self.shared.registry.retire(model);
        let life = self.life(model);
        (life.role, life.blueprint) = (Role::Retired, None);
        life.known_as.clear();
        self.grant_what_is_due();
    }

    /// A model that a reload waits for is ready, or is not and why. A successor that cannot serve leaves, and the one
    /// before it stays.
    pub(super) fn arrived(&mut self, now: Timestamp, model: ModelId, outcome: Result<(), String>) {
        if let (Role::Successor { .. }, Err(reason)) = (self.life(model).role, &outcome) {
            tracing::error!(model = self.name(model), "{} stays as it is: {reason}", self.name(model));
            self.life(model).role = Role::Replaced { leave_by: now };
        }
        let version = self.shared.registry.get(model).version();
        let in_place = self.life(model).role == Role::Current;
        if let Some(reloading) = &mut self.reloading
            && let Some(line) = reloading.open.remove(&model)
        {
            let line = &mut reloading.lines[line];
            (line.outcome, line.in_place) = (outcome.map(|()| version), in_place);
        }
        self.tell_reload();
    }

    fn tell_reload(&mut self) {
        if self.reloading.as_ref().is_some_and(|reloading| reloading.open.is_empty())
            && let Some(Reloading { lines, reply, .. }) = self.reloading.take()
        {
            let _ = reply.send(Ok(lines));
        }
    }

    /// Whether what happens to a revision is what its model's metrics and health tell of: a name stands for it, or for
    /// nothing any more.
    pub(super) fn speaks_for_its_name(&self, model: ModelId) -> bool {
        match self.models[model.get() as usize].role {
            Role::Current => true,
            Role::Successor { .. } | Role::Retired => false,
            Role::Replaced { .. } => self.shared.registry.find(self.name(model)).is_none(),
        }
    }
}

/// Whether a change is done.
enum Done {
    /// With this outcome.
    Now(Result<u32, String>),
    /// When this revision has been loaded.
    Later(ModelId),
}
