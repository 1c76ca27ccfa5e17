//! SHA-256 of files.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

/// A file is not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum DigestError {
    /// Its content differs.
    #[error("{}: its SHA-256 is {found}, it should be {expected}", path.display())]
    Mismatch {
        /// The file.
        path: PathBuf,
        /// What was computed, in lower-case hexadecimal.
        found: String,
        /// What was asked for.
        expected: String,
    },
    /// It cannot be read.
    #[error("{}: {error}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

/// The SHA-256 of a file in lower-case hexadecimal.
///
/// # Errors
/// The file cannot be read.
pub fn sha256(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hasher = Sha256::new();
    // Large enough that the system calls cost nothing beside the hashing.
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => break,
            count => hasher.update(&buffer[..count]),
        }
    }
    let mut text = String::with_capacity(64);
    for byte in hasher.finalize() {
        write!(text, "{byte:02x}").expect("writing to a string does not fail");
    }
    Ok(text)
}

/// Checks that `path` has the SHA-256 `expected`, in lower-case hexadecimal.
///
/// # Errors
/// It has another one or cannot be read.
pub fn verify(path: &Path, expected: &str) -> Result<(), DigestError> {
    match sha256(path) {
        Ok(found) if found == expected => Ok(()),
        Ok(found) => Err(DigestError::Mismatch { path: path.to_owned(), found, expected: expected.to_owned() }),
        Err(error) => Err(DigestError::Unreadable { path: path.to_owned(), error }),
    }
}

/// Checks files of `folder` by name.
///
/// # Errors
/// The first, by name, that differs or cannot be read.
pub fn verify_all(folder: &Path, digests: &BTreeMap<String, String>) -> Result<(), DigestError> {
    digests.iter().try_for_each(|(file, expected)| verify(&folder.join(file), expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_what_it_should_be_or_named() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("abc"), "abc").expect("a file");
        // The digest of "abc" in FIPS 180-4.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad".to_owned();
        let check = |file: &str, digest: &str| {
            verify_all(folder.path(), &[(file.to_owned(), digest.to_owned())].into()).map_err(|error| error.to_string())
        };
        assert_eq!(check("abc", &abc), Ok(()));
        let error = check("abc", &"0".repeat(64)).expect_err("another digest");
        assert!(error.contains(&abc) && error.contains("/abc"), "{error}");
        assert!(check("absent", &abc).is_err_and(|error| error.contains("/absent")));
    }
}
