//! `plimsoll plan`: would these models fit? Offline: file headers and kept profiles say.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::time::Instant;

use super::table;
use crate::config::source::Cache;
use crate::config::{Effective, Environment, LoadPolicy, Repository, ServeOptions, ServerConfig};
use crate::device::cpu::set_compute_threads;
use crate::device::profile_store::ProfileStore;
use crate::device::{self, Device};
use crate::engine::{Offer, fit_line};
use crate::memory::{FitPlan, Profile, Readings, Verdict, fit_plan};
use crate::model::Blueprint;
use crate::server;
use crate::units::{Bytes, ModelId, Timestamp};

/// Exit code when a model that is planned is broken.
const BROKEN: u8 = 1;
/// Exit code when the models do not fit.
const DOES_NOT_FIT: u8 = 3;

/// Would these models fit? Prints the fit table
///
/// Exit code: 0 if they fit (tightly, too), 1 if one of them cannot be served, 3 if they do not fit. A model that is not
/// needed at the start and was never fetched is left out, and said to be.
#[derive(clap::Args, Clone, Debug)]
pub struct PlanArgs {
    /// Also models that are loaded on demand or by hand; otherwise those that load at the start.
    #[arg(long)]
    pub all: bool,

    /// What is served, and how.
    #[command(flatten)]
    pub options: ServeOptions,
}

/// Prints the fit table.
///
/// # Errors
/// The configuration is broken, or the device cannot be used. A broken model is reported and is the exit code.
pub fn run(args: PlanArgs) -> anyhow::Result<ExitCode> {
    let environment = Environment::of_process();
    let Effective { config, .. } = ServerConfig::load(&args.options, &environment)?;
    // Kept profiles are valid for a number of threads.
    let threads = NonZeroUsize::new(config.threads.count()).unwrap_or(NonZeroUsize::MIN);
    set_compute_threads(threads)?;
    // Only asked, never given an order.
    let device = device::start(server::start_options(&config, Readings::Off), Instant::now(), |_| ())?;
    let code = report(&config, args.all, &environment, &*device, &mut io::stdout().lock())?;
    Ok(ExitCode::from(code))
}

/// Writes the plan to `out`; the exit code.
fn report(
    config: &ServerConfig,
    all: bool,
    environment: &Environment,
    device: &dyn Device,
    out: &mut impl Write,
) -> anyhow::Result<u8> {
    let memory = device.reading(Timestamp::START)?;
    let available = server::available(config, &memory, device.terms());
    let store = ProfileStore::new(config.profile_dir.clone());
    let cache = Cache::new(config, environment);
    let mut names = Vec::new();
    let mut lines = Vec::new();
    let mut left_out = Vec::new();
    let mut is_broken = false;
    for entry in Repository::load(config)?.entries {
        // Nobody knows when one would be loaded whose configuration cannot be read.
        if !all && matches!(&entry.config, Ok(model) if model.load != LoadPolicy::Startup) {
            continue;
        }
        let Offer { name, required, absent, model } = server::offer(entry, &cache);
        let suited = model.and_then(|(_, blueprint)| {
            let blueprint = blueprint.for_device(device.form());
            blueprint.check_form().map_err(|error| error.to_string())?;
            Ok(blueprint)
        });
        match suited {
            Ok(blueprint) => {
                let profile = kept_profile(&store, device, &blueprint);
                let weights = device.taken_by(blueprint.resident());
                let id = ModelId::new(names.len() as u32);
                lines.push(fit_line(id, &blueprint, weights, profile.as_ref(), device.terms()));
                names.push(name);
            }
            Err(reason) => {
                is_broken |= required || !absent;
                left_out.push(format!("{name} is left out: {reason}"));
            }
        }
    }
    let plan = fit_plan(lines, available);
    if !names.is_empty() {
        write(out, &names, &plan)?;
    }
    for line in left_out {
        writeln!(out, "{line}")?;
    }
    Ok(match plan.verdict {
        // The table lacks one: what it says of the others is not the whole.
        _ if is_broken => BROKEN,
        Verdict::Fits | Verdict::Tight => 0,
        Verdict::DoesNotFit => DOES_NOT_FIT,
    })
}

/// The kept profile of a model; one that cannot be read counts as none, as it does for `serve`.
fn kept_profile(store: &ProfileStore, device: &dyn Device, blueprint: &Blueprint) -> Option<Profile> {
    let card = blueprint.card();
    let facts = device.profile_facts(blueprint.content_key(), card.dtype.as_str(), card.length_max);
    let table = store.load(&facts).ok()??;
    let axes = blueprint.axes();
    Profile::from_table(&table, &axes, device.slack(axes.kind)).ok()
}

fn write(out: &mut impl Write, names: &[String], plan: &FitPlan) -> io::Result<()> {
    let bytes = |bytes: Option<Bytes>| bytes.map_or_else(|| "not measured".to_owned(), |bytes| bytes.to_string());
    let mut rows = vec![["model", "weights", "to load", "one longest row", "best batch"].map(str::to_owned)];
    for line in &plan.lines {
        rows.push([
            names[line.model.get() as usize].clone(),
            line.weights.to_string(),
            line.transient.to_string(),
            bytes(line.workspace_least),
            bytes(line.workspace_knee),
        ]);
    }
    table::write(out, &rows)?;
    let verdict = match plan.verdict {
        Verdict::Fits => "they fit, with room for every model's best batch",
        Verdict::Tight if plan.lines.iter().any(|line| line.workspace_knee.is_none()) => "the weights fit",
        Verdict::Tight => "they fit, with batches smaller than the best",
        Verdict::DoesNotFit => "they do not fit",
    };
    writeln!(
        out,
        "\n{} needed at least, {} for the best batches, {} to be had: {verdict}",
        plan.needed, plan.wanted, plan.available
    )?;
    let unmeasured = plan.lines.iter().filter(|line| line.workspace_knee.is_none());
    let unmeasured: Vec<_> = unmeasured.map(|line| names[line.model.get() as usize].as_str()).collect();
    if let Some(first) = unmeasured.first() {
        writeln!(
            out,
            "not measured: {}; run `plimsoll profile {first}` with the same options, or serve it once: a server measures \
             while nobody asks, and keeps what it finds",
            unmeasured.join(", ")
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{Amount, DeviceKind, MemoryBudget, Models};
    use crate::engine::EngineError;
    use crate::server::ServerError;

    /// A repository with a copy of tiny-embed under each of these names, beside a `model.toml` with this text.
    fn repository(models: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a temporary folder");
        for (name, text) in models {
            let folder = root.path().join(name);
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::write(folder.join("model.toml"), text).expect("a file");
            let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny-embed");
            for file in ["config.json", "tokenizer.json", "model.safetensors"] {
                std::fs::copy(from.join(file), folder.join(file)).expect("a copy");
            }
        }
        root
    }

    fn config(models: &Path, budget: Bytes) -> ServerConfig {
        let mut options = ServeOptions { config: Some("/dev/null".into()), ..ServeOptions::default() };
        options.settings.models = Some(Models::Folder(models.to_owned()));
        options.settings.memory_budget = Some(MemoryBudget::Amount(Amount::Bytes(budget)));
        options.settings.device = Some(DeviceKind::Cpu);
        options.settings.profile_dir = Some(models.join("no-profiles"));
        ServerConfig::load(&options, &[("HOME", "/no/such/home")].into()).expect("valid").config
    }

    /// The exit code and the report.
    fn planned(config: &ServerConfig, all: bool) -> (u8, String) {
        let options = server::start_options(config, Readings::Off);
        let device = device::start(options, Instant::now(), |_| ()).expect("a CPU");
        let mut out = Vec::new();
        let code = report(config, all, &[("HOME", "/no/such/home")].into(), &*device, &mut out).expect("a plan");
        (code, String::from_utf8(out).expect("text"))
    }

    const HERE: &str = "schema = 1\nsource.path = \".\"";

    #[test]
    fn a_broken_model_is_named_and_is_the_exit_code() {
        let root = repository(&[("sound", HERE)]);
        assert_eq!(planned(&config(root.path(), Bytes::gib(1)), false).0, 0);
        let later = format!("{HERE}\nload = \"on_demand\"");
        let root = repository(&[("broken", HERE), ("later", &later), ("sound", HERE), ("unread", "schema = 9")]);
        std::fs::remove_file(root.path().join("broken/tokenizer.json")).expect("it was there");
        std::fs::remove_file(root.path().join("later/config.json")).expect("it was there");
        let (code, text) = planned(&config(root.path(), Bytes::gib(1)), false);
        assert_eq!(code, BROKEN, "{text}");
        assert!(text.lines().any(|line| line.starts_with("sound ")), "{text}");
        assert!(text.contains("broken is left out: ") && text.contains("tokenizer.json"), "{text}");
        assert!(text.contains("unread is left out: ") && !text.contains("later"), "{text}");
        let (code, text) = planned(&config(root.path(), Bytes::gib(1)), true);
        assert!(code == BROKEN && text.contains("later is left out: "), "{text}");
        // What the table says of the others is said, and is not the whole.
        assert_eq!(planned(&config(root.path(), Bytes::mib(1)), false).0, BROKEN);
        // Of none nothing is said.
        let root = repository(&[("unread", "schema = 9")]);
        let (code, text) = planned(&config(root.path(), Bytes::gib(1)), false);
        assert!(code == BROKEN && text.starts_with("unread is left out: "), "{text}");
    }

    #[test]
    fn one_that_may_be_fetched_later_is_no_problem() {
        let hub = "schema = 1\nrequired = false\nsource.hub = \"a/b\"";
        let root = repository(&[("later", hub), ("sound", HERE)]);
        let (code, text) = planned(&config(root.path(), Bytes::gib(1)), false);
        assert!(code == 0 && text.contains("later is left out: ") && text.contains("plimsoll pull hf:a/b"), "{text}");
        let root = repository(&[("needed", &hub.replace("false", "true")), ("sound", HERE)]);
        assert_eq!(planned(&config(root.path(), Bytes::gib(1)), false).0, BROKEN);
        assert_eq!(planned(&config(root.path(), Bytes::mib(1)), true).0, BROKEN);
    }

    #[test]
    fn models_that_do_not_fit_have_an_exit_code_of_their_own() {
        let root = repository(&[("sound", HERE)]);
        let (code, text) = planned(&config(root.path(), Bytes::mib(1)), false);
        assert!(code == DOES_NOT_FIT && text.contains("they do not fit"), "{text}");
    }

    #[tokio::test]
    async fn a_plan_has_the_numbers_of_a_server_that_refuses_to_start() {
        let root = repository(&[("sound", HERE)]);
        let environment: Environment = [("HOME", "/no/such/home")].into();
        let entry = Repository::from_folder(root.path()).expect("readable").entries.remove(0);
        let cache = Cache::new(&config(root.path(), Bytes::gib(1)), &environment);
        let (_, blueprint) = server::offer(entry, &cache).model.expect("it is sound");
        let (weights, transient) = (blueprint.resident(), blueprint.transient());
        // Room for the weights, not for loading them.
        let between = ServerConfig {
            grpc_port: 0,
            http_port: 0,
            metrics_port: 0,
            ..config(root.path(), weights + transient.scale(0.5))
        };
        let (code, text) = planned(&between, false);
        assert_eq!(code, DOES_NOT_FIT, "{text}");
        let refused = server::Server::start(between, &environment).await.err();
        let Some(ServerError::Engine(EngineError::NeverFits { needed, available, .. })) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(needed, weights + transient);
        let numbers = [format!("{needed} needed at least"), format!("{available} to be had")];
        assert!(numbers.iter().all(|number| text.contains(number)), "{numbers:?} in {text}");
        let (code, text) = planned(&config(root.path(), needed), false);
        assert!(code == 0 && text.contains("the weights fit"), "{text}");
        assert!(text.contains("not measured: sound; run `plimsoll profile sound`"), "{text}");
    }
}
