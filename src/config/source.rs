//! Where a model's files are on this machine. Nothing is fetched here: `plimsoll pull` does that.

use std::fmt;
use std::path::{Component, Path, PathBuf};

use super::model::Source;
use super::repository::{EMBEDDED, Repository};
use super::sources::Environment;
use super::{ServerConfig, check_name, files};

/// The revision of a Hugging Face repository when none is named.
pub const DEFAULT_REVISION: &str = "main";

/// The folders that hold what was pulled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cache {
    /// Wheels and local folders.
    pub root: PathBuf,
    /// Hugging Face repositories, laid out as the hub's own clients do, so that both find what the other has fetched.
    pub hub: PathBuf,
}

impl Cache {
    /// The cache of this configuration: HF_HUB_CACHE or HF_HOME say where hub repositories are, or else the cache folder.
    pub fn new(config: &ServerConfig, environment: &Environment) -> Cache {
        let root = config.cache_dir.clone();
        let hub = match (environment.get("HF_HUB_CACHE"), environment.get("HF_HOME")) {
            (Some(hub), _) => hub.into(),
            (None, Some(home)) => Path::new(home).join("hub"),
            (None, None) => root.join("hub"),
        };
        Cache { root, hub }
    }

    /// Where the folder of a wheel is unpacked to. The digest is part of it: another wheel never answers for this one.
    pub fn wheel_folder(&self, package: &str, version: &str, sha256: &str, folder: &str) -> PathBuf {
        let wheel = format!("{package}-{version}-{}", &sha256[..16]);
        self.root.join("wheels").join(wheel).join(folder.replace('/', "--"))
    }

    /// The folder of a hub repository.
    pub fn hub_folder(&self, id: &str) -> PathBuf {
        self.hub.join(format!("models--{}", id.replace('/', "--")))
    }

    /// The folder of a hub repository's snapshot. Other clients of the hub fetch single files, so that a snapshot only
    /// counts when it holds weights; `plimsoll pull` makes it appear whole.
    pub fn snapshot(&self, id: &str, revision: &str) -> Option<PathBuf> {
        let repository = self.hub_folder(id);
        // A revision is a branch or tag, whose file holds the commit, or a commit itself.
        let commit = std::fs::read_to_string(repository.join("refs").join(revision));
        let commit = commit.map_or_else(|_| revision.to_owned(), |commit| commit.trim().to_owned());
        check_revision(&commit).ok()?;
        let snapshot = repository.join("snapshots").join(commit);
        files::holds_weights(&snapshot).then_some(snapshot)
    }
}

/// Where the local model `name` is copied to.
pub fn local_folder(cache_dir: &Path, name: &str) -> PathBuf {
    cache_dir.join("local").join(name)
}

/// Files on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Located {
    /// In this folder.
    Folder(PathBuf),
    /// Built into the program under this name.
    Embedded(String),
}

/// Why there are no files.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// They have to be fetched first.
    #[error("{what} is not on this machine: run `plimsoll pull {argument}`")]
    NotPulled {
        /// What is missing, for people.
        what: String,
        /// The argument of `plimsoll pull` that fetches it.
        argument: String,
    },
    /// A folder that is not there.
    #[error("{}: there is no such folder", .0.display())]
    NoFolder(PathBuf),
    /// A name that is not built in.
    #[error("'{name}' is not built into this program: {}", match known.as_slice() {
        [] => "it was built without models (feature embedded-models)".to_owned(),
        known => format!("built in are {}", known.join(", ")),
    })]
    NotEmbedded {
        /// The name.
        name: String,
        /// The names that are.
        known: Vec<&'static str>,
    },
}

/// Finds the files of `source`.
///
/// # Errors
/// They are not on this machine; the text says what to do.
pub fn resolve(source: &Source, cache: &Cache) -> Result<Located, SourceError> {
    match source {
        Source::Embedded(name) if EMBEDDED.contains(&name.as_str()) => Ok(Located::Embedded(name.clone())),
        Source::Embedded(name) => Err(SourceError::NotEmbedded { name: name.clone(), known: EMBEDDED.to_vec() }),
        Source::Path(path) if path.is_dir() => Ok(Located::Folder(path.clone())),
        Source::Path(path) => Err(SourceError::NoFolder(path.clone())),
        Source::Hub { id, revision } => match cache.snapshot(id, revision) {
            Some(folder) => Ok(Located::Folder(folder)),
            None => Err(not_pulled(source, format!("{id} at {revision}"))),
        },
        Source::Wheel { package, version, sha256, folder } => {
            match cache.wheel_folder(package, version, sha256, folder) {
                unpacked if unpacked.is_dir() => Ok(Located::Folder(unpacked)),
                _ => Err(not_pulled(source, format!("the wheel {package} {version}"))),
            }
        }
    }
}

fn not_pulled(source: &Source, what: String) -> SourceError {
    SourceError::NotPulled { what, argument: pull_argument(source) }
}

/// The argument with which `plimsoll pull` fetches `source`: a name where the built-in repository has one for it.
pub fn pull_argument(source: &Source) -> String {
    let embedded = Repository::embedded().entries;
    let named = embedded.iter().find(|entry| entry.config.as_ref().is_ok_and(|model| model.source == *source));
    named.map_or_else(|| source.to_string(), |entry| entry.name.clone())
}

/// As `plimsoll pull` understands it.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Embedded(name) => write!(f, "{name}"),
            Source::Path(path) => write!(f, "{}", path.display()),
            Source::Hub { id, revision } if revision == DEFAULT_REVISION => write!(f, "hf:{id}"),
            Source::Hub { id, revision } => write!(f, "hf:{id}@{revision}"),
            Source::Wheel { package, version, sha256, folder } => {
                write!(f, "wheel:{package}=={version}#sha256={sha256},folder={folder}")
            }
        }
    }
}

/// Checks a Hugging Face id.
///
/// # Errors
/// What is allowed.
pub fn check_hub_id(id: &str) -> Result<(), String> {
    match id.split_once('/') {
        Some((organisation, name)) if check_name(organisation).is_ok() && check_name(name).is_ok() => Ok(()),
        None if check_name(id).is_ok() => Ok(()),
        _ => Err(format!("'{id}' is not a Hugging Face id: write ORGANISATION/NAME")),
    }
}

/// Checks a branch, tag or commit: it becomes a path, which must not leave its folder.
///
/// # Errors
/// What is allowed.
pub fn check_revision(revision: &str) -> Result<(), String> {
    match revision.split('/').all(|part| check_name(part).is_ok()) {
        true => Ok(()),
        false => Err(format!("'{revision}' is not a revision: write a branch, a tag or a commit")),
    }
}

/// Checks a SHA-256 and gives it in lower case.
///
/// # Errors
/// What is allowed.
pub fn check_sha256(text: &str) -> Result<String, String> {
    match text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        true => Ok(text.to_ascii_lowercase()),
        false => Err(format!("'{text}' is not a SHA-256: write its 64 hexadecimal digits")),
    }
}

/// Checks that a path written in a file stays inside the folder of that file, and gives it without a last `/`.
///
/// # Errors
/// What is allowed.
pub fn check_inside(path: &str) -> Result<String, String> {
    let stays = Path::new(path).components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
    match stays && !path.is_empty() && !path.contains('\\') {
        true => Ok(path.trim_end_matches('/').to_owned()),
        false => Err(format!(
            "'{path}' leaves the folder: write a relative path without '..' (a model elsewhere is served with --model PATH)"
        )),
    }
}

/// Splits `PACKAGE==VERSION`.
///
/// # Errors
/// What is allowed. Neither part can be taken for an option of pip, or for a path.
pub fn split_requirement(text: &str) -> Result<(String, String), String> {
    let version_is_plain = |version: &str| {
        let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '+' | '!' | '_' | '-');
        version.starts_with(|c: char| c.is_ascii_digit()) && version.chars().all(allowed) && !version.contains("..")
    };
    match text.split_once("==") {
        Some((package, version)) if check_name(package).is_ok() && version_is_plain(version) => {
            Ok((package.to_owned(), version.to_owned()))
        }
        _ => Err(format!("'{text}' is not an exact version of a package: write PACKAGE==VERSION")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(root: &Path) -> Cache {
        Cache { root: root.join("cache"), hub: root.join("hub") }
    }

    fn hub(revision: &str) -> Source {
        Source::Hub { id: "some-org/some-model".into(), revision: revision.into() }
    }

    #[test]
    fn a_missing_source_names_the_command_that_fetches_it() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let check = |source: &Source, command: &str| {
            let error = resolve(source, &cache(root.path())).expect_err("nothing was pulled").to_string();
            assert!(error.contains(command), "{error}");
        };
        check(&hub("main"), "`plimsoll pull hf:some-org/some-model`");
        check(&hub("v1"), "`plimsoll pull hf:some-org/some-model@v1`");
        let sha256 = "ab".repeat(32);
        let wheel = Source::Wheel {
            package: "pkg".into(),
            version: "1.0".into(),
            sha256: sha256.clone(),
            folder: "pkg/model".into(),
        };
        if cfg!(feature = "embedded-models") {
            let entry = Repository::embedded().find("all-MiniLM-L6-v2").cloned().expect("built in");
            check(&entry.config.expect("valid").source, "`plimsoll pull all-MiniLM-L6-v2`");
        }
        check(&wheel, &format!("`plimsoll pull wheel:pkg==1.0#sha256={sha256},folder=pkg/model`"));
    }

    #[test]
    fn a_branch_leads_to_its_commit_and_a_commit_to_itself() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let repository = root.path().join("hub/models--some-org--some-model");
        let snapshot = repository.join("snapshots/0123abcd");
        std::fs::create_dir_all(&snapshot).expect("a folder");
        std::fs::write(snapshot.join("tokenizer.json"), "{}").expect("a file");
        assert!(resolve(&hub("0123abcd"), &cache(root.path())).is_err(), "a snapshot without weights");
        std::fs::write(snapshot.join("model.safetensors"), "").expect("a file");
        std::fs::create_dir_all(repository.join("refs")).expect("a folder");
        std::fs::write(repository.join("refs/main"), "0123abcd\n").expect("a file");
        let located = Located::Folder(snapshot);
        assert_eq!(resolve(&hub("main"), &cache(root.path())), Ok(located.clone()));
        assert_eq!(resolve(&hub("0123abcd"), &cache(root.path())), Ok(located));
        // A reference that leads out of the cache is as good as none.
        std::fs::write(repository.join("refs/evil"), "../../..").expect("a file");
        assert!(resolve(&hub("evil"), &cache(root.path())).is_err());
    }

    #[test]
    fn environment_places_the_hub_cache() {
        let check = |environment: Environment, hub: &str| {
            let options = super::super::ServeOptions::default();
            let config = ServerConfig::load(&options, &environment).expect("valid").config;
            assert_eq!(Cache::new(&config, &environment).hub, Path::new(hub));
        };
        check([("HOME", "/h")].into(), "/h/.cache/plimsoll/hub");
        check([("HOME", "/h"), ("HF_HOME", "/hf")].into(), "/hf/hub");
        check([("HOME", "/h"), ("HF_HOME", "/hf"), ("HF_HUB_CACHE", "/c")].into(), "/c");
    }

    #[test]
    fn parts_of_sources_cannot_be_options_or_paths() {
        assert!(split_requirement("pkg==1.0.post1+cpu").is_ok());
        for bad in ["pkg", "pkg>=1.0", "-r==1.0", "pkg==", "pkg==--x", "../pkg==1", "pkg==1/../2", "pkg==1 --x"] {
            assert!(split_requirement(bad).is_err(), "{bad}");
        }
        for bad in ["../x", "a/b/c", "a/..", "", "/a", "a/", "-a/b"] {
            assert!(check_hub_id(bad).is_err(), "{bad}");
        }
        for bad in ["..", "a/../b", "", "/x"] {
            assert!(check_revision(bad).is_err(), "{bad}");
        }
        assert_eq!(check_sha256(&"AB".repeat(32)), Ok("ab".repeat(32)));
        assert!(check_sha256("ab").is_err());
    }
}
