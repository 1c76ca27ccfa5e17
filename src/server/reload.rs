//! Reading the configuration and the repository again while the server serves: what has changed since, whether all of it
//! can be served, and then all of it or nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio::sync::Mutex;

use super::offers;
use crate::config::source::Cache;
use crate::config::{Effective, Environment, ModelConfig, Repository, ServeOptions, ServerConfig};
use crate::engine::{Change, ChangeKind, ChangeRefusal, Changed, EngineHandle, Offer};
use crate::service::{Reload, ReloadRefusal, Reloaded};

/// What a model was read from; two are equal only where nothing has to be done.
#[derive(Clone, Debug, PartialEq)]
struct Known {
    /// As configured, or why it is broken.
    config: Result<ModelConfig, String>,
    /// Which files, as [`crate::model::Blueprint::stamp`] tells them apart.
    stamp: String,
}

impl Known {
    fn of(offer: &Offer) -> Known {
        match &offer.model {
            Ok((config, blueprint)) => Known { config: Ok(config.clone()), stamp: blueprint.stamp().to_owned() },
            Err(reason) => Known { config: Err(reason.clone()), stamp: String::new() },
        }
    }
}

/// What is served, as it was read last.
#[derive(Debug, Default)]
pub(crate) struct Served {
    /// Settings as text, by name.
    settings: BTreeMap<&'static str, String>,
    models: BTreeMap<String, Known>,
}

impl Served {
    pub(crate) fn of(config: &ServerConfig, offers: &[Offer]) -> Served {
        let models = offers.iter().map(|offer| (offer.name.clone(), Known::of(offer))).collect();
        Served { settings: settings(config), models }
    }
}

/// Settings that decide which models there are: they hold as soon as they are read. The others hold from the next start.
const OF_MODELS: [&str; 1] = ["models"];

fn settings(config: &ServerConfig) -> BTreeMap<&'static str, String> {
    let texts = crate::config::SETTINGS.iter().map(|setting| setting.name).zip(config.texts());
    texts.filter(|(name, _)| !OF_MODELS.contains(name)).collect()
}

/// Reads again what the server was started from.
pub struct Reloader(Arc<Inner>);

struct Inner {
    options: ServeOptions,
    environment: Environment,
    engine: EngineHandle,
    served: Mutex<Served>,
}

impl Reloader {
    /// Of a server that was started with these options in this environment, and serves what `served` says.
    pub(crate) fn new(
        options: ServeOptions,
        environment: Environment,
        engine: EngineHandle,
        served: Served,
    ) -> Reloader {
        Reloader(Arc::new(Inner { options, environment, engine, served: Mutex::new(served) }))
    }
}

impl Inner {
    async fn run(&self) -> Result<Reloaded, ReloadRefusal> {
        let mut served = self.served.try_lock().map_err(|_| ReloadRefusal::Changes(ChangeRefusal::Busy))?;
        let (options, environment) = (self.options.clone(), self.environment.clone());
        // Reads the headers of every model's files.
        let read = tokio::task::spawn_blocking(move || read(&options, &environment)).await;
        let (config, offers) = read.map_err(|_| ReloadRefusal::Configuration("reading it failed".to_owned()))??;
        let mut now = Served::of(&config, &offers);
        let changes = changes(&served, offers)?;
        let later = differences(&served.settings, &now.settings);
        let models = match changes.is_empty() {
            true => Vec::new(),
            false => {
                let applied = self.engine.apply(changes).await;
                applied.map_err(|_| ReloadRefusal::Changes(ChangeRefusal::Draining))?.map_err(ReloadRefusal::Changes)?
            }
        };
        for Changed { model, outcome, in_place, .. } in &models {
            let Err(reason) = outcome else { continue };
            // The next reload tries again, whichever revision the name stands for.
            let known = match in_place {
                true => Some(Known { config: Err(reason.clone()), stamp: String::new() }),
                false => served.models.get(model).cloned(),
            };
            match known {
                Some(known) => drop(now.models.insert(model.clone(), known)),
                None => drop(now.models.remove(model)),
            }
        }
        // Those of the start stay in force.
        now.settings = std::mem::take(&mut served.settings);
        *served = now;
        log(&models, &later);
        Ok(Reloaded { models, after_restart: later })
    }
}

impl Reload for Reloader {
    fn reload(&self) -> Pin<Box<dyn Future<Output = Result<Reloaded, ReloadRefusal>> + Send + '_>> {
        let inner = self.0.clone();
        // On a task of its own: a caller that goes must not leave half of it undone.
        let running = tokio::spawn(async move {
            let outcome = inner.run().await;
            if let Err(refusal) = &outcome {
                tracing::error!("nothing was reloaded: {refusal}");
            }
            outcome
        });
        Box::pin(async move {
            running.await.unwrap_or_else(|error| Err(ReloadRefusal::Configuration(format!("it failed: {error}"))))
        })
    }
}

fn read(options: &ServeOptions, environment: &Environment) -> Result<(ServerConfig, Vec<Offer>), ReloadRefusal> {
    let broken = |error: crate::config::ConfigError| ReloadRefusal::Configuration(error.to_string());
    let Effective { config, .. } = ServerConfig::load(options, environment).map_err(broken)?;
    let repository = Repository::load(&config).map_err(broken)?;
    let cache = Cache::new(&config, environment);
    let offers = offers(repository, &cache);
    Ok((config, offers))
}

/// What has to be done so that `offers` are what is served. One that has become broken refuses all; one that was broken
/// before may stay so.
fn changes(served: &Served, offers: Vec<Offer>) -> Result<Vec<Change>, ReloadRefusal> {
    let offered: BTreeSet<String> = offers.iter().map(|offer| offer.name.clone()).collect();
    let gone = served.models.keys().filter(|name| !offered.contains(*name));
    let mut changes: Vec<Change> = gone.map(|name| Change::Remove(name.clone())).collect();
    for offer in offers {
        let new = Known::of(&offer);
        let old = served.models.get(&offer.name);
        changes.extend(match (old, &new.config) {
            (Some(Known { config: Err(_), .. }), Err(_)) => None,
            (_, Err(reason)) => {
                let (name, reason) = (offer.name.clone(), reason.clone());
                return Err(ReloadRefusal::Changes(ChangeRefusal::Broken { name, reason }));
            }
            (Some(old), Ok(_)) if *old == new => None,
            (Some(Known { config: Ok(before), stamp }), Ok(config))
                if config.is_read_like(before) && *stamp == new.stamp =>
            {
                Some(Change::Tune(config.clone()))
            }
            (Some(_), Ok(_)) => Some(Change::Replace(offer)),
            (None, Ok(_)) => Some(Change::Add(offer)),
        });
    }
    Ok(changes)
}

/// `setting: from -> to` for each that differs.
fn differences(before: &BTreeMap<&'static str, String>, now: &BTreeMap<&'static str, String>) -> Vec<String> {
    let differs = |(name, to): (&&'static str, &String)| {
        let from = before.get(name)?;
        (from != to).then(|| format!("{name}: {from} -> {to}"))
    };
    now.iter().filter_map(differs).collect()
}

fn log(models: &[Changed], later: &[String]) {
    if models.is_empty() && later.is_empty() {
        tracing::info!("reloaded: nothing has changed");
    }
    for Changed { model, kind, outcome, .. } in models {
        match outcome {
            Ok(version) => tracing::info!(model, version, "reloaded: {model} {}", told(*kind, *version)),
            Err(reason) => tracing::error!(model, "reloaded: {model} could not be {}: {reason}", kind.as_str()),
        }
    }
    for difference in later {
        tracing::warn!("reloaded: {difference} holds from the next start");
    }
}

fn told(kind: ChangeKind, version: u32) -> String {
    match kind {
        ChangeKind::Removed => "is removed".to_owned(),
        ChangeKind::Added | ChangeKind::Replaced | ChangeKind::Tuned => {
            format!("is {}: version {version}", kind.as_str())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Source;
    use crate::model::{Blueprint, ModelFiles};

    fn offer(name: &str, change: impl FnOnce(&mut ModelConfig)) -> Offer {
        let mut config = ModelConfig::new(name, Source::Embedded("tiny-embed".to_owned()));
        change(&mut config);
        let files = ModelFiles::embedded("tiny-embed").expect("it is built in");
        let blueprint = Blueprint::new(&config, files).expect("it is sound");
        Offer { name: name.to_owned(), required: true, absent: false, model: Ok((config, blueprint)) }
    }

    fn broken(name: &str) -> Offer {
        Offer { name: name.to_owned(), required: false, absent: false, model: Err("no config.json".to_owned()) }
    }

    /// The changes by kind and model, or the model that is in the way.
    fn found(before: &[Offer], after: Vec<Offer>) -> Result<Vec<(&'static str, String)>, String> {
        let models = before.iter().map(|offer| (offer.name.clone(), Known::of(offer))).collect();
        let word = |change: Change| match change {
            Change::Add(offer) => ("add", offer.name),
            Change::Replace(offer) => ("replace", offer.name),
            Change::Tune(config) => ("tune", config.name),
            Change::Remove(name) => ("remove", name),
        };
        match changes(&Served { settings: BTreeMap::new(), models }, after) {
            Ok(changes) => Ok(changes.into_iter().map(word).collect()),
            Err(ReloadRefusal::Changes(ChangeRefusal::Broken { name, .. })) => Err(name),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn what_differs_is_done_and_nothing_else() {
        let same = |_: &mut ModelConfig| {};
        let before = [offer("a", same), offer("b", same), broken("c")];
        let check = |after: Vec<Offer>, expected: Result<&[(&str, &str)], &str>| {
            let expected = expected.map(|list| list.iter().map(|(kind, name)| (*kind, (*name).to_owned())).collect());
            let found = found(&before, after).map(|list| list.into_iter().collect::<Vec<_>>());
            assert_eq!(found, expected.map_err(str::to_owned));
        };
        check(vec![offer("a", same), offer("b", same), broken("c")], Ok(&[]));
        check(vec![offer("a", same), broken("c")], Ok(&[("remove", "b")]));
        check(
            vec![offer("a", |a| a.share = 2.0), offer("b", |b| b.pinned = true)],
            Ok(&[("remove", "c"), ("tune", "a"), ("tune", "b")]),
        );
        check(vec![offer("a", |a| a.length_max = Some(64)), offer("b", same), broken("c")], Ok(&[("replace", "a")]));
        check(
            vec![offer("a", same), offer("b", same), offer("c", same), offer("d", same)],
            Ok(&[("replace", "c"), ("add", "d")]),
        );
        // Nothing is done where something that was sound is not.
        check(vec![broken("a"), offer("b", |b| b.share = 2.0), broken("c")], Err("a"));
        check(vec![offer("a", same), offer("b", same), broken("c"), broken("d")], Err("d"));
    }

    #[test]
    fn settings_that_differ_are_named_with_both_values() {
        let before = BTreeMap::from([("grpc_port", "8001".to_owned()), ("log_level", "info".to_owned())]);
        let now = BTreeMap::from([("grpc_port", "9001".to_owned()), ("log_level", "info".to_owned())]);
        assert_eq!(differences(&before, &now), ["grpc_port: 8001 -> 9001"]);
    }
}
