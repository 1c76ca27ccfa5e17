//! What the models of the repository are, by their files.

use crate::config::source::{Cache, Located, SourceError, resolve};
use crate::config::{Entry, ModelConfig, Repository};
use crate::engine::Offer;
use crate::model::{Blueprint, ModelFiles};

/// What each model of the repository is, read from its files; a broken one keeps its reason.
pub fn offers(repository: Repository, cache: &Cache) -> Vec<Offer> {
    repository.entries.into_iter().map(|entry| offer(entry, cache)).collect()
}

/// What one model of the repository is.
pub fn offer(entry: Entry, cache: &Cache) -> Offer {
    let Entry { name, required, config, .. } = entry;
    let found = config.as_ref().map(|config| resolve(&config.source, cache));
    let absent = matches!(found, Ok(Err(SourceError::NotPulled { .. })));
    let model = config.map_err(|error| error.to_string()).and_then(|config| {
        let blueprint = blueprint(&config, cache)?;
        Ok((config, blueprint))
    });
    Offer { name, required, absent, model }
}

/// Finds and reads the files of one model.
///
/// # Errors
/// What is wrong with them, for people.
pub fn blueprint(config: &ModelConfig, cache: &Cache) -> Result<Blueprint, String> {
    let files = match resolve(&config.source, cache).map_err(|error| error.to_string())? {
        Located::Folder(folder) => ModelFiles::open(&folder),
        Located::Embedded(name) => ModelFiles::embedded(&name),
    };
    let files = files.map_err(|error| error.to_string())?;
    Blueprint::new(config, files).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn what_was_never_fetched_is_absent_and_not_broken() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let cache = Cache { root: root.path().join("cache"), hub: root.path().join("hub") };
        let toml = |name: &str, text: &str| {
            std::fs::create_dir_all(root.path().join("models").join(name)).expect("a folder");
            std::fs::write(root.path().join("models").join(name).join("model.toml"), text).expect("a file");
        };
        toml("fetched-later", "schema = 1\nrequired = false\nsource.hub = \"a/b\"");
        toml("misspelt", "schema = 1\nx = 1\nsource.hub = \"a/b\"");
        toml("nowhere", "schema = 1\nsource.path = \"no-such-folder\"");
        let repository = Repository::from_folder(&root.path().join("models")).expect("readable");
        let offers = offers(repository, &cache);
        let seen: Vec<_> = offers.iter().map(|offer| (offer.name.as_str(), offer.absent)).collect();
        assert_eq!(seen, [("fetched-later", true), ("misspelt", false), ("nowhere", false)]);
        let reason = offers[0].model.as_ref().expect_err("there is nothing of it");
        assert!(reason.contains("run `plimsoll pull hf:a/b`"), "{reason}");

        // There, and no model.
        let snapshot = cache.hub_folder("a/b").join("snapshots/main");
        std::fs::create_dir_all(&snapshot).expect("a folder");
        std::fs::write(snapshot.join("model.safetensors"), "").expect("a file");
        let entry = Repository::of_model(Path::new(&root.path().join("models/fetched-later"))).entries.remove(0);
        let fetched = offer(entry, &cache);
        assert!(!fetched.absent && fetched.model.is_err());
    }
}
