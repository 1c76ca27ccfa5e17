//! A model's folder elsewhere on this machine, copied into the cache. Copied, not linked: the cache is what goes into
//! an image or onto another machine, and must not break when a share is gone.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use indicatif::ProgressBar;

use crate::config::{check_name, files, source};
use crate::model::ModelFiles;

/// Copies the model's files in `from` to the cache at `cache_dir`, and says where they are now.
///
/// # Errors
/// `from` is no model's folder, or cannot be copied; nothing is left under the final name then.
pub(super) fn copy(from: &Path, cache_dir: &Path) -> anyhow::Result<PathBuf> {
    let from = from.canonicalize().with_context(|| format!("{}", from.display()))?;
    let name = from.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    check_name(name).map_err(anyhow::Error::msg).with_context(|| format!("{}", from.display()))?;
    let to = source::local_folder(cache_dir, name);
    if to.canonicalize().is_ok_and(|to| to == from) {
        return Ok(to);
    }
    let names = model_files(&from)?;
    // What of it is a link leads to another file of the model, or nowhere.
    let opened = ModelFiles::open(&from)?;
    let partial = to.with_file_name(format!(".{name}.partial"));
    if partial.exists() {
        fs::remove_dir_all(&partial).with_context(|| format!("{}", partial.display()))?;
    }
    let bar = ProgressBar::new(names.len() as u64);
    for name in &names {
        bar.set_message(name.display().to_string());
        let target = partial.join(name);
        let parent = target.parent().expect("a file inside a folder has a parent");
        fs::create_dir_all(parent).with_context(|| format!("{}", parent.display()))?;
        let (mut file, expected) = opened.open_to_copy(name)?;
        let mut copy = fs::File::create(&target).with_context(|| format!("{}", target.display()))?;
        let copied = io::copy(&mut file, &mut copy).with_context(|| format!("{}", target.display()))?;
        ensure!(copied == expected, "{} changed while it was copied", from.join(name).display());
        bar.inc(1);
    }
    bar.finish_and_clear();
    if to.exists() {
        fs::remove_dir_all(&to).with_context(|| format!("{}", to.display()))?;
    }
    fs::rename(&partial, &to).with_context(|| format!("{}", to.display()))?;
    Ok(to)
}

/// The model's files below `folder`, relative to it.
fn model_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let list = |folder: &Path| -> anyhow::Result<Vec<PathBuf>> {
        let entries = fs::read_dir(folder).with_context(|| format!("{}", folder.display()))?;
        let mut paths = entries.map(|entry| Ok(entry?.path())).collect::<anyhow::Result<Vec<_>>>()?;
        paths.sort();
        Ok(paths)
    };
    let mut found = Vec::new();
    let mut pickle = false;
    for path in list(folder)? {
        // No file of a model lies deeper than in one folder below its own.
        let inner = if path.is_dir() { list(&path)? } else { vec![path] };
        for path in inner {
            let name = path.strip_prefix(folder).expect("listed from it").to_owned();
            pickle |= files::is_pickle(&name);
            if path.is_file() && files::is_model_file(&name) {
                found.push(name);
            }
        }
    }
    match found.iter().any(|name| files::is_weights(name)) {
        true => Ok(found),
        false if pickle => bail!("{}: {}", folder.display(), super::PICKLE_ONLY),
        false => bail!("{}: there are no weights (.safetensors or .gguf)", folder.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a temporary folder");
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().expect("inside the folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        }
        root
    }

    #[test]
    fn only_the_models_files_are_copied_and_a_second_time_replaces_them() {
        let root = folder(&[
            ("my-model/config.json", "{}"),
            ("my-model/model.safetensors", "one"),
            ("my-model/1_Pooling/config.json", "{}"),
            ("my-model/pytorch_model.bin", "pickle"),
            ("my-model/modeling.py", "code"),
        ]);
        let from = root.path().join("my-model");
        let cache = root.path().join("cache");
        let to = copy(&from, &cache).expect("copied");
        assert_eq!(to, cache.join("local/my-model"));
        let expected = ["1_Pooling/config.json", "config.json", "model.safetensors"].map(PathBuf::from);
        assert_eq!(model_files(&to).expect("a model"), expected);
        assert!(!to.join("modeling.py").exists() && !to.join("pytorch_model.bin").exists());

        fs::write(from.join("model.safetensors"), "two").expect("a file");
        assert_eq!(copy(&from, &cache).expect("copied again"), to);
        assert_eq!(fs::read_to_string(to.join("model.safetensors")).expect("a file"), "two");
        assert_eq!(copy(&to, &cache).expect("it is there already"), to);
    }

    #[test]
    fn a_link_that_leads_out_of_the_model_is_refused() {
        let root = folder(&[
            ("secret/config.json", "{}"),
            ("m/model.safetensors", "one"),
            ("hub/models--a--b/blobs/x", "one"),
            ("hub/models--a--b/snapshots/1/config.json", "{}"),
        ]);
        let path = |name: &str| root.path().join(name);
        let copy = |from: &str| copy(&path(from), &path("cache"));
        std::os::unix::fs::symlink(path("secret/config.json"), path("m/config.json")).expect("a link");
        let error = format!("{:#}", copy("m").expect_err("it leads out"));
        assert!(error.contains("files inside the model's folder"), "{error}");
        fs::remove_file(path("m/config.json")).expect("removed");
        std::os::unix::fs::symlink(path("secret"), path("m/1_Pooling")).expect("a link");
        let error = format!("{:#}", copy("m").expect_err("its folder leads out"));
        assert!(error.contains("files inside the model's folder"), "{error}");
        assert!(!path("cache/local/m").exists());
        // As in the hub's cache.
        let link = path("hub/models--a--b/snapshots/1/model.safetensors");
        std::os::unix::fs::symlink("../../blobs/x", link).expect("a link");
        let to = copy("hub/models--a--b/snapshots/1").expect("copied");
        assert_eq!(fs::read_to_string(to.join("model.safetensors")).expect("a file"), "one");
    }

    #[test]
    fn a_folder_without_safe_weights_is_refused() {
        let check = |files: &[(&str, &str)], part: &str| {
            let root = folder(files);
            let error = copy(&root.path().join("m"), &root.path().join("cache")).expect_err("must be refused");
            assert!(format!("{error:#}").contains(part), "{error:#}");
            assert!(!root.path().join("cache/local/m").exists());
        };
        check(&[("m/config.json", "{}"), ("m/pytorch_model.bin", "")], "pickle");
        check(&[("m/config.json", "{}")], "there are no weights");
        check(&[], "/m");
    }
}
