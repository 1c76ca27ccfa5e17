//! `plimsoll profile MODEL`: measures memory and time over all batch shapes, prints the table, and checks it on shapes
//! that it has not seen.

mod session;
mod check;
mod by_op;
mod plot;

use std::io::{self, IsTerminal, Write};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use self::by_op::RowsByLength;
use self::check::Checked;
use self::session::Session;
use super::table;
use crate::config::source::Cache;
use crate::config::{Effective, Environment, ModelConfig, Place, Repository, ServeOptions, ServerConfig};
use crate::device::cpu::set_compute_threads;
use crate::device::profile_store::ProfileStore;
use crate::memory::{Measured, Profile, Readings, Role};
use crate::model::Blueprint;
use crate::server;
use crate::units::Bytes;

/// Options of `profile`.
#[derive(clap::Args, Clone, Debug)]
pub struct ProfileArgs {
    /// Model to measure: a name of the repository, a folder, or a Hugging Face id that was pulled.
    #[arg(value_name = "MODEL")]
    pub name: String,

    /// Check the finished profile on so many random shapes: batch and length log-uniform up to the envelope.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub check: u32,

    /// Seed of the random shapes; printed, so that a check can be repeated.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    pub seed: u64,

    /// Instead of measuring a profile, show which layer and operation holds how much memory at the peak of one step.
    #[arg(long, conflicts_with = "check")]
    pub by_op: bool,

    /// The step that --by-op looks at, as rows x length; the largest that there is unless given.
    #[arg(long, value_name = "ROWSxLENGTH", requires = "by_op")]
    pub shape: Option<RowsByLength>,

    /// Write a plot of peak workspace by batch and length; with --by-op, of the memory alive over the time of the step.
    #[arg(long, value_name = "FILE.svg")]
    pub svg: Option<PathBuf>,

    /// Do not keep the profile for `serve`.
    #[arg(long)]
    pub no_save: bool,

    /// What is served, and how.
    #[command(flatten)]
    pub options: ServeOptions,
}

/// Measures, or traces. Exits with 0 if every check holds, with 1 if a prediction was below what was measured.
///
/// # Errors
/// The model cannot be found or loaded, or a file cannot be written.
pub fn run(args: ProfileArgs) -> anyhow::Result<ExitCode> {
    let environment = Environment::of_process();
    let Effective { config, .. } = ServerConfig::load(&args.options, &environment)?;
    let threads = NonZeroUsize::new(config.threads.count()).unwrap_or(NonZeroUsize::MIN);
    set_compute_threads(threads)?;
    let (model, blueprint) = find(&args.name, &config, &environment)?;

    let mut session = Session::start(blueprint, server::start_options(&config, Readings::Off))
        .with_context(|| format!("{} cannot be loaded", model.name))?;
    let resident = session.resident();
    let mut out = io::stdout().lock();
    writeln!(out, "{} ({}) on {}: {resident} of weights\n", model.name, model.dtype, session.device_name())?;

    if args.by_op {
        by_op::run(&mut out, &mut session, args.shape, args.svg.as_deref())?;
        return Ok(ExitCode::SUCCESS);
    }
    let profile = measure(&mut session)?;
    write_table(&mut out, &profile)?;
    if !args.no_save {
        let store = ProfileStore::new(config.profile_dir.clone());
        let path = store.save(&model.name, &session.facts(), &profile.table())?;
        writeln!(out, "\nkept in {}", path.display())?;
    }
    if let Some(path) = &args.svg {
        plot::write(path, &model.name, &profile)?;
        writeln!(out, "plot in {}", path.display())?;
    }
    if args.check == 0 {
        return Ok(ExitCode::SUCCESS);
    }
    let shapes = check::shapes(&profile, args.check, args.seed);
    let bar = progress(u64::from(args.check), "checking");
    let mut checked = Vec::with_capacity(shapes.len());
    for shape in shapes {
        let measured = session.measure(shape)?;
        checked.push(Checked::new(&profile, measured));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let granule = session.terms().granule.max(session.slack().constant);
    let verdict = check::write(&mut out, &checked, granule, args.seed)?;
    Ok(if verdict.under == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The model of this name and what its files say.
fn find(name: &str, config: &ServerConfig, environment: &Environment) -> anyhow::Result<(ModelConfig, Blueprint)> {
    let argument = name.parse().map_err(|error| anyhow::anyhow!("{error}"))?;
    let place = Place::Flag(format!("profile {name}"));
    let entry = Repository::known(config)?.interpret(&argument, &place, &config.cache_dir)?;
    let model = entry.config?;
    match server::blueprint(&model, &Cache::new(config, environment)) {
        Ok(blueprint) => Ok((model, blueprint)),
        Err(reason) => bail!("{}: {reason}", model.name),
    }
}

/// Runs the whole survey of a model.
fn measure(session: &mut Session) -> anyhow::Result<Profile> {
    let mut profile = Profile::new(session.blueprint().axes(), session.slack());
    let bar = progress(0, "measuring");
    // A probe needs no leave here: nobody else is served by this process.
    while let Some(probe) = profile.next_probe(Bytes::MAX) {
        bar.set_message(format!("measuring {}", probe.shape));
        let Measured { shape, peak, time } = session.measure(probe.shape)?;
        profile.record(Measured { shape, peak, time });
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(profile)
}

fn write_table(out: &mut impl Write, profile: &Profile) -> io::Result<()> {
    let head = ["shape", "predicted", "measured", "time", "tokens/s", ""].map(str::to_owned);
    let mut rows = vec![head];
    for line in profile.table().lines {
        let rate = line.shape.tokens() as f64 / line.time.as_secs_f64();
        rows.push([
            line.shape.to_string(),
            line.predicted.map_or_else(|| "-".to_owned(), |predicted| predicted.to_string()),
            line.peak.to_string(),
            line.time.to_string(),
            format!("{rate:.0}"),
            match line.role {
                Role::Grid => String::new(),
                Role::HeldOut => "held out".to_owned(),
            },
        ]);
    }
    table::write(out, &rows)
}

/// A progress bar on a terminal, nothing elsewhere. `length` 0: not known beforehand.
fn progress(length: u64, message: &'static str) -> ProgressBar {
    if !io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = if length == 0 { "{spinner} {msg} ({pos} shapes, {elapsed})" } else { "{bar:40} {pos}/{len} {msg}" };
    let bar = if length == 0 { ProgressBar::new_spinner() } else { ProgressBar::new(length) };
    bar.set_draw_target(ProgressDrawTarget::stderr());
    bar.set_style(ProgressStyle::with_template(template).expect("the templates above are well formed"));
    bar.set_message(message);
    bar
}
