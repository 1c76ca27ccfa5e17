//! The models that a server knows: those of a repository folder or of the program itself, and those named one by one.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use super::argument::{ModelArgument, check_name};
use super::choices::Models;
use super::error::{ConfigError, Place, suggestion};
use super::model::{ModelConfig, Source};
use super::{LoadPolicy, ServerConfig, document, model_file, source};

/// Names of the models whose files are built into the program.
#[cfg(feature = "embedded-models")]
pub const EMBEDDED: &[&str] = &["tiny-embed", "tiny-rerank", "tiny-section"];
/// Names of the models whose files are built into the program.
#[cfg(not(feature = "embedded-models"))]
pub const EMBEDDED: &[&str] = &[];

/// The `model.toml` files that are built in: those of [`EMBEDDED`], and one that is only a `plimsoll pull` away.
#[cfg(feature = "embedded-models")]
const EMBEDDED_FILES: &[(&str, &str)] = &[
    ("tiny-embed", include_str!("../../models/tiny-embed/model.toml")),
    ("tiny-rerank", include_str!("../../models/tiny-rerank/model.toml")),
    ("tiny-section", include_str!("../../models/tiny-section/model.toml")),
    ("all-MiniLM-L6-v2", include_str!("../../models/all-MiniLM-L6-v2/model.toml")),
];
#[cfg(not(feature = "embedded-models"))]
const EMBEDDED_FILES: &[(&str, &str)] = &[];

/// One model that the server knows by name, whether or not its configuration makes sense.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Whether the server is not ready without it. A broken file is taken at its word if it says so, and otherwise
    /// does not keep the other models from being served.
    pub required: bool,
    /// Its configuration, or everything that is wrong with it.
    pub config: Result<ModelConfig, ConfigError>,
    /// Where the values were written, by their key in `model.toml`; the others are defaults.
    pub places: BTreeMap<String, Place>,
}

impl Entry {
    fn new(config: ModelConfig, places: BTreeMap<String, Place>) -> Entry {
        Entry { name: config.name.clone(), required: config.required, config: Ok(config), places }
    }

    fn from_file(name: &str, path: &Path, text: &str) -> Entry {
        match model_file::read(name, path, text) {
            Ok(written) => Entry::new(written.config, written.places),
            Err(error) => Entry { required: model_file::says_required(text), ..Entry::broken(name, error) },
        }
    }

    /// The model whose files are in `folder`, about which nothing else is said.
    fn plain(name: &str, source: Source, place: Place) -> Entry {
        Entry::new(ModelConfig::new(name, source), [("source".to_owned(), place)].into())
    }

    fn broken(name: &str, error: ConfigError) -> Entry {
        Entry { name: name.to_owned(), required: false, config: Err(error), places: BTreeMap::new() }
    }
}

/// The models that the server knows, their names all different, in a fixed order: the repository's by name, then those
/// named one by one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Repository {
    /// The models.
    pub entries: Vec<Entry>,
}

impl Repository {
    /// Everything that `config` says shall be served.
    ///
    /// # Errors
    /// The repository folder cannot be read, a `--model` leads nowhere, or there is nothing to serve. A model whose
    /// own configuration is broken is an [`Entry`] instead.
    pub fn load(config: &ServerConfig) -> Result<Repository, ConfigError> {
        let known = Repository::known(config)?;
        let mut repository = match &config.models {
            Models::Auto if !config.model.is_empty() => Repository::default(),
            _ => known.clone(),
        };
        for argument in &config.model {
            let place = Place::Flag(format!("--model {argument}"));
            let entry = known.interpret(argument, &place, &config.cache_dir)?;
            repository.add(argument, entry, place)?;
        }
        if repository.entries.is_empty() {
            let what = match &config.models {
                Models::Folder(folder) => format!("the repository {} holds no model", folder.display()),
                _ => "this program has no models built in".to_owned(),
            };
            let message = format!("nothing to serve: {what}; give --model ID-OR-PATH or another --models FOLDER");
            return Err(ConfigError::new(Place::Flag("--models".into()), message));
        }
        Ok(repository)
    }

    /// The models that can be named, whether or not they shall be served.
    ///
    /// # Errors
    /// The repository folder cannot be read.
    pub fn known(config: &ServerConfig) -> Result<Repository, ConfigError> {
        match &config.models {
            Models::Auto | Models::Embedded => Ok(Repository::embedded()),
            Models::Folder(folder) => Repository::from_folder(folder),
        }
    }

    /// The repository that is built into the program.
    pub fn embedded() -> Repository {
        let entry = |(name, text): &(&str, &str)| Entry::from_file(name, &embedded_path(name), text);
        Repository { entries: EMBEDDED_FILES.iter().map(entry).collect() }
    }

    /// The repository in `folder`: a folder for each model, named as the model, with a `model.toml`, or else with the
    /// files of a Hugging Face model, to be served as they are. Files beside them, names with a leading dot and what a
    /// file system keeps for itself (`lost+found`) are not looked at.
    ///
    /// # Errors
    /// The folder itself cannot be read.
    pub fn from_folder(folder: &Path) -> Result<Repository, ConfigError> {
        let unreadable = |error: std::io::Error| ConfigError::at(folder, format!("no model repository: {error}"));
        let mut paths = Vec::new();
        for item in std::fs::read_dir(folder).map_err(unreadable)? {
            let path = item.map_err(unreadable)?.path();
            let nobodys = |name: &OsStr| name.as_encoded_bytes().starts_with(b".") || name == "lost+found";
            if path.is_dir() && !path.file_name().is_some_and(nobodys) {
                paths.push(path);
            }
        }
        paths.sort();
        Ok(Repository { entries: paths.iter().map(|path| read_folder(path, &plain_name(path))).collect() })
    }

    /// The one model in `folder`, as a repository beside it would have it.
    pub fn of_model(folder: &Path) -> Repository {
        Repository { entries: vec![read_folder(folder, &plain_name(folder))] }
    }

    /// The entry called `name`.
    pub fn find(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }

    /// What `argument` means: a folder, else a name of this repository, of the embedded one or of a folder that was
    /// pulled into `cache_dir`, else a Hugging Face id. `place` is where it was written.
    ///
    /// # Errors
    /// It is none of them, or the model that it names is broken.
    pub fn interpret(&self, argument: &ModelArgument, place: &Place, cache_dir: &Path) -> Result<Entry, ConfigError> {
        let target = &argument.target;
        let refuse = |message: String| ConfigError::new(place.clone(), message);
        let path = Path::new(target);
        let pulled = source::local_folder(cache_dir, target);
        let embedded = Repository::embedded();
        let hub = |id: &str| hub_model(id, place.clone()).map_err(refuse);
        let mut entry = if let Some(id) = target.strip_prefix("hf:") {
            hub(id)?
        } else if path.is_dir() {
            read_folder(path, &plain_name(path))
        } else if let Some(entry) = self.find(target).or_else(|| embedded.find(target)) {
            entry.clone()
        } else if check_name(target).is_ok() && pulled.is_dir() {
            read_folder(&pulled, target)
        } else if target.contains('/') && !target.starts_with(['/', '.', '~']) {
            hub(target)?
        } else if target.contains('/') {
            return Err(refuse(format!("there is no folder {target}")));
        } else {
            let known: BTreeSet<_> = self.entries.iter().chain(&embedded.entries).map(|entry| &*entry.name).collect();
            let known = suggestion(target, known.iter().copied());
            return Err(refuse(format!(
                "'{target}' is no folder, no model of the repository and no Hugging Face id (ORGANISATION/NAME){known}"
            )));
        };
        let model = entry.config.as_mut().map_err(|error| error.clone())?;
        if let Some(dtype) = argument.dtype {
            model.dtype = dtype;
            entry.places.insert("dtype".into(), place.clone());
        }
        if let Some(name) = &argument.name {
            entry.name = name.clone();
        }
        // Who names a model wants it served, whatever the repository says about when.
        model.load = LoadPolicy::Startup;
        model.required = true;
        entry.required = true;
        entry.places.extend([("load".into(), place.clone()), ("required".into(), place.clone())]);
        check_name(&entry.name).map_err(|message| refuse(format!("{message}; give one with NAME={target}")))?;
        model.name = entry.name.clone();
        Ok(entry)
    }

    /// Adds a model named on the command line. A name that is taken becomes `name-dtype`, unless it was given.
    fn add(&mut self, argument: &ModelArgument, mut entry: Entry, place: Place) -> Result<(), ConfigError> {
        let taken = self.find(&entry.name).is_some();
        if let (true, None, Ok(model)) = (taken, &argument.name, &mut entry.config) {
            model.name = format!("{}-{}", model.name, model.dtype);
            entry.name = model.name.clone();
        }
        if self.find(&entry.name).is_some() {
            let message =
                format!("another model is called '{}' already: give a name with NAME={}", entry.name, argument.target);
            return Err(ConfigError::new(place, message));
        }
        self.entries.push(entry);
        Ok(())
    }
}

/// The name of the file that configures a model.
pub const MODEL_FILE: &str = "model.toml";

/// Where an embedded file was when the program was built.
fn embedded_path(name: &str) -> PathBuf {
    Path::new("models").join(name).join(MODEL_FILE)
}

/// The model called `name` in `folder`.
fn read_folder(folder: &Path, name: &str) -> Entry {
    if let Err(message) = check_name(name) {
        return Entry::broken(name, ConfigError::at(folder, message));
    }
    let path = folder.join(MODEL_FILE);
    match document::read_text(&path) {
        Ok(text) => Entry::from_file(name, &path, &text),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => match folder.join("config.json").is_file() {
            true => Entry::plain(name, Source::Path(folder.to_owned()), Place::Path(folder.to_owned())),
            false => {
                let message = format!("neither {MODEL_FILE} nor a config.json is here: this is no model");
                Entry::broken(name, ConfigError::at(folder, message))
            }
        },
        Err(error) => Entry::broken(name, ConfigError::at(&path, format!("cannot be read: {error}"))),
    }
}

/// The last part of a path, after following `.` and `..`.
fn plain_name(path: &Path) -> String {
    let real = path.canonicalize();
    let named = path.file_name().or(real.as_ref().ok().and_then(|real| real.file_name()));
    named.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The model of a Hugging Face id, `ORGANISATION/NAME[@REVISION]`.
fn hub_model(text: &str, place: Place) -> Result<Entry, String> {
    let (id, revision) = text.split_once('@').unwrap_or((text, source::DEFAULT_REVISION));
    source::check_hub_id(id)?;
    source::check_revision(revision)?;
    let name = id.rsplit('/').next().unwrap_or(id);
    Ok(Entry::plain(name, Source::Hub { id: id.to_owned(), revision: revision.to_owned() }, place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Environment, ServeOptions};

    /// The configuration with `--models models` and a `--model` for each of `arguments`.
    fn config(models: Option<Models>, arguments: &[&str]) -> ServerConfig {
        let mut options = ServeOptions { config: Some("/dev/null".into()), ..ServeOptions::default() };
        options.settings.models = models;
        options.model = arguments.iter().map(|text| text.parse().expect("a valid argument")).collect();
        let environment: Environment = [("HOME", "/home/x")].into();
        ServerConfig::load(&options, &environment).expect("valid").config
    }

    fn names(repository: &Repository) -> Vec<&str> {
        repository.entries.iter().map(|entry| entry.name.as_str()).collect()
    }

    /// A repository folder with a file for each of `files`.
    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a temporary folder");
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("inside the folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        root
    }

    #[cfg(feature = "embedded-models")]
    #[test]
    fn the_default_repository_is_valid_and_ready_without_a_pull() {
        let repository = Repository::load(&config(None, &[])).expect("valid");
        assert_eq!(names(&repository), ["tiny-embed", "tiny-rerank", "tiny-section", "all-MiniLM-L6-v2"]);
        for entry in &repository.entries {
            let model = entry.config.as_ref().expect("valid");
            let embedded = matches!(&model.source, Source::Embedded(name) if EMBEDDED.contains(&name.as_str()));
            assert_eq!(embedded, entry.required, "{}: required is exactly what is built in", entry.name);
        }
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
        for entry in Repository::from_folder(&folder).expect("readable").entries {
            assert_eq!(repository.find(&entry.name).map(|found| &found.config), Some(&entry.config), "{}", entry.name);
        }
    }

    #[test]
    fn a_broken_model_does_not_hide_the_others() {
        let good = "schema = 1\nsource.path = \".\"";
        let root = folder(&[
            ("good/model.toml", good),
            ("broken/model.toml", "schema = 9"),
            ("needed/model.toml", "required = true\ndtype = 4"),
            ("plain/config.json", "{}"),
            ("empty/notes.txt", ""),
            ("a b/model.toml", good),
            (".hidden/model.toml", good),
            ("lost+found/#12/config.json", "{}"),
            ("file.txt", ""),
        ]);
        let repository = Repository::from_folder(root.path()).expect("readable");
        let seen: Vec<_> = repository
            .entries
            .iter()
            .map(|entry| (entry.name.as_str(), entry.config.is_ok(), entry.required))
            .collect();
        let expected = [
            ("a b", false, false),
            ("broken", false, false),
            ("empty", false, false),
            ("good", true, true),
            ("needed", false, true),
            ("plain", true, true),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_folder_is_served_as_it_is() {
        let root = folder(&[("my-model/config.json", "{}")]);
        let path = root.path().join("my-model");
        let argument = format!("{}:f16", path.display());
        let repository = Repository::load(&config(None, &[&argument])).expect("valid");
        let mut expected = ModelConfig::new("my-model", Source::Path(path));
        expected.dtype = crate::config::Dtype::F16;
        assert_eq!(repository.entries.len(), 1);
        assert_eq!(repository.entries[0].config, Ok(expected));
        assert!(repository.entries[0].places.contains_key("dtype"), "the flag is the dtype's origin");
    }

    #[test]
    fn a_pulled_folder_is_served_by_name() {
        let root = folder(&[("local/my-model/config.json", "{}")]);
        let mut config = config(None, &["my-model"]);
        config.cache_dir = root.path().to_owned();
        let repository = Repository::load(&config).expect("valid");
        let source = repository.entries[0].config.as_ref().map(|model| model.source.clone());
        assert_eq!(source, Ok(Source::Path(root.path().join("local/my-model"))));
    }

    #[cfg(feature = "embedded-models")]
    #[test]
    fn the_same_model_twice_has_two_names() {
        let load = |arguments: &[&str]| Repository::load(&config(None, arguments));
        let names_of = |arguments: &[&str]| names(&load(arguments).expect("valid")).join(" ");
        assert_eq!(names_of(&["tiny-embed", "tiny-embed:int8"]), "tiny-embed tiny-embed-int8");
        assert_eq!(names_of(&["a=tiny-embed", "b=tiny-embed"]), "a b");
        assert_eq!(names_of(&["org/tiny-embed", "hf:solo@v1"]), "tiny-embed solo");
        let error = load(&["tiny-embed", "tiny-embed", "tiny-embed"]).expect_err("the third has no name left");
        assert!(error.to_string().contains("called 'tiny-embed-f32' already"), "{error}");
        let error = load(&["a=tiny-embed", "a=tiny-rerank"]).expect_err("the name is taken");
        assert!(error.to_string().contains("called 'a' already"), "{error}");
    }

    #[cfg(feature = "embedded-models")]
    #[test]
    fn a_named_model_is_wanted_at_start() {
        let repository = Repository::load(&config(None, &["all-MiniLM-L6-v2"])).expect("valid");
        let model = repository.entries[0].config.as_ref().expect("valid");
        assert_eq!((model.load, model.required), (LoadPolicy::Startup, true));
    }

    #[test]
    fn what_leads_nowhere_is_refused() {
        let check = |models: Option<Models>, arguments: &[&str], part: &str| {
            let error = Repository::load(&config(models, arguments)).expect_err("must be refused").to_string();
            assert!(error.contains(part), "{error}");
        };
        check(Some(Models::Folder("/no/such".into())), &[], "/no/such: no model repository");
        check(None, &["./no-such"], "there is no folder ./no-such");
        check(None, &["a/b/c"], "not a Hugging Face id");
        check(None, &["hf:../x"], "not a Hugging Face id");
        if cfg!(feature = "embedded-models") {
            check(None, &["tiny-embd"], "did you mean 'tiny-embed'?");
        } else {
            check(None, &[], "nothing to serve");
        }
        let empty = folder(&[]);
        check(Some(Models::Folder(empty.path().to_owned())), &[], "holds no model");
    }
}
