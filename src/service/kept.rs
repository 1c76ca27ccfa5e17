//! What files say, kept up to date while a server runs: certificates and tokens are replaced before they end.

use std::fmt;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

/// The largest file that is read: certificates and tokens are a few KiB.
const FILE_MAX: u64 = 1 << 20;

type Parse<T> = Box<dyn Fn(&[Vec<u8>]) -> Result<T, String> + Send + Sync>;

/// How long nothing is said again of files that stay broken.
const SAY_AGAIN: Duration = Duration::from_secs(3600);

/// What some files say together. Each look at them is at the files as a whole: one that is replaced is not followed by its
/// handle, which would miss what takes its place.
pub(crate) struct Kept<T> {
    files: Vec<PathBuf>,
    parse: Parse<T>,
    state: RwLock<State<T>>,
}

struct State<T> {
    value: Arc<T>,
    /// Of the contents that the value is of.
    in_use: [u8; 32],
    /// What was wrong at the last look, and when it was said, if it was. One look alone may be in the middle of a
    /// replacement.
    trouble: Option<(String, Option<Instant>)>,
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
        let state = State { value: Arc::new(value), in_use: digest(&contents), trouble: None };
        Ok(Kept { files, parse: Box::new(parse), state: RwLock::new(state) })
    }

    /// What they say.
    pub(crate) fn get(&self) -> Arc<T> {
        self.state.read().unwrap_or_else(PoisonError::into_inner).value.clone()
    }

    /// Reads them again. What is broken, or half written, changes nothing, and the log says so while it lasts. Blocks.
    pub(crate) fn refresh(&self, what: &'static str) {
        let found = read(&self.files).and_then(|contents| {
            let seen = digest(&contents);
            if self.state.read().unwrap_or_else(PoisonError::into_inner).in_use == seen {
                return Ok(None);
            }
            let value = (self.parse)(&contents).map_err(|problem| format!("{}: {problem}", names(&self.files)))?;
            Ok(Some((seen, value)))
        });
        let mut state = self.state.write().unwrap_or_else(PoisonError::into_inner);
        match found {
            Ok(None) => state.trouble = None,
            Ok(Some((seen, value))) => {
                *state = State { value: Arc::new(value), in_use: seen, trouble: None };
                tracing::info!("{what} are read again: {} changed", names(&self.files));
            }
            Err(problem) => match &mut state.trouble {
                Some((known, said)) if *known == problem => {
                    if said.is_none_or(|said| said.elapsed() >= SAY_AGAIN) {
                        tracing::error!("{what} stay as they were: {problem}");
                        *said = Some(Instant::now());
                    }
                }
                trouble => *trouble = Some((problem, None)),
            },
        }
    }
}

fn read(files: &[PathBuf]) -> Result<Vec<Vec<u8>>, String> {
    files.iter().map(|file| read_one(file).map_err(|problem| format!("{} {problem}", file.display()))).collect()
}

fn read_one(path: &Path) -> Result<Vec<u8>, String> {
    let unreadable = |error: io::Error| format!("cannot be read: {error}");
    // A pipe would give its contents once, and wait for ever then.
    if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
        return Err("cannot be read: it is not a file".to_owned());
    }
    let mut contents = Vec::new();
    let file = std::fs::File::open(path).map_err(unreadable)?;
    file.take(FILE_MAX + 1).read_to_end(&mut contents).map_err(unreadable)?;
    if contents.len() as u64 > FILE_MAX { Err("is larger than 1 MiB".to_owned()) } else { Ok(contents) }
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
        let said = || kept.state.read().unwrap().trouble.as_ref().map(|(_, said)| said.is_some());
        assert_eq!(said(), Some(false), "it may be in the middle of a replacement");
        check(Some("five"), 7);
        assert_eq!(said(), Some(true));
        check(None, 7);
        check(Some("5"), 7);
        assert_eq!(said(), None, "what is in use is there again");
        check(Some("5"), 7);
        check(Some("6"), 8);
        let problem = Kept::open(&[&one, &folder.path().join("none")], sum).err().unwrap();
        assert!(problem.contains("none cannot be read"), "{problem}");
        let problem = Kept::open(&[folder.path()], sum).err().unwrap();
        assert!(problem.contains("not a file"), "{problem}");
        std::fs::write(&one, vec![b'1'; (FILE_MAX + 1) as usize]).unwrap();
        assert!(Kept::open(&[&one], sum).err().unwrap().contains("larger than 1 MiB"));
    }
}
