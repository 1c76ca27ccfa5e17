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

/// Exit code when the models do not fit.
const DOES_NOT_FIT: u8 = 3;

/// Options of `plan`.
#[derive(clap::Args, Clone, Debug)]
pub struct PlanArgs {
    /// Also models that are loaded on demand or by hand; otherwise those that load at the start.
    #[arg(long)]
    pub all: bool,

    /// What is served, and how.
    #[command(flatten)]
    pub options: ServeOptions,
}

/// Prints the fit table. Exits with 0 if the models fit (tightly, too), with 3 if they do not.
///
/// # Errors
/// The configuration, or a model that should be planned, is broken.
pub fn run(args: PlanArgs) -> anyhow::Result<ExitCode> {
    let environment = Environment::of_process();
    let Effective { config, .. } = ServerConfig::load(&args.options, &environment)?;
    // Kept profiles are valid for a number of threads.
    let threads = NonZeroUsize::new(config.threads.count()).unwrap_or(NonZeroUsize::MIN);
    set_compute_threads(threads)?;
    // Only asked, never given an order.
    let device = device::start(server::start_options(&config, Readings::Off), Instant::now(), |_| ())?;
    let memory = device.reading(Timestamp::START)?;
    let budget = config.memory_budget.of(memory.total, memory.free);

    let store = ProfileStore::new(config.profile_dir.clone());
    let repository = Repository::load(&config)?;
    let mut names = Vec::new();
    let mut lines = Vec::new();
    for Offer { name, model, .. } in server::offers(repository, &Cache::new(&config, &environment)) {
        let suited = model.and_then(|(model, blueprint)| {
            let blueprint = blueprint.for_device(device.form());
            blueprint.check_form().map_err(|error| error.to_string())?;
            Ok((model, blueprint))
        });
        let (model, blueprint) = match suited {
            Ok(found) => found,
            Err(reason) => {
                eprintln!("{name} is left out: {reason}");
                continue;
            }
        };
        if args.all || model.load == LoadPolicy::Startup {
            let profile = kept_profile(&store, &*device, &blueprint);
            lines.push(fit_line(ModelId::new(names.len() as u32), &blueprint, profile.as_ref(), None));
            names.push(name);
        }
    }
    let plan = fit_plan(lines, budget);
    write(&mut io::stdout().lock(), &names, &plan)?;
    Ok(match plan.verdict {
        Verdict::Fits | Verdict::Tight => ExitCode::SUCCESS,
        Verdict::DoesNotFit => ExitCode::from(DOES_NOT_FIT),
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
    let mut rows = vec![["model", "weights", "one longest row", "best batch"].map(str::to_owned)];
    for line in &plan.lines {
        rows.push([
            names[line.model.get() as usize].clone(),
            line.weights.to_string(),
            bytes(line.workspace_least),
            bytes(line.workspace_knee),
        ]);
    }
    table::write(out, &rows)?;
    let verdict = match plan.verdict {
        Verdict::Fits => "they fit, with room for every model's best batch",
        Verdict::Tight if plan.lines.iter().any(|line| line.workspace_knee.is_none()) => {
            "the weights fit; run `plimsoll profile MODEL` to know about the workspace"
        }
        Verdict::Tight => "they fit, with batches smaller than the best",
        Verdict::DoesNotFit => "they do not fit",
    };
    writeln!(
        out,
        "\n{} needed at least, {} for the best batches, {} to be had: {verdict}",
        plan.needed, plan.wanted, plan.available
    )
}
