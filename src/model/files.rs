//! The files of one model: a folder in the Hugging Face layout, or the same built into the program.

use std::borrow::Cow;
use std::fs::{File, Metadata};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::embedded::{self, EmbeddedFile, embedded_names};
use super::error::ModelError;
use crate::config::MODEL_FILE;

/// Where a model's files are. Cheap to clone.
///
/// Every name is relative to the folder; none that leads out of it is opened, whether by `..` or by a link.
#[derive(Clone, Debug)]
pub struct ModelFiles {
    origin: Origin,
}

#[derive(Clone, Debug)]
enum Origin {
    Folder { root: Arc<Path>, boundary: Arc<Path> },
    Embedded { name: &'static str, files: &'static [EmbeddedFile] },
}

impl ModelFiles {
    /// The files under `folder`.
    ///
    /// # Errors
    /// [`ModelError::Unreadable`] when it is not a folder.
    pub fn open(folder: &Path) -> Result<ModelFiles, ModelError> {
        let place = || folder.display().to_string();
        let root = folder.canonicalize().map_err(|error| ModelError::unreadable(place(), error))?;
        if !root.is_dir() {
            return Err(ModelError::unreadable(place(), "it is not a folder"));
        }
        let boundary = hub_cache_of(&root).unwrap_or_else(|| root.clone());
        Ok(ModelFiles { origin: Origin::Folder { root: root.into(), boundary: boundary.into() } })
    }

    /// The files of the embedded model `name`.
    ///
    /// # Errors
    /// [`ModelError::Invalid`] when there is none, naming those that there are.
    pub fn embedded(name: &str) -> Result<ModelFiles, ModelError> {
        let found = embedded_names().find(|known| *known == name);
        match found.and_then(|name| Some((name, embedded::find(name)?))) {
            Some((name, files)) => Ok(ModelFiles { origin: Origin::Embedded { name, files } }),
            None => {
                let names: Vec<_> = embedded_names().collect();
                let allowed = match names.is_empty() {
                    true => "none: this program was built without the feature embedded-models".to_owned(),
                    false => names.join(", "),
                };
                Err(ModelError::invalid("embedded model", format!("'{name}'"), allowed))
            }
        }
    }

    /// How an error names `file`.
    pub(crate) fn place(&self, file: &str) -> String {
        match &self.origin {
            Origin::Folder { root, .. } => root.join(file).display().to_string(),
            Origin::Embedded { name, .. } => format!("embedded:{name}/{file}"),
        }
    }

    /// Opens `file`; `None` when it is not there.
    pub(crate) fn open_file(&self, file: &str) -> Result<Option<Source>, ModelError> {
        match &self.origin {
            Origin::Embedded { files, .. } => {
                Ok(files.iter().find(|(name, _)| *name == file).map(|(_, bytes)| Source::Static(bytes)))
            }
            Origin::Folder { root, boundary } => {
                let Some(path) = self.path_within(root, boundary, file)? else { return Ok(None) };
                let unreadable = |error| ModelError::unreadable(self.place(file), error);
                // Before it is opened: a pipe would wait for somebody to write. And after, when it is that very file.
                regular(&path.metadata().map_err(unreadable)?).map_err(unreadable)?;
                let opened = File::open(&path).map_err(unreadable)?;
                let metadata = opened.metadata().map_err(unreadable)?;
                regular(&metadata).map_err(unreadable)?;
                Ok(Some(Source::File { file: Arc::new(opened), len: metadata.len() }))
            }
        }
    }

    /// Opens a file of a folder for somebody who copies it, and says how long it is.
    pub(crate) fn open_to_copy(&self, file: &Path) -> Result<(Arc<File>, u64), ModelError> {
        let name = file.to_str().unwrap_or_default();
        match self.open_file(name)? {
            Some(Source::File { file, len }) => Ok((file, len)),
            _ => Err(ModelError::missing(self.place(name), "it was there when the folder was listed")),
        }
    }

    /// The contents of `file`, which may not be larger than `most` bytes; `None` when it is not there.
    pub(crate) fn read(&self, file: &str, most: u64) -> Result<Option<Cow<'static, [u8]>>, ModelError> {
        let Some(source) = self.open_file(file)? else { return Ok(None) };
        if source.len() > most {
            let (found, allowed) = (format!("{} bytes", source.len()), format!("at most {most} bytes"));
            return Err(ModelError::invalid(self.place(file), found, allowed));
        }
        if let Source::Static(bytes) = source {
            return Ok(Some(Cow::Borrowed(bytes)));
        }
        let mut bytes = vec![0; source.len() as usize];
        source.read_at(&mut bytes, 0).map_err(|error| ModelError::unreadable(self.place(file), error))?;
        Ok(Some(Cow::Owned(bytes)))
    }

    /// Names of the files directly in the folder, sorted.
    pub(crate) fn names(&self) -> Result<Vec<String>, ModelError> {
        let mut names: Vec<String> = match &self.origin {
            Origin::Embedded { files, .. } => files.iter().map(|(name, _)| (*name).to_owned()).collect(),
            Origin::Folder { root, .. } => std::fs::read_dir(root)
                .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect::<Result<Vec<_>, _>>())
                .map_err(|error| ModelError::unreadable(root.display().to_string(), error))?
                .into_iter()
                .filter_map(|name| name.into_string().ok())
                .collect(),
        };
        names.sort();
        Ok(names)
    }

    /// Changes whenever a file of the model is replaced, written to, added or taken away: its length, its time, and which
    /// file it is. Contents are not looked at: weights are gigabytes. `model.toml` is not the model's own: what it says is
    /// compared by whoever reads it. What is built into the program never changes.
    ///
    /// # Errors
    /// [`ModelError::Unreadable`] when the folder cannot be looked into.
    pub(crate) fn stamp(&self) -> Result<String, ModelError> {
        let Origin::Folder { root, .. } = &self.origin else { return Ok(String::new()) };
        let unreadable = |error| ModelError::unreadable(root.display().to_string(), error);
        let mut hasher = Sha256::new();
        let mut folders = vec![root.to_path_buf()];
        while let Some(folder) = folders.pop() {
            let mut paths = std::fs::read_dir(&folder)
                .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<_>, _>>())
                .map_err(unreadable)?;
            paths.sort();
            for path in paths {
                // A link that leads nowhere is no file of the model.
                let Ok(found) = path.metadata() else { continue };
                if path == root.join(MODEL_FILE) {
                    continue;
                }
                if found.is_dir() {
                    // The layout has one level of folders; what somebody keeps deeper is not the model's.
                    if folder == **root {
                        folders.push(path);
                    }
                    continue;
                }
                hasher.update(path.as_os_str().as_encoded_bytes());
                let facts = [found.dev(), found.ino(), found.len(), found.mtime() as u64, found.mtime_nsec() as u64];
                hasher.update(facts.map(u64::to_le_bytes).concat());
            }
        }
        Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }

    /// Checks the SHA-256 of `file` against `expected` (hexadecimal).
    pub(crate) fn check_digest(&self, file: &str, expected: &str) -> Result<(), ModelError> {
        let Some(source) = self.open_file(file)? else {
            return Err(ModelError::missing(self.place(file), "the configuration names its sha256"));
        };
        let mut hasher = Sha256::new();
        let mut buffer = vec![0; 1 << 20];
        let mut at = 0;
        while at < source.len() {
            let count = buffer.len().min((source.len() - at) as usize);
            let part = &mut buffer[..count];
            source.read_at(part, at).map_err(|error| ModelError::unreadable(self.place(file), error))?;
            hasher.update(&*part);
            at += count as u64;
        }
        let found: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        if !found.eq_ignore_ascii_case(expected) {
            return Err(ModelError::Digest { place: self.place(file), found, expected: expected.to_owned() });
        }
        Ok(())
    }

    fn path_within(&self, root: &Path, boundary: &Path, file: &str) -> Result<Option<PathBuf>, ModelError> {
        let relative = Path::new(file);
        if file.is_empty() || relative.components().any(|part| !matches!(part, Component::Normal(_))) {
            let allowed = "a file name relative to the model's folder, without '..'";
            return Err(ModelError::invalid(self.place(""), format!("the file name '{file}'"), allowed));
        }
        match root.join(relative).canonicalize() {
            Ok(path) if path.starts_with(boundary) => Ok(Some(path)),
            Ok(path) => {
                let found = format!("a link to {}", path.display());
                Err(ModelError::invalid(self.place(file), found, "files inside the model's folder"))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(ModelError::unreadable(self.place(file), error)),
        }
    }
}

fn regular(metadata: &Metadata) -> std::io::Result<()> {
    match metadata.is_file() {
        true => Ok(()),
        false => Err(std::io::Error::other("it is not a regular file")),
    }
}

/// In the Hugging Face cache a snapshot's files are links into `blobs/` of the same repository; the repository's
/// folder is then the one that no link may leave.
fn hub_cache_of(root: &Path) -> Option<PathBuf> {
    let snapshots = root.parent()?;
    let repository = snapshots.parent()?;
    (snapshots.file_name()? == "snapshots" && repository.join("blobs").is_dir()).then(|| repository.to_owned())
}

/// An open file, read at offsets: nothing is mapped, so a file that shrinks is an error and not a signal.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    /// Built into the program.
    Static(&'static [u8]),
    /// On disk, with its length when it was opened.
    File { file: Arc<File>, len: u64 },
}

impl Source {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Source::Static(bytes) => bytes.len() as u64,
            Source::File { len, .. } => *len,
        }
    }

    /// Fills `buffer` from `offset`; an error when the file ends before.
    pub(crate) fn read_at(&self, buffer: &mut [u8], offset: u64) -> std::io::Result<()> {
        match self {
            Source::Static(bytes) => {
                let part = usize::try_from(offset).ok().and_then(|from| bytes.get(from..)?.get(..buffer.len()));
                buffer.copy_from_slice(part.ok_or(std::io::ErrorKind::UnexpectedEof)?);
                Ok(())
            }
            Source::File { file, .. } => file.read_exact_at(buffer, offset),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn names_that_lead_out_of_the_folder_are_refused() {
        let outside = folder(&[("secret", "s")]);
        let inside = folder(&[("config.json", "{}"), ("1_Pooling/config.json", "{}")]);
        std::os::unix::fs::symlink(outside.path().join("secret"), inside.path().join("link")).unwrap();
        let files = ModelFiles::open(inside.path()).unwrap();
        let check = |name: &str, allowed: bool| assert_eq!(files.open_file(name).is_ok(), allowed, "{name}");
        check("config.json", true);
        check("1_Pooling/config.json", true);
        check("not-there", true);
        check("link", false);
        check("../secret", false);
        check("1_Pooling/../config.json", false);
        check(outside.path().join("secret").to_str().unwrap(), false);
        check("", false);
        check("1_Pooling", false);
    }

    #[test]
    fn a_pipe_is_refused_without_waiting_for_who_writes_to_it() {
        let folder = folder(&[("config.json", "{}")]);
        let made = std::process::Command::new("mkfifo").arg(folder.path().join("pipe")).status().unwrap();
        assert!(made.success());
        let (told, answer) = std::sync::mpsc::channel();
        let files = ModelFiles::open(folder.path()).unwrap();
        std::thread::spawn(move || told.send(files.open_file("pipe").map(|_| ())));
        let error = answer.recv_timeout(std::time::Duration::from_secs(10)).expect("it does not wait").unwrap_err();
        assert!(error.to_string().contains("it is not a regular file"), "{error}");
    }

    #[test]
    fn a_hub_cache_links_into_its_own_blobs_only() {
        let cache = folder(&[("models--a--b/blobs/x", "{}"), ("models--a--b/snapshots/1/r", ""), ("other/y", "{}")]);
        let snapshot = cache.path().join("models--a--b/snapshots/1");
        std::os::unix::fs::symlink("../../blobs/x", snapshot.join("config.json")).unwrap();
        std::os::unix::fs::symlink("../../../other/y", snapshot.join("stray.json")).unwrap();
        let files = ModelFiles::open(&snapshot).unwrap();
        assert!(files.open_file("config.json").unwrap().is_some());
        assert!(files.open_file("stray.json").is_err());
    }

    #[test]
    fn a_stamp_tells_whether_anything_was_changed() {
        let folder = folder(&[("config.json", "{}"), ("1_Pooling/config.json", "{}"), ("model.safetensors", "abc")]);
        let files = ModelFiles::open(folder.path()).unwrap();
        let stamp = || files.stamp().unwrap();
        let first = stamp();
        std::fs::write(folder.path().join(MODEL_FILE), "schema = 1").unwrap();
        assert_eq!(stamp(), first, "nothing of the model's own has changed");
        let mut seen = vec![first];
        let mut check = |what: &str| {
            let now = stamp();
            assert!(!seen.contains(&now), "{what}");
            seen.push(now);
        };
        // As programs do that keep the time and the length.
        std::fs::write(folder.path().join("new"), "xyz").unwrap();
        check("a file came");
        std::fs::rename(folder.path().join("new"), folder.path().join("model.safetensors")).unwrap();
        check("a file took the place of another");
        std::fs::write(folder.path().join("1_Pooling/config.json"), "{ }").unwrap();
        check("a file below was written to");
        std::fs::remove_file(folder.path().join("config.json")).unwrap();
        check("a file went");
    }

    #[test]
    fn a_digest_that_differs_is_an_error() {
        let folder = folder(&[("a", "abc")]);
        let files = ModelFiles::open(folder.path()).unwrap();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(files.check_digest("a", abc), Ok(()));
        assert!(matches!(files.check_digest("a", &abc.replace('b', "c")), Err(ModelError::Digest { .. })));
        assert!(matches!(files.check_digest("b", abc), Err(ModelError::Missing { .. })));
    }

    #[test]
    fn a_file_larger_than_allowed_is_not_read() {
        let folder = folder(&[("a", "abcd")]);
        let files = ModelFiles::open(folder.path()).unwrap();
        assert_eq!(files.read("a", 4).unwrap().as_deref(), Some(&b"abcd"[..]));
        assert!(files.read("a", 3).is_err());
    }
}
