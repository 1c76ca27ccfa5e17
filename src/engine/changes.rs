//! What a reload asks for: models that come, go, are replaced or get other settings.
//!
//! All of it is checked before anything of it is done, and one reload is under way at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::core::Core;
use super::inbox::Reply;
use super::lifecycle::Role;
use super::register::{Guarantee, budget};
use super::registry::{Definition, Registered};
use super::start::Offer;
use super::status::ModelState;
use crate::config::{LoadPolicy, ModelConfig};
use crate::memory::{Budget, BudgetRefusal, Ledger};
use crate::units::{ModelId, Timestamp};

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
            (Ok(_), Some((needed, available))) => {
                format!("it needs {} to load, and {available} can be had", needed.beyond(available))
            }
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

    /// Models of a reload that are there and do not get the room to be measured within the time for a load: a successor takes
    /// the other's place to have it; of others the reload is told, and they go on.
    pub(super) fn give_up_waiting(&mut self, now: Timestamp) {
        let open: Vec<ModelId> = self.reloading.iter().flat_map(|reloading| reloading.open.keys().copied()).collect();
        for model in open {
            if now < self.life(model).load_by || !self.ledger.is_resident(model) {
                continue;
            }
            // As long as it is measured it has room for that.
            let measured_by = self.scheduler.last_probed(model) + self.load_rules.timeout;
            if now < measured_by {
                self.life(model).load_by = measured_by;
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
}

/// Whether a change is done.
enum Done {
    /// With this outcome.
    Now(Result<u32, String>),
    /// When this revision has been loaded.
    Later(ModelId),
}
