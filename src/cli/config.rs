//! `plimsoll config`: the values in force and where each came from.

use std::io::{self, Write};
use std::process::ExitCode;

use serde_json::{Value, json};

use super::table;
use crate::config::{Effective, Entry, Environment, Repository, SETTINGS, ServeOptions, ServerConfig};

/// Print the settings and models in force and where each value came from
///
/// Takes the options of `serve` and starts nothing. Exit code: 0, or 1 if the configuration cannot be used.
#[derive(clap::Args, Clone, Debug)]
pub struct ConfigArgs {
    /// Print one JSON object, with the meaning and the cost of each setting.
    #[arg(long)]
    pub json: bool,

    /// What would be served, and how.
    #[command(flatten)]
    pub options: ServeOptions,
}

/// Runs `plimsoll config`.
///
/// # Errors
/// The configuration cannot be used. A broken model is part of the answer instead.
pub fn run(args: ConfigArgs) -> anyhow::Result<ExitCode> {
    let effective = ServerConfig::load(&args.options, &Environment::of_process())?;
    let repository = Repository::load(&effective.config)?;
    let mut out = io::stdout().lock();
    match args.json {
        true => writeln!(out, "{:#}", as_json(&effective, &repository))?,
        false => write_tables(&mut out, &effective, &repository)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn write_tables(out: &mut impl Write, effective: &Effective, repository: &Repository) -> io::Result<()> {
    let settings = effective.settings.iter();
    let rows: Vec<_> =
        settings.map(|shown| [shown.name.to_owned(), shown.value.clone(), shown.origin.to_string()]).collect();
    table::write(out, &rows)?;
    for entry in &repository.entries {
        writeln!(out, "\n[{}]", entry.name)?;
        match &entry.config {
            Ok(_) => table::write(out, &model_rows(entry))?,
            Err(error) => writeln!(out, "cannot be served:\n{error}")?,
        }
    }
    Ok(())
}

/// Key, value and origin of each value of a model.
fn model_rows(entry: &Entry) -> Vec<[String; 3]> {
    let texts = entry.config.iter().flat_map(|model| model.texts());
    let origin = |key: &str| entry.places.get(key).map_or_else(|| "default".to_owned(), ToString::to_string);
    texts.map(|(key, value)| [key.to_owned(), value, origin(key)]).collect()
}

fn as_json(effective: &Effective, repository: &Repository) -> Value {
    let settings = effective.settings.iter().map(|shown| {
        let setting = SETTINGS.iter().find(|setting| setting.name == shown.name);
        json!({
            "name": shown.name,
            "value": shown.value,
            "origin": shown.origin.to_string(),
            "default": setting.map(|setting| setting.default),
            "meaning": setting.map(|setting| setting.doc),
            "cost": setting.map(|setting| setting.cost),
        })
    });
    let models = repository.entries.iter().map(|entry| match &entry.config {
        Ok(_) => {
            let values = model_rows(entry);
            let values =
                values.iter().map(|[key, value, origin]| json!({"name": key, "value": value, "origin": origin}));
            json!({"name": entry.name, "values": values.collect::<Vec<_>>()})
        }
        Err(error) => {
            let problems = error.problems().iter().map(ToString::to_string);
            json!({"name": entry.name, "problems": problems.collect::<Vec<_>>()})
        }
    });
    json!({"settings": settings.collect::<Vec<_>>(), "models": models.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A configuration with one setting from the environment, one broken model and one valid one.
    fn example(folder: &std::path::Path) -> (Effective, Repository) {
        for (name, text) in [("good", "schema = 1\ndtype = \"f16\"\nsource.path = \".\""), ("bad", "schema = 1\nx = 2")]
        {
            std::fs::create_dir(folder.join(name)).expect("a folder");
            std::fs::write(folder.join(name).join("model.toml"), text).expect("a file");
        }
        let environment = [("HOME", "/h"), ("PLIMSOLL_GRPC_PORT", "9000")].into();
        let mut options = ServeOptions { config: Some("/dev/null".into()), ..ServeOptions::default() };
        options.settings.models = Some(crate::config::Models::Folder(folder.to_owned()));
        let effective = ServerConfig::load(&options, &environment).expect("valid");
        let repository = Repository::load(&effective.config).expect("valid");
        (effective, repository)
    }

    #[test]
    fn each_value_stands_beside_its_origin() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (effective, repository) = example(folder.path());
        let mut out = Vec::new();
        write_tables(&mut out, &effective, &repository).expect("a vector takes everything");
        let text = String::from_utf8(out).expect("text");
        let line = |key: &str| {
            let line = text.lines().find(|line| line.starts_with(key)).unwrap_or_default();
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("grpc_port"), "grpc_port 9000 environment");
        assert_eq!(line("metrics_port"), "metrics_port 8002 default");
        assert_eq!(line("dtype"), format!("dtype f16 {}/good/model.toml:2:9", folder.path().display()));
        assert_eq!(line("share"), "share 1 default");
        assert!(text.contains("[bad]\ncannot be served:\n"), "{text}");
        assert!(text.contains("unknown key 'x'"), "{text}");
    }

    #[test]
    fn json_says_the_same() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (effective, repository) = example(folder.path());
        let json = as_json(&effective, &repository);
        let port = &json["settings"][1];
        assert_eq!(
            (&port["name"], &port["value"], &port["origin"]),
            (&json!("grpc_port"), &json!("9000"), &json!("environment"))
        );
        assert_eq!(json["settings"].as_array().map(Vec::len), Some(SETTINGS.len()));
        assert_eq!(json["models"][0]["name"], "bad");
        assert!(json["models"][0]["problems"][0].as_str().is_some_and(|text| text.contains("source is missing")));
        assert_eq!(
            json["models"][1]["values"][3],
            json!({"name": "dtype", "value": "f16", "origin": format!("{}/good/model.toml:2:9", folder.path().display())})
        );
    }
}
