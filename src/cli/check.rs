//! `plimsoll check`: everything that can be said about a configuration without starting anything.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::table;
use crate::config::source::{self, Cache, Located, SourceError};
use crate::config::{
    ConfigError, Entry, Environment, MODEL_FILE, ModelArgument, ModelConfig, Models, Repository, ServeOptions,
    ServerConfig, digest, files,
};

/// Check settings and models offline, reporting every problem at once
///
/// Exit code: 0 if all can be served (a model that is not needed at start may still have to be pulled), 1 if there is a
/// problem, 2 if the command line makes no sense.
#[derive(clap::Args, Clone, Debug)]
pub struct CheckArgs {
    /// A repository, a model's folder, a model.toml or a server.toml; without it, what `serve` would serve.
    pub path: Option<PathBuf>,

    /// Also compare the files that are here with the SHA-256 in model.toml, which reads all of them.
    #[arg(long)]
    pub digests: bool,

    /// What would be served, and how.
    #[command(flatten)]
    pub options: ServeOptions,
}

/// Runs `plimsoll check`.
///
/// # Errors
/// Only those of writing the report: a problem of the configuration is reported and is the exit code.
pub fn run(args: CheckArgs) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let environment = Environment::of_process();
    let loaded = load(&args, &environment);
    let (config, repository) = match loaded {
        Ok(loaded) => loaded,
        Err(error) => {
            writeln!(out, "{error}")?;
            return Ok(ExitCode::FAILURE);
        }
    };
    let cache = Cache::new(&config, &environment);
    let verdicts: Vec<_> = repository.entries.iter().map(|entry| (entry, judge(entry, &cache, args.digests))).collect();
    let rows: Vec<_> = verdicts
        .iter()
        .map(|(entry, verdict)| {
            let (word, text) = verdict.describe();
            // Problems of one model stand below one another.
            [word.to_owned(), entry.name.clone(), text.lines().collect::<Vec<_>>().join("; ")]
        })
        .collect();
    table::write(&mut out, &rows)?;
    let problems = verdicts.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Problem(_))).count();
    writeln!(out, "{} models, {problems} with a problem", verdicts.len())?;
    Ok(if problems == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The configuration and the models that the arguments mean.
fn load(args: &CheckArgs, environment: &Environment) -> Result<(ServerConfig, Repository), ConfigError> {
    let mut options = args.options.clone();
    if let Some(path) = &args.path {
        aim(&mut options, path)?;
    }
    let config = ServerConfig::load(&options, environment)?.config;
    let repository = Repository::load(&config)?;
    Ok((config, repository))
}

/// Makes `options` mean what is at `path`.
fn aim(options: &mut ServeOptions, path: &Path) -> Result<(), ConfigError> {
    let named = |name: &str| path.file_name().is_some_and(|last| last == name);
    let is_model = |folder: &Path| folder.join(MODEL_FILE).is_file() || folder.join("config.json").is_file();
    let model = |folder: &Path| ModelArgument { name: None, target: folder.display().to_string(), dtype: None };
    if path.is_file() && named(MODEL_FILE) {
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        options.model.push(model(folder));
    } else if path.is_file() {
        options.config = Some(path.to_owned());
    } else if path.is_dir() && is_model(path) {
        options.model.push(model(path));
    } else if path.is_dir() {
        options.settings.models = Some(Models::Folder(path.to_owned()));
    } else {
        return Err(ConfigError::at(path, "there is neither a file nor a folder"));
    }
    Ok(())
}

/// What can be said about one model.
enum Verdict {
    /// It can be served.
    Fine(String),
    /// It can be served once it is pulled, and nothing waits for it.
    ToPull(String),
    /// It cannot be served.
    Problem(String),
}

impl Verdict {
    fn describe(&self) -> (&'static str, &str) {
        match self {
            Verdict::Fine(text) => ("ok", text),
            Verdict::ToPull(text) => ("pull", text),
            Verdict::Problem(text) => ("PROBLEM", text),
        }
    }
}

fn judge(entry: &Entry, cache: &Cache, digests: bool) -> Verdict {
    let model = match &entry.config {
        Ok(model) => model,
        Err(error) => return Verdict::Problem(error.to_string()),
    };
    match source::resolve(&model.source, cache) {
        Ok(Located::Embedded(_)) => Verdict::Fine(format!("{}, built in", model.dtype)),
        Ok(Located::Folder(folder)) => judge_folder(model, &folder, digests),
        Err(error @ SourceError::NotPulled { .. }) if !model.required => Verdict::ToPull(error.to_string()),
        Err(error) => Verdict::Problem(error.to_string()),
    }
}

fn judge_folder(model: &ModelConfig, folder: &Path, digests: bool) -> Verdict {
    if !files::holds_weights(folder) {
        let message = format!("{}: there are no weights (.safetensors or .gguf)", folder.display());
        return Verdict::Problem(message);
    }
    let absent = model.sha256.keys().find(|file| !folder.join(file).is_file());
    if let Some(file) = absent {
        return Verdict::Problem(format!("{}: {file}, whose SHA-256 is given, is not there", folder.display()));
    }
    if digests && let Err(error) = digest::verify_all(folder, &model.sha256) {
        return Verdict::Problem(error.to_string());
    }
    let checked = match (digests, model.sha256.len()) {
        (true, count) => format!(", {count} digests agree"),
        (false, _) => String::new(),
    };
    Verdict::Fine(format!("{}, {}{checked}", model.dtype, folder.display()))
}
