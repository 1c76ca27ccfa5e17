//! What files say, kept up to date while a server runs: certificates and tokens are replaced before they end.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use sha2::{Digest, Sha256};

/// The largest file that is read: certificates and tokens are a few KiB.
const FILE_MAX: u64 = 1 << 20;

type Parse<T> = Box<dyn Fn(&[Vec<u8>]) -> Result<T, String> + Send + Sync>;

/// What some files say together. Each look at them is at the files as a whole: one that is replaced is not followed by its
/// handle, which would miss what takes its place.
pub(crate) struct Kept<T> {
    files: Vec<PathBuf>,
    parse: Parse<T>,
    state: RwLock<State<T>>,
}

struct State<T> {
    /// Of the contents that were looked at last, good or not.
    digest: [u8; 32],
    value: Arc<T>,
}

impl<T> fmt::Debug for Kept<T> {
    /// Without the value, which may be secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("files", &self.files).finish_non_exhaustive()
    }
}

impl<T> Kept<T> {
    /// Reads the files; `parse` gets the contents of each, in the same order.
    ///
    /// # Errors
    /// Which file cannot be read, or what `parse` says.
    pub(crate) fn open(
        files: &[&Path],
        parse: impl Fn(&[Vec<u8>]) -> Result<T, String> + Send + Sync + 'static,
    ) -> Result<Kept<T>, String> {
        let files: Vec<PathBuf> = files.iter().map(|file| file.to_path_buf()).collect();
        let contents = read(&files)?;
        let value = parse(&contents).map_err(|problem| format!("{}: {problem}", names(&files)))?;
        let state = State { digest: digest(&contents), value: Arc::new(value) };
        Ok(Kept { files, parse: Box::new(parse), state: RwLock::new(state) })
    }

    /// What they say.
    pub(crate) fn get(&self) -> Arc<T> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).value.clone()
    }

    /// Reads them again. What is broken, or half written, changes nothing: the log says so, once. Blocks.
    pub(crate) fn refresh(&self, what: &'static str) {
        let contents = match read(&self.files) {
            Ok(contents) => contents,
            // For a moment a file that is being replaced is not there. If it stays away it has its line in the log once.
            Err(problem) => return self.note(digest(&[problem.clone().into_bytes()]), Err(problem), what),
        };
        let seen = digest(&contents);
        if self.state.read().unwrap_or_else(PoisonError::into_inner).digest == seen {
            return;
        }
        let parsed = (self.parse)(&contents).map_err(|problem| format!("{}: {problem}", names(&self.files)));
        self.note(seen, parsed, what);
    }

    fn note(&self, seen: [u8; 32], found: Result<T, String>, what: &'static str) {
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        if state.digest == seen {
            return;
        }
        state.digest = seen;
        match found {
            Ok(value) => {
                state.value = Arc::new(value);
                tracing::info!("{what} are read again: {} changed", names(&self.files));
            }
            Err(problem) => tracing::error!("{what} stay as they were: {problem}"),
        }
    }
}

fn read(files: &[PathBuf]) -> Result<Vec<Vec<u8>>, String> {
    let read = |file: &PathBuf| match std::fs::metadata(file) {
        Ok(about) if about.len() > FILE_MAX => Err(format!("{}: it is larger than 1 MiB", file.display())),
        Ok(_) => std::fs::read(file).map_err(|error| format!("{} cannot be read: {error}", file.display())),
        Err(error) => Err(format!("{} cannot be read: {error}", file.display())),
    };
    files.iter().map(read).collect()
}

fn names(files: &[PathBuf]) -> String {
    files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn digest(contents: &[Vec<u8>]) -> [u8; 32] {
    let mut all = Sha256::new();
    for part in contents {
        all.update((part.len() as u64).to_le_bytes());
        all.update(part);
    }
    all.finalize().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_replaced_counts_and_what_is_broken_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let [one, other] = ["one", "other"].map(|name| folder.path().join(name));
        std::fs::write(&one, "1").unwrap();
        std::fs::write(&other, "2").unwrap();
        let sum = |contents: &[Vec<u8>]| {
            let numbers = contents.iter().map(|part| String::from_utf8_lossy(part).trim().parse::<u32>());
            numbers.sum::<Result<u32, _>>().map_err(|error| error.to_string())
        };
        let kept = Kept::open(&[&one, &other], sum).unwrap();
        let check = |text: Option<&str>, expected: u32| {
            match text {
                Some(text) => std::fs::write(&one, text).unwrap(),
                None => std::fs::remove_file(&one).unwrap(),
            }
            kept.refresh("numbers");
            assert_eq!(*kept.get(), expected, "{text:?}");
        };
        check(Some("1"), 3);
        check(Some("5"), 7);
        check(Some("five"), 7);
        check(None, 7);
        check(Some("5"), 7);
        check(Some("6"), 8);
        let problem = Kept::open(&[&one, &folder.path().join("none")], sum).err().unwrap();
        assert!(problem.contains("none cannot be read"), "{problem}");
    }
}
