//! A Hugging Face repository.
//!
//! Files are downloaded to a staging cache beside the real one, checked there, and moved to
//! `snapshots/COMMIT/` all at once; the reference that leads a branch to the commit is written last. So the real cache,
//! which other clients of the hub share, never shows a part of a model.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use hf_hub::api::sync::{Api, ApiBuilder};
use hf_hub::{Repo, RepoType};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Deserialize;

use super::download::{Files, Whole};
use crate::config::source::Cache;
use crate::config::{Environment, check_name, digest, files};

/// How the hub is reached.
pub(super) struct Hub {
    endpoint: Option<String>,
    token: Option<String>,
    offline: bool,
    retries: usize,
    cache: Cache,
}

/// A file as the hub lists it.
#[derive(Clone, Debug, Deserialize, PartialEq)]
struct Listed {
    #[serde(rename = "rfilename")]
    name: String,
    size: Option<u64>,
    /// Only large files have one; it carries their digest.
    lfs: Option<Lfs>,
}

#[derive(Clone, Debug, Deserialize, PartialEq)]
struct Lfs {
    sha256: String,
}

/// What the hub says of a repository at a revision.
#[derive(Debug, Deserialize)]
struct Listing {
    #[serde(rename = "sha")]
    commit: String,
    siblings: Vec<Listed>,
}

impl Hub {
    /// The hub that HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE describe.
    pub(super) fn from_environment(environment: &Environment, cache: &Cache) -> Hub {
        let on = |value: &str| ["1", "on", "yes", "true"].contains(&value.to_ascii_lowercase().as_str());
        let token = environment.get("HF_TOKEN").map(str::to_owned);
        Hub {
            endpoint: environment.get("HF_ENDPOINT").map(|url| url.trim_end_matches('/').to_owned()),
            // Where the hub's own clients keep it after a login.
            token: token.or_else(|| hf_hub::Cache::new(cache.hub.clone()).token()),
            offline: environment.get("HF_HUB_OFFLINE").is_some_and(on),
            // Each takes the download up where it broke off.
            retries: 5,
            cache: cache.clone(),
        }
    }

    /// Fetches the model's files of `id` at `revision`; of its weights only those in `weights`, if there are any.
    ///
    /// # Errors
    /// The hub cannot be reached or refuses, the repository has nothing that can be served, or a file is not what the
    /// hub says it is. What was downloaded so far is kept for the next time.
    pub(super) fn fetch(&self, id: &str, revision: &str, weights: &[String]) -> anyhow::Result<PathBuf> {
        if self.offline {
            return self.cache.snapshot(id, revision).with_context(|| {
                format!("HF_HUB_OFFLINE is set, and {id} at {revision} is not in {}", self.cache.hub.display())
            });
        }
        let staging = hf_hub::Cache::new(self.cache.hub.join(".plimsoll-staging"));
        let listing = self.list(id, revision, &staging)?;
        let commit = listing.commit.as_str();
        check_name(commit).map_err(anyhow::Error::msg).context("the hub's answer names no commit")?;
        let chosen = choose(id, listing.siblings, weights)?;
        let snapshot = self.cache.hub_folder(id).join("snapshots").join(commit);
        if !is_complete(&snapshot, &chosen) {
            let repository = Repo::with_revision(id.to_owned(), RepoType::Model, commit.to_owned());
            let downloaded = self.download(&staging, &repository, commit, &chosen)?;
            publish(&downloaded, &snapshot)?;
            let folder = staging.path().join(repository.folder_name());
            fs::remove_dir_all(&folder).with_context(|| format!("{}", folder.display()))?;
        }
        if revision != commit {
            write_reference(&self.cache.hub_folder(id).join("refs").join(revision), commit)?;
        }
        Ok(snapshot)
    }

    fn api(&self, cache: &hf_hub::Cache) -> anyhow::Result<Api> {
        let builder = ApiBuilder::from_cache(cache.clone()).with_token(self.token.clone()).with_retries(self.retries);
        let builder = match &self.endpoint {
            Some(endpoint) => builder.with_endpoint(endpoint.clone()),
            None => builder,
        };
        Ok(builder.build()?)
    }

    /// Asks for the files with their sizes and digests.
    fn list(&self, id: &str, revision: &str, cache: &hf_hub::Cache) -> anyhow::Result<Listing> {
        let api = self.api(cache)?;
        let repository = api.repo(Repo::with_revision(id.to_owned(), RepoType::Model, revision.to_owned()));
        let request = repository.info_request().query("blobs", "true");
        // A refusal is an answer here, so that it can be explained.
        let answer = request.config().http_status_as_error(false).build().call();
        let mut answer = answer.with_context(|| format!("the hub cannot be reached for {id}"))?;
        match answer.status().as_u16() {
            200 => {}
            401 | 403 | 404 => bail!(
                "the hub does not show {id} at {revision} ({}): there is no such repository or revision, or it asks for \
                 a token in HF_TOKEN",
                answer.status()
            ),
            _ => bail!("the hub answers {} for {id} at {revision}", answer.status()),
        }
        let text = answer.body_mut().read_to_string()?;
        serde_json::from_str(&text).with_context(|| format!("the hub's answer for {id} is not understood"))
    }

    /// Downloads and checks `chosen` in the staging cache; for each its name and where it is.
    ///
    /// Not by the client of hf-hub: it joins what the server says in headers to paths. Here names come from the listing, where
    /// they were looked at.
    fn download(
        &self,
        staging: &hf_hub::Cache,
        repository: &Repo,
        commit: &str,
        chosen: &[Listed],
    ) -> anyhow::Result<Vec<(String, PathBuf)>> {
        let folder = staging.path().join(repository.folder_name()).join("files").join(commit);
        let (api, files) = (self.api(staging)?.repo(repository.clone()), Files::new(self.token.clone(), self.retries));
        let bar = bar(chosen.iter().filter_map(|file| file.size).sum());
        let mut before = 0;
        let mut downloaded = Vec::new();
        for file in chosen {
            let path = folder.join(&file.name);
            bar.set_message(file.name.clone());
            if !path.is_file() {
                // What is there of a file without a digest nobody could tell from another's.
                let whole = Whole { url: api.url(&file.name), size: file.size, can_go_on: file.lfs.is_some() };
                files
                    .download(&whole, &path, &bar, before)
                    .with_context(|| format!("{}: run the command again to go on from here", file.name))?;
            }
            check(&path, file)?;
            before += file.size.unwrap_or(0);
            bar.set_position(before);
            downloaded.push((file.name.clone(), path));
        }
        bar.finish_and_clear();
        Ok(downloaded)
    }
}

/// Checks what was downloaded against the listing; a file that is wrong is removed, so that the next try starts anew.
fn check(path: &Path, file: &Listed) -> anyhow::Result<()> {
    let size = fs::metadata(path).with_context(|| format!("{}", path.display()))?.len();
    let wrong = match (file.size, &file.lfs) {
        (Some(expected), _) if expected != size => Some(format!("it has {size} bytes, not {expected}")),
        (_, Some(lfs)) => digest::verify(path, &lfs.sha256).err().map(|error| error.to_string()),
        _ => None,
    };
    let Some(wrong) = wrong else { return Ok(()) };
    fs::remove_file(path)?;
    bail!("{} is not what the hub says it is, and was removed: {wrong}", file.name)
}

/// The files of `listed` that are fetched.
fn choose(id: &str, listed: Vec<Listed>, weights: &[String]) -> anyhow::Result<Vec<Listed>> {
    let pickle = listed.iter().any(|file| files::is_pickle(Path::new(&file.name)));
    let mut chosen: Vec<_> = listed.into_iter().filter(|file| files::is_model_file(Path::new(&file.name))).collect();
    let is_weights = |file: &Listed| !file.name.contains('/') && files::is_weights(Path::new(&file.name));
    let is_gguf = |file: &Listed| is_weights(file) && file.name.to_ascii_lowercase().ends_with(".gguf");
    for name in weights {
        if !chosen.iter().any(|file| is_weights(file) && file.name == *name) {
            let names: Vec<_> = chosen.iter().filter(|file| is_weights(file)).map(|file| file.name.as_str()).collect();
            bail!("{id} has no weights called '{name}': there are {}", names.join(", "));
        }
    }
    if !weights.is_empty() {
        chosen.retain(|file| !is_weights(file) || weights.contains(&file.name));
    } else if chosen.iter().any(|file| is_weights(file) && !is_gguf(file)) {
        // Both forms hold the same model.
        chosen.retain(|file| !is_gguf(file));
    }
    let ggufs: Vec<_> = chosen.iter().filter(|file| is_gguf(file)).map(|file| file.name.as_str()).collect();
    match chosen.iter().any(is_weights) {
        // A repository of GGUF files holds one model many times.
        true if weights.is_empty() && ggufs.len() > 1 => {
            bail!("{id} has several GGUF files: choose with --weights one of {}", ggufs.join(", "))
        }
        true => Ok(chosen),
        false if pickle => bail!("{id}: {}", super::PICKLE_ONLY),
        false => bail!("{id} has no weights (.safetensors or .gguf)"),
    }
}

/// Whether all of `chosen` are in `snapshot`, by their sizes.
fn is_complete(snapshot: &Path, chosen: &[Listed]) -> bool {
    chosen.iter().all(|file| {
        let found = fs::metadata(snapshot.join(&file.name)).map(|metadata| metadata.len()).ok();
        found.is_some() && (file.size.is_none() || found == file.size)
    })
}

/// Moves checked files into `snapshot`. It appears whole, or, where another client has begun it, file by file.
fn publish(downloaded: &[(String, PathBuf)], snapshot: &Path) -> anyhow::Result<()> {
    let commit = snapshot.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let folder = match snapshot.exists() {
        true => snapshot.to_owned(),
        false => snapshot.with_file_name(format!(".{commit}.partial")),
    };
    for (name, path) in downloaded {
        let target = folder.join(name);
        let parent = target.parent().expect("a file inside a folder has a parent");
        fs::create_dir_all(parent).with_context(|| format!("{}", parent.display()))?;
        fs::rename(path, &target).with_context(|| format!("{}", target.display()))?;
    }
    if folder != snapshot {
        fs::rename(&folder, snapshot).with_context(|| format!("{}", snapshot.display()))?;
    }
    Ok(())
}

fn write_reference(path: &Path, commit: &str) -> anyhow::Result<()> {
    let parent = path.parent().expect("a reference lies in a folder");
    fs::create_dir_all(parent).with_context(|| format!("{}", parent.display()))?;
    let partial = path.with_extension("partial");
    let write = || {
        fs::File::create(&partial)?.write_all(commit.as_bytes())?;
        fs::rename(&partial, path)
    };
    write().with_context(|| format!("{}", path.display()))
}

/// A bar over all files; it hides itself where standard error is no terminal.
fn bar(bytes: u64) -> ProgressBar {
    let bar = ProgressBar::new(bytes);
    let style = ProgressStyle::with_template("{msg} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} ({eta})");
    bar.set_style(style.expect("the template is valid"));
    bar
}

#[cfg(test)]
mod tests;
