//! Profiles on disk, so that a model is measured once for each machine and not at each start.
//!
//! A profile is a file `<key>.json` in one folder. The key is a hash over everything that a peak or a time depends on
//! ([`ProfileFacts`]); when any of it changes the old file is simply not found. Files may be copied between machines
//! that agree in those facts, and shipped in images.
//!
//! A file is never trusted: whatever does not fit is an error that names the file, and the caller measures anew.

mod facts;
mod file;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use facts::ProfileFacts;
pub use file::FormError;
use file::ProfileFile;

use crate::memory::Table;

/// Larger files are refused unread. A profile of a hundred shapes has 10 KB.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// A folder of profiles.
#[derive(Clone, Debug)]
pub struct ProfileStore {
    folder: PathBuf,
}

/// What a stored file is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its key.
    pub key: String,
    /// Name of the model when it was measured; the key does not depend on it.
    pub model: String,
    /// What it is valid for.
    pub facts: ProfileFacts,
    /// What was measured.
    pub table: Table,
}

/// Why a profile cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The file system refused.
    #[error("{}: {error}", .path.display())]
    Io {
        /// Which file or folder.
        path: PathBuf,
        /// What it said.
        error: io::Error,
    },
    /// The file is not a profile.
    #[error("{}: {error}", .path.display())]
    Form {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        error: FormError,
    },
}

impl ProfileStore {
    /// The store in `folder`, which is made when the first profile is saved.
    pub fn new(folder: impl Into<PathBuf>) -> ProfileStore {
        ProfileStore { folder: folder.into() }
    }

    /// The profile for these facts; `None` if there is none.
    ///
    /// # Errors
    /// If there is a file and it cannot be read, or is not a profile for these facts.
    pub fn load(&self, facts: &ProfileFacts) -> Result<Option<Table>, StoreError> {
        let path = self.path(&facts.key());
        match read(&path) {
            Err(StoreError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
            // A file under another's name, or a collision of hashes.
            Ok(found) if found.facts != *facts => Err(StoreError::Form { path, error: FormError::OtherFacts }),
            Ok(found) => Ok(Some(found.table)),
        }
    }

    /// Stores a profile, in place of an older one with the same facts. A crash leaves the old file or the new one.
    /// Returns where it is.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn save(&self, model: &str, facts: &ProfileFacts, table: &Table) -> Result<PathBuf, StoreError> {
        fs::create_dir_all(&self.folder).map_err(at(&self.folder))?;
        let path = self.path(&facts.key());
        write_atomically(&path, &ProfileFile::of(model, facts, table).text()).map_err(at(&path))?;
        Ok(path)
    }

    /// Every file of the folder in order of name, readable or not.
    ///
    /// # Errors
    /// If the folder cannot be read; one that does not exist is empty.
    pub fn list(&self) -> Result<Vec<Result<Listed, StoreError>>, StoreError> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(at(&self.folder))?,
        };
        let is_profile = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "json");
        let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).filter(is_profile).collect();
        paths.sort();
        Ok(paths.iter().map(|path| read(path)).collect())
    }

    /// Copies a profile into the store under its own key, whatever its file is called. Returns what it is about.
    ///
    /// # Errors
    /// If it is not a profile, or cannot be written.
    pub fn import(&self, path: &Path) -> Result<Listed, StoreError> {
        let found = read(path)?;
        self.save(&found.model, &found.facts, &found.table)?;
        Ok(found)
    }

    /// Copies the profile with these facts to `path`. Returns whether there is one.
    ///
    /// # Errors
    /// If it cannot be read or written.
    pub fn export(&self, facts: &ProfileFacts, path: &Path) -> Result<bool, StoreError> {
        if self.load(facts)?.is_none() {
            return Ok(false);
        }
        let from = self.path(&facts.key());
        let text = fs::read_to_string(&from).map_err(at(&from))?;
        write_atomically(path, &text).map_err(at(path))?;
        Ok(true)
    }

    fn path(&self, key: &str) -> PathBuf {
        self.folder.join(format!("{key}.json"))
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> StoreError + '_ {
    move |error| StoreError::Io { path: path.to_owned(), error }
}

fn read(path: &Path) -> Result<Listed, StoreError> {
    let form = |error| StoreError::Form { path: path.to_owned(), error };
    let file = File::open(path).map_err(at(path))?;
    let mut text = String::new();
    // One byte more than is allowed tells a file that is too long from one that just fits.
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(at(path))?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(form(FormError::TooLong { allowed: FILE_BYTES_MAX }));
    }
    ProfileFile::parse(&text).map_err(form)
}

/// Writes beside the target, to disk, and renames: readers see the old file or the new one, whole.
fn write_atomically(path: &Path, text: &str) -> io::Result<()> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut name = path.file_name().ok_or(io::ErrorKind::InvalidFilename)?.to_owned();
    // Other processes and threads may be saving the same profile.
    name.push(format!(".{}-{}.tmp", std::process::id(), COUNT.fetch_add(1, Relaxed)));
    let temporary = folder.join(name);
    let written = (|| {
        let mut file = File::create_new(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)?;
        // The rename itself is on disk when the folder is.
        File::open(folder)?.sync_all()
    })();
    if written.is_err() {
        // Gone already, if the rename was done.
        let _ = fs::remove_file(&temporary);
    }
    written
}

#[cfg(test)]
mod tests;
