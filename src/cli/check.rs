//! `plimsoll check`: everything that can be said about a configuration and its models without starting anything.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::table;
use crate::config::source::{self, Cache, Located, SourceError};
use crate::config::{
    ConfigError, DeviceKind, Entry, Environment, MODEL_FILE, ModelConfig, Models, Repository, ServeOptions,
    ServerConfig, digest, files,
};
use crate::model::DeviceForm;
use crate::server;

/// Check settings and models offline, reporting every problem at once
///
/// Of a model it reads the configuration, the tokenizer and the heads of the weights' files, as `serve` does before it
/// loads them. Exit code: 0 if all can be served (a model that is not needed at start may still have to be pulled), 1 if there is a
/// problem, 2 if the command line makes no sense.
#[derive(clap::Args, Clone, Debug)]
pub struct CheckArgs {
    /// A repository, a model's folder, a model.toml or a server.toml; without it, what `serve` would serve.
    pub path: Option<PathBuf>,

    /// Also compare the files that are here with the SHA-256 in model.toml, which reads all of them.
    #[arg(long)]
    pub digests: bool,

    /// What would be served, and how.
    #[command(flatten)]
    pub options: ServeOptions,
}

/// Runs `plimsoll check`.
///
/// # Errors
/// Only those of writing the report: a problem of the configuration is reported and is the exit code.
pub fn run(args: CheckArgs) -> anyhow::Result<ExitCode> {
    let problems = report(&args, &Environment::of_process(), &mut io::stdout().lock())?;
    Ok(if problems == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes what is found to `out`; the number of models, or of whole configurations, that have a problem.
fn report(args: &CheckArgs, environment: &Environment, out: &mut impl Write) -> io::Result<usize> {
    let (config, repository) = match load(args, environment) {
        Ok(loaded) => loaded,
        Err(error) => {
            writeln!(out, "{error}")?;
            return Ok(1);
        }
    };
    let unusable = server::security(&config).err();
    if let Some(problem) = &unusable {
        writeln!(out, "{problem}")?;
    }
    let cache = Cache::new(&config, environment);
    let verdicts: Vec<_> =
        repository.entries.iter().map(|entry| (entry, judge(entry, &cache, config.device, args.digests))).collect();
    let rows: Vec<_> = verdicts
        .iter()
        .map(|(entry, verdict)| {
            let (word, text) = verdict.describe();
            // A model's line stays one line.
            [word.to_owned(), entry.name.clone(), text.lines().collect::<Vec<_>>().join("; ")]
        })
        .collect();
    table::write(out, &rows)?;
    let problems = verdicts.iter().filter(|(_, verdict)| matches!(verdict, Verdict::Problem(_))).count();
    writeln!(out, "{} models, {problems} with a problem", verdicts.len())?;
    Ok(problems + usize::from(unusable.is_some()))
}

/// The configuration and the models that the arguments mean.
fn load(args: &CheckArgs, environment: &Environment) -> Result<(ServerConfig, Repository), ConfigError> {
    let mut options = args.options.clone();
    let mut model = None;
    if let Some(path) = &args.path {
        let named = |name: &str| path.file_name().is_some_and(|last| last == name);
        if path.is_file() && named(MODEL_FILE) {
            let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
            model = Some(folder.unwrap_or(Path::new(".")));
        } else if path.is_file() {
            options.config = Some(path.clone());
        } else if path.is_dir() && [MODEL_FILE, "config.json"].iter().any(|name| path.join(name).is_file()) {
            model = Some(path);
        } else if path.is_dir() {
            options.settings.models = Some(Models::Folder(path.clone()));
        } else {
            return Err(ConfigError::at(path, "there is neither a file nor a folder"));
        }
    }
    let config = ServerConfig::load(&options, environment)?.config;
    let repository = match model {
        Some(folder) => Repository::of_model(folder),
        None => Repository::load(&config)?,
    };
    Ok((config, repository))
}

/// What can be said about one model.
enum Verdict {
    /// It can be served.
    Fine(String),
    /// It can be served once it is pulled, and nothing waits for it.
    ToPull(String),
    /// It cannot be served.
    Problem(String),
}

impl Verdict {
    fn describe(&self) -> (&'static str, &str) {
        match self {
            Verdict::Fine(text) => ("ok", text),
            Verdict::ToPull(text) => ("pull", text),
            Verdict::Problem(text) => ("PROBLEM", text),
        }
    }
}

fn judge(entry: &Entry, cache: &Cache, device: DeviceKind, digests: bool) -> Verdict {
    let model = match &entry.config {
        Ok(model) => model,
        Err(error) => return Verdict::Problem(error.to_string()),
    };
    let looked = match source::resolve(&model.source, cache) {
        Ok(Located::Embedded(_)) => read(model, cache, device).map(|()| format!("{}, built in", model.dtype)),
        Ok(Located::Folder(folder)) => {
            judge_folder(model, &folder, digests).and_then(|text| read(model, cache, device).map(|()| text))
        }
        Err(error @ SourceError::NotPulled { .. }) if !model.required => return Verdict::ToPull(error.to_string()),
        Err(error) => Err(error.to_string()),
    };
    looked.map_or_else(Verdict::Problem, Verdict::Fine)
}

/// What `serve` reads before it loads anything: the configuration, the tokenizer, and what the heads of the weights' files
/// say of names, shapes and lengths.
fn read(model: &ModelConfig, cache: &Cache, device: DeviceKind) -> Result<(), String> {
    let blueprint = server::blueprint(model, cache)?;
    let suits = |form: &DeviceForm| blueprint.clone().for_device(*form).check_form();
    // Which of them it will be is known to `serve` alone: one that would take the model is enough.
    let best = forms(device).iter().map(suits).reduce(Result::or).unwrap_or(Ok(()));
    best.map_err(|error| error.to_string())
}

/// The kinds of device that this setting may mean.
fn forms(device: DeviceKind) -> &'static [DeviceForm] {
    match device {
        DeviceKind::Cpu => &[DeviceForm::Cpu],
        DeviceKind::Cuda(_) => &[DeviceForm::Cuda],
        DeviceKind::Auto if cfg!(feature = "cuda") => &[DeviceForm::Cuda, DeviceForm::Cpu],
        DeviceKind::Auto => &[DeviceForm::Cpu],
    }
}

fn judge_folder(model: &ModelConfig, folder: &Path, digests: bool) -> Result<String, String> {
    if !files::holds_weights(folder) {
        return Err(format!("{}: there are no weights (.safetensors or .gguf)", folder.display()));
    }
    let absent = model.sha256.keys().find(|file| !folder.join(file).is_file());
    if let Some(file) = absent {
        return Err(format!("{}: {file}, whose SHA-256 is given, is not there", folder.display()));
    }
    if digests {
        digest::verify_all(folder, &model.sha256).map_err(|error| error.to_string())?;
    }
    let checked = match (digests, model.sha256.len()) {
        (true, 0) => ", no SHA-256 is given".to_owned(),
        (true, count) => format!(", {count} digests agree"),
        (false, _) => String::new(),
    };
    Ok(format!("{}, {}{checked}", model.dtype, folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder with a file for each of `files`.
    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("a temporary folder");
        for (path, text) in files {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().expect("inside the folder")).expect("a folder");
            std::fs::write(path, text).expect("a file");
        }
        root
    }

    /// The number of problems at `path` and the report.
    fn check(path: Option<&Path>, digests: bool) -> (usize, String) {
        let options = ServeOptions { config: Some("/dev/null".into()), ..ServeOptions::default() };
        let args = CheckArgs { path: path.map(Path::to_owned), digests, options };
        let mut out = Vec::new();
        let problems = report(&args, &[("HOME", "/no/such/home")].into(), &mut out).expect("a vector takes everything");
        (problems, String::from_utf8(out).expect("text"))
    }

    const MODEL: &str = "schema = 1\nsource.path = \"w\"";
    const DIGEST: &str = "\n[sha256]\n\"model.safetensors\" = ";

    /// A folder with the files of tiny-embed, each as `change` leaves it; `None` takes it away.
    fn model(root: &Path, change: impl Fn(&str, Vec<u8>) -> Option<Vec<u8>>) {
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny-embed");
        std::fs::create_dir_all(root).expect("a folder");
        for name in ["config.json", "tokenizer.json", "model.safetensors"] {
            let content = std::fs::read(from.join(name)).expect("it is there");
            if let Some(content) = change(name, content) {
                std::fs::write(root.join(name), content).expect("a file");
            }
        }
    }

    /// The line of a model in a report.
    #[track_caller]
    fn expect(text: &str, name: &str, word: &str, part: &str) {
        let line = text.lines().find(|line| line.split_whitespace().nth(1) == Some(name)).unwrap_or_default();
        assert!(line.starts_with(word) && line.contains(part), "{name}: {line}");
    }

    #[cfg(feature = "embedded-models")]
    #[test]
    fn a_fresh_installation_has_no_problem() {
        let (problems, text) = check(None, false);
        assert_eq!(problems, 0, "{text}");
        assert!(text.contains("ok    tiny-embed") && text.contains("pull  all-MiniLM-L6-v2"), "{text}");
        assert!(text.contains("run `plimsoll pull all-MiniLM-L6-v2`"), "{text}");
    }

    #[test]
    fn each_model_has_its_line() {
        let weights = Path::new(env!("CARGO_MANIFEST_DIR")).join("models/tiny-embed/model.safetensors");
        let digest = digest::sha256(&weights).expect("it can be read");
        let with_digest = format!("{MODEL}{DIGEST}\"{digest}\"");
        let root = folder(&[
            ("good/model.toml", &with_digest),
            ("changed/model.toml", &with_digest),
            ("absent/model.toml", MODEL),
            ("empty/model.toml", MODEL),
            ("empty/w/config.json", "{}"),
            ("other/model.toml", &with_digest),
            ("other/w/x.safetensors", "abc"),
            ("hub/model.toml", "schema = 1\nsource.hub = \"a/b\""),
            ("later/model.toml", "schema = 1\nload = \"manual\"\nsource.hub = \"a/b\""),
            ("broken/model.toml", "schema = 1\nx = 1"),
        ]);
        model(&root.path().join("good/w"), |_, content| Some(content));
        model(&root.path().join("changed/w"), |name, mut content| {
            // A value of the weights: what the head says is as it was.
            if name == "model.safetensors" {
                *content.last_mut().expect("it is not empty") ^= 1;
            }
            Some(content)
        });
        let (problems, text) = check(Some(root.path()), true);
        let expect = |name, word, part| expect(&text, name, word, part);
        expect("good", "ok", "1 digests agree");
        expect("changed", "PROBLEM", "its SHA-256 is");
        expect("absent", "PROBLEM", "there is no such folder");
        expect("empty", "PROBLEM", "there are no weights");
        expect("other", "PROBLEM", "model.safetensors, whose SHA-256 is given, is not there");
        expect("hub", "PROBLEM", "run `plimsoll pull hf:a/b`");
        expect("later", "pull", "run `plimsoll pull hf:a/b`");
        expect("broken", "PROBLEM", "source is missing");
        expect("broken", "PROBLEM", "unknown key 'x'");
        assert_eq!(problems, 6, "{text}");
        assert!(text.ends_with("8 models, 6 with a problem\n"), "{text}");
        // Without reading the files, the changed one is not noticed.
        assert_eq!(check(Some(root.path()), false).0, 5);
        // One model alone, by its folder and by its file.
        assert_eq!(check(Some(&root.path().join("good")), true).0, 0);
        assert_eq!(check(Some(&root.path().join("broken/model.toml")), true).0, 1);
    }

    #[test]
    fn what_is_in_a_folder_is_looked_at() {
        let root = folder(&[("float8/model.toml", "schema = 1\ndtype = \"fp8\"\nsource.path = \".\"")]);
        type Change<'a> = &'a dyn Fn(&str, Vec<u8>) -> Option<Vec<u8>>;
        let made = |name: &str, change: Change<'_>| model(&root.path().join(name), change);
        let replaced = |content: Vec<u8>, from: &str, to: &str| {
            let text = String::from_utf8(content).expect("text");
            assert!(text.contains(from), "{from} is in {text}");
            text.replace(from, to).into_bytes()
        };
        made("sound", &|_, content| Some(content));
        made("llama", &|name, content| match name {
            "config.json" => Some(replaced(content, "\"bert\"", "\"llama\"")),
            _ => Some(content),
        });
        made("wordless", &|name, content| (name != "tokenizer.json").then_some(content));
        made("cut", &|name, mut content| {
            if name == "model.safetensors" {
                content.truncate(content.len() - 8);
            }
            Some(content)
        });
        made("shallow", &|name, content| match name {
            "config.json" => Some(replaced(content, "\"num_hidden_layers\": 4", "\"num_hidden_layers\": 5")),
            _ => Some(content),
        });
        made("float8", &|_, content| Some(content));
        let (problems, text) = check(Some(root.path()), false);
        let expect = |name, word, part| expect(&text, name, word, part);
        expect("sound", "ok", "f32");
        expect("llama", "PROBLEM", "llama");
        expect("wordless", "PROBLEM", "tokenizer.json");
        expect("cut", "PROBLEM", "model.safetensors");
        expect("shallow", "PROBLEM", "layer.4");
        if cfg!(not(feature = "cuda")) {
            expect("float8", "PROBLEM", "fp8 needs a GPU");
            assert_eq!(problems, 5, "{text}");
        }
    }

    #[test]
    fn a_server_file_is_checked() {
        let root = folder(&[("server.toml", "grpc_prot = 1"), ("x.toml", "models = \"none\"")]);
        let (problems, text) = check(Some(&root.path().join("server.toml")), false);
        assert!(problems == 1 && text.contains("did you mean 'grpc_port'?"), "{text}");
        let (problems, text) = check(Some(&root.path().join("x.toml")), false);
        assert!(problems == 1 && text.contains("/none: no model repository"), "{text}");
        let (problems, text) = check(Some(&root.path().join("no-such")), false);
        assert!(problems == 1 && text.contains("neither a file nor a folder"), "{text}");
    }
}
