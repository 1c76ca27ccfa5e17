//! The server's configuration from flags, environment, `server.toml` and defaults together.

use std::path::PathBuf;

use super::argument::ModelArgument;
use super::device_memory::MemoryBudget;
use super::error::{ConfigError, Problem};
use super::settings::{SETTINGS, ServerConfig, SettingFlags};
use super::sources::{Environment, File, Origin, Sources};
use super::written::Written;
use crate::units::Bytes;

/// A setting's value in force and where it came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EffectiveSetting {
    /// The setting's name.
    pub name: &'static str,
    /// The value as it would be written.
    pub value: String,
    /// Where it was written.
    pub origin: Origin,
}

/// The configuration in force.
#[derive(Clone, Debug)]
pub struct Effective {
    /// The values.
    pub config: ServerConfig,
    /// The same values as text, each with its origin, in the order of [`SETTINGS`], then one line for each `model`.
    pub settings: Vec<EffectiveSetting>,
}

/// What decides how and what is served: the options of `serve`, `check`, `config` and `plan`.
///
/// Precedence: flags, then `PLIMSOLL_...` environment variables, then `server.toml`, then the defaults.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct ServeOptions {
    /// Configuration file; without it, server.toml in the working directory is read if there is one.
    ///
    /// Every option below is a key of this file in snake_case, and an environment variable PLIMSOLL_UPPER_SNAKE.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Model to serve: a folder, a Hugging Face id that was pulled, or a name of the repository; may be repeated.
    ///
    /// NAME=ID-OR-PATH:DTYPE, of which NAME= and :DTYPE may be left out, such as ./my-model, some-org/some-model:int8 or small=tiny-embed:int8.
    #[arg(long, value_name = "MODEL", value_parser = str::parse::<ModelArgument>)]
    pub model: Vec<ModelArgument>,

    /// The settings.
    #[command(flatten)]
    pub settings: SettingFlags,
}

impl ServerConfig {
    /// The configuration in force, from all four places.
    ///
    /// # Errors
    /// Every problem of the file, the environment and the flags, and of the values with one another.
    pub fn load(options: &ServeOptions, environment: &Environment) -> Result<Effective, ConfigError> {
        let mut problems = Vec::new();
        environment.note_slips(&mut problems);
        let file = File::open(options.config.as_deref(), environment)?;
        let effective = file.read(|document, section| {
            let mut sources = Sources { environment, document, section, problems: &mut problems, origins: vec![] };
            let (model, model_origin) = sources.models(&options.model);
            let mut config = ServerConfig::from_sources(&mut sources, &options.settings, model);
            sources.section.finish();
            let origins = sources.origins;
            config.place_folders(&origins, environment, &mut problems);
            config.cross_check(&origins, &mut problems);
            let texts = config.texts().into_iter();
            let mut settings: Vec<_> = SETTINGS
                .iter()
                .zip(texts.zip(origins))
                .map(|(setting, (value, origin))| EffectiveSetting { name: setting.name, value, origin })
                .collect();
            settings.extend(config.model.iter().map(|argument| EffectiveSetting {
                name: "model",
                value: argument.to_string(),
                origin: model_origin.clone(),
            }));
            Effective { config, settings }
        });
        // The file's problems first, then those of the rest: one report.
        match effective {
            Ok(effective) => ConfigError::unless_empty(problems, effective),
            Err(error) => Err(error.and(problems)),
        }
    }

    /// Puts the real folders in place of the two defaults that depend on the environment and on one another.
    fn place_folders(&mut self, origins: &[Origin], environment: &Environment, problems: &mut Vec<Problem>) {
        if *origin_of("cache_dir", origins) == Origin::Default {
            match environment.cache_home() {
                Some(home) => self.cache_dir = home.join("plimsoll"),
                None => problems.push(Problem {
                    place: Origin::Default.place("cache_dir"),
                    message: "neither HOME nor XDG_CACHE_HOME is set: say where the cache may be".into(),
                }),
            }
        }
        if *origin_of("profile_dir", origins) == Origin::Default {
            self.profile_dir = self.cache_dir.join("profiles");
        }
    }

    fn cross_check(&self, origins: &[Origin], problems: &mut Vec<Problem>) {
        let mut refuse = |name: &'static str, message: String| {
            problems.push(Problem { place: origin_of(name, origins).place(name), message });
        };
        let ports = [("grpc_port", self.grpc_port), ("http_port", self.http_port), ("metrics_port", self.metrics_port)];
        for (index, (name, port)) in ports.iter().enumerate() {
            let same = ports[..index].iter().find(|(_, other)| other == port && *port != 0);
            if let Some((other, _)) = same {
                refuse(name, format!("{name} and {other} are both {port}: they must differ"));
            }
        }
        if let Some(admin) = self.admin_address.get() {
            let clash = ports.iter().find(|(_, port)| *port == admin.port() && *port != 0);
            if let Some((other, _)) = clash.filter(|_| admin.ip() == self.address || self.address.is_unspecified()) {
                refuse("admin_address", format!("admin_address {admin} has the port of {other}: they must differ"));
            }
        }
        let files = [&self.tls_cert, &self.tls_key, &self.tls_client_ca].map(|file| file.path().is_some());
        match files {
            [true, false, _] => {
                refuse("tls_cert", "tls_cert needs tls_key: name the file of the private key".to_owned())
            }
            [false, true, _] => {
                refuse("tls_key", "tls_key needs tls_cert: name the file of the certificate".to_owned())
            }
            [false, false, true] => refuse(
                "tls_client_ca",
                "tls_client_ca needs tls_cert and tls_key: clients show certificates only over TLS".to_owned(),
            ),
            _ => {}
        }
        if self.survey_share > 1.0 {
            refuse("survey_share", format!("survey_share is {}: it must be at most 1", self.survey_share));
        }
        if self.request_rows_max > self.queue_rows_max {
            refuse(
                "request_rows_max",
                format!(
                    "request_rows_max {} is above queue_rows_max {}: such a request would never be accepted",
                    self.request_rows_max, self.queue_rows_max
                ),
            );
        }
        if self.message_bytes_max > self.queue_bytes_max {
            refuse(
                "message_bytes_max",
                format!(
                    "message_bytes_max {} is above queue_bytes_max {}: such a request would never be accepted",
                    self.message_bytes_max.show(),
                    self.queue_bytes_max.show()
                ),
            );
        }
        if self.message_bytes_max.get() > u64::from(u32::MAX) {
            refuse(
                "message_bytes_max",
                format!("message_bytes_max is {}: gRPC frames end below 4GiB", self.message_bytes_max.show()),
            );
        }
        if let MemoryBudget::Amount(super::Amount::Bytes(budget)) = self.memory_budget
            && budget == Bytes::ZERO
        {
            refuse("memory_budget", "memory_budget 0 B leaves nothing for models".to_owned());
        }
    }
}

/// The origin of the setting `name`; `origins` is in the order of [`SETTINGS`].
fn origin_of<'o>(name: &str, origins: &'o [Origin]) -> &'o Origin {
    let index = SETTINGS.iter().position(|setting| setting.name == name).expect("callers name settings of the table");
    &origins[index]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Batching, Models};
    use clap::{CommandFactory, Parser};
    use std::num::NonZeroU32;
    use std::path::Path;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: ServeOptions,
    }

    /// The configuration of a command line, an environment with HOME and `variables`, and a file with `text`.
    fn load(flags: &[&str], variables: &[(&str, &str)], text: &str) -> Result<Effective, String> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("server.toml");
        std::fs::write(&path, text).expect("a file");
        let mut options =
            Line::try_parse_from(["plimsoll"].iter().chain(flags)).map_err(|error| error.to_string())?.options;
        options.config = Some(path);
        let environment = Environment::from_pairs([("HOME", "/home/x")].iter().chain(variables).copied());
        // The folder is another one each time.
        let short = |error: ConfigError| error.to_string().replace(&folder.path().display().to_string(), "F");
        ServerConfig::load(&options, &environment).map_err(short)
    }

    #[track_caller]
    fn refused(flags: &[&str], variables: &[(&str, &str)], text: &str, parts: &[&str]) {
        let error = load(flags, variables, text).expect_err("must be refused");
        for part in parts {
            assert!(error.contains(part), "{part} is not in {error}");
        }
    }

    #[test]
    fn flags_are_well_formed() {
        Line::command().debug_assert();
    }

    #[test]
    fn every_default_can_be_read_and_is_shown_as_written() {
        let effective = load(&[], &[], "").expect("valid");
        assert_eq!(effective.settings.len(), SETTINGS.len());
        for (setting, shown) in SETTINGS.iter().zip(&effective.settings) {
            assert_eq!(setting.name, shown.name);
            assert_eq!(shown.origin, Origin::Default);
            // The two that depend on the environment stand in the table as words.
            if !matches!(setting.name, "cache_dir" | "profile_dir") {
                assert_eq!(shown.value, setting.default, "{}", setting.name);
            }
        }
        assert_eq!(effective.config.cache_dir, Path::new("/home/x/.cache/plimsoll"));
        assert_eq!(effective.config.profile_dir, Path::new("/home/x/.cache/plimsoll/profiles"));
    }

    #[test]
    fn flags_beat_environment_beats_file() {
        let text = "grpc_port = 1\nmetrics_port = 2\nqueue_rows_max = 9000";
        let variables = [("PLIMSOLL_GRPC_PORT", "11"), ("PLIMSOLL_METRICS_PORT", "12")];
        let effective = load(&["--grpc-port", "21"], &variables, text).expect("valid");
        let config = &effective.config;
        assert_eq!((config.grpc_port, config.metrics_port, config.queue_rows_max), (21, 12, 9000));
        assert_eq!(config.address.to_string(), "127.0.0.1");
        let origin =
            |name| effective.settings.iter().find(|shown| shown.name == name).map(|shown| shown.origin.to_string());
        assert_eq!(origin("grpc_port").as_deref(), Some("flag"));
        assert_eq!(origin("metrics_port").as_deref(), Some("environment"));
        assert!(origin("queue_rows_max").is_some_and(|origin| origin.ends_with("server.toml:3:18")));
        assert_eq!(origin("address").as_deref(), Some("default"));
    }

    #[test]
    fn values_are_typed() {
        let text = "memory_budget = \"60%\"\nthreads = 2\nbatching = \"fixed:8\"\nsurvey_share = 1\nmodels = \"repo\"\nmodel = [\"a/b:f16\"]";
        let Effective { config, settings } = load(&[], &[], text).expect("valid");
        assert_eq!(config.memory_budget.of(Bytes::gib(10), Bytes::ZERO), Bytes::gib(6));
        assert_eq!(config.threads.count(), 2);
        assert_eq!(Some(config.batching), NonZeroU32::new(8).map(Batching::Fixed));
        assert!(matches!(config.models, Models::Folder(path) if path.is_absolute()), "relative to the file");
        assert_eq!(config.model[0].target, "a/b");
        assert_eq!(settings.last().map(|shown| (shown.name, shown.value.as_str())), Some(("model", "a/b:f16")));
    }

    #[test]
    fn models_of_the_environment_are_a_list() {
        let config = load(&[], &[("PLIMSOLL_MODEL", "a/b, c/d:int8")], "model = [\"e/f\"]").expect("valid").config;
        assert_eq!(config.model.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a/b", "c/d:int8"]);
    }

    #[test]
    fn mistakes_are_named_with_their_place() {
        refused(&[], &[], "grcp_port = 1", &["F/server.toml:1:1: unknown key 'grcp_port': did you mean 'grpc_port'?"]);
        refused(&[], &[("PLIMSOLL_GRPC_PORT", "x")], "", &["PLIMSOLL_GRPC_PORT: 'x' is not allowed", "0 to 65535"]);
        refused(&["--memory-budget", "lots"], &[], "", &["--memory-budget", "\"60%\""]);
        refused(&[], &[], "model = \"x\"", &["model must be a list"]);
        refused(&[], &[], "model = [\"x:fp4\"]", &["F/server.toml:1:10: 'fp4' is not one of"]);
        refused(&[], &[], "device = \"gpu\"", &["device: 'gpu' is not allowed: write \"auto\""]);
        refused(
            &[],
            &[("PLIMSOLL_GRCP_PORT", "1")],
            "",
            &["PLIMSOLL_GRCP_PORT: there is no such setting: did you mean PLIMSOLL_GRPC_PORT?"],
        );
        assert!(load(&[], &[("PLIMSOLL_PORT_8001_TCP", "tcp://10.0.0.1:8001"), ("PLIMSOLL_PORT", "x")], "").is_ok());
        // An overruled value is still checked.
        refused(&["--grpc-port", "1"], &[], "grpc_port = -1", &["grpc_port: '-1' is not allowed"]);
        // All together.
        refused(
            &[],
            &[("PLIMSOLL_THREADS", "0")],
            "a = 1\nb = 2",
            &["unknown key 'a'", "unknown key 'b'", "PLIMSOLL_THREADS"],
        );
    }

    #[test]
    fn values_are_checked_against_one_another() {
        refused(&["--grpc-port", "8002"], &[], "", &["--metrics-port", "both 8002"]);
        refused(&["--survey-share", "1.5"], &[], "", &["at most 1"]);
        refused(&["--tls-cert", "c.pem"], &[], "", &["--tls-cert: tls_cert needs tls_key"]);
        refused(&["--tls-key", "k.pem"], &[], "", &["--tls-key: tls_key needs tls_cert"]);
        refused(&["--tls-client-ca", "a.pem"], &[], "", &["tls_client_ca needs tls_cert and tls_key"]);
        refused(&["--admin-address", "8003"], &[], "", &["such as \"127.0.0.1:8003\""]);
        refused(&["--admin-address", "127.0.0.1:8001"], &[], "", &["has the port of grpc_port"]);
        assert!(load(&["--admin-address", "127.0.0.2:8001"], &[], "").is_ok());
        assert!(load(&["--tls-cert", "c", "--tls-key", "k", "--tls-client-ca", "a"], &[], "").is_ok());
        refused(&[], &[], "request_rows_max = 10000", &["F/server.toml:1:20", "above queue_rows_max 8192"]);
        refused(&["--message-bytes-max", "1GiB"], &[], "", &["above queue_bytes_max 256MiB"]);
        refused(&["--message-bytes-max", "5GiB", "--queue-bytes-max", "8GiB"], &[], "", &["below 4GiB"]);
        refused(&["--memory-budget", "0B"], &[], "", &["leaves nothing for models"]);
        assert!(load(&["--grpc-port", "0", "--metrics-port", "0"], &[], "").is_ok(), "two free ports differ");
    }

    #[test]
    fn a_named_file_must_be_there() {
        let options = ServeOptions { config: Some("/no/such/server.toml".into()), ..ServeOptions::default() };
        let error = ServerConfig::load(&options, &[("HOME", "/home/x")].into()).expect_err("must be refused");
        assert!(error.to_string().starts_with("/no/such/server.toml: cannot be read"), "{error}");
    }

    #[test]
    fn without_a_home_the_cache_must_be_named() {
        let options = ServeOptions { config: Some("/dev/null".into()), ..ServeOptions::default() };
        let error = ServerConfig::load(&options, &Environment::default()).expect_err("must be refused");
        assert!(error.to_string().contains("--cache-dir: neither HOME nor XDG_CACHE_HOME"), "{error}");
    }
}
