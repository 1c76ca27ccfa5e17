//! What the argument of `plimsoll pull` means.

use std::collections::BTreeMap;

use anyhow::{Context, bail};

use crate::config::{ModelArgument, Place, Repository, ServerConfig, Source, source};

/// What is to be fetched and what its files must be.
#[derive(Debug, PartialEq)]
pub(super) struct Target {
    pub(super) source: Source,
    pub(super) sha256: BTreeMap<String, String>,
}

impl Target {
    /// The target that `text` names: a wheel, or else whatever `serve --model` would take.
    pub(super) fn find(text: &str, config: &ServerConfig) -> anyhow::Result<Target> {
        if let Some(wheel) = text.strip_prefix("wheel:") {
            let source = read_wheel(wheel).with_context(|| format!("'{text}'"))?;
            return Ok(Target { source, sha256: BTreeMap::new() });
        }
        let argument: ModelArgument = text.parse().map_err(anyhow::Error::msg)?;
        let place = Place::Flag(format!("plimsoll pull {text}"));
        let entry = Repository::known(config)?.interpret(&argument, &place, &config.cache_dir)?;
        let model = entry.config?;
        Ok(Target { source: model.source, sha256: model.sha256 })
    }
}

/// Reads `PACKAGE==VERSION#sha256=HEX,folder=PATH`.
fn read_wheel(text: &str) -> anyhow::Result<Source> {
    const FORM: &str = "write wheel:PACKAGE==VERSION#sha256=HEX,folder=PATH";
    let Some((requirement, rest)) = text.split_once('#') else { bail!("no SHA-256: {FORM}") };
    let (package, version) = source::split_requirement(requirement).map_err(anyhow::Error::msg)?;
    let (mut sha256, mut folder) = (None, None);
    for part in rest.split(',') {
        match part.split_once('=') {
            Some(("sha256", digest)) => sha256 = Some(source::check_sha256(digest).map_err(anyhow::Error::msg)?),
            Some(("folder", path)) => folder = Some(source::check_inside(path).map_err(anyhow::Error::msg)?),
            _ => bail!("'{part}' is not understood: {FORM}"),
        }
    }
    match (sha256, folder) {
        (Some(sha256), Some(folder)) => Ok(Source::Wheel { package, version, sha256, folder }),
        _ => bail!("sha256 and folder are both needed: {FORM}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Environment, ServeOptions};

    fn config() -> ServerConfig {
        let options = ServeOptions { config: Some("/dev/null".into()), ..ServeOptions::default() };
        let environment: Environment = [("HOME", "/no/such/home")].into();
        ServerConfig::load(&options, &environment).expect("valid").config
    }

    #[test]
    fn what_resolve_advises_is_understood() {
        let sha256 = "ab".repeat(32);
        let sources = [
            Source::Hub { id: "org/name".into(), revision: "main".into() },
            Source::Hub { id: "org/name".into(), revision: "refs/pr/1".into() },
            Source::Wheel { package: "pkg".into(), version: "1.0".into(), sha256, folder: "pkg/data/model".into() },
        ];
        for source in sources {
            let target = Target::find(&source::pull_argument(&source), &config()).expect("understood");
            assert_eq!(target, Target { source, sha256: BTreeMap::new() });
        }
    }

    #[cfg(feature = "embedded-models")]
    #[test]
    fn a_name_brings_its_digests() {
        let target = Target::find("all-MiniLM-L6-v2", &config()).expect("in the default repository");
        assert!(matches!(target.source, Source::Wheel { .. }));
        assert!(target.sha256.contains_key("model.safetensors"));
    }

    #[test]
    fn mistakes_say_what_to_write() {
        let check = |text: &str, part: &str| {
            let error = format!("{:#}", Target::find(text, &config()).expect_err(text));
            assert!(error.contains(part), "{error}");
        };
        check("wheel:pkg==1.0", "no SHA-256: write wheel:");
        check("wheel:pkg#sha256=00,folder=x", "PACKAGE==VERSION");
        check("wheel:pkg==1.0#sha256=00,folder=x", "64 hexadecimal digits");
        check(&format!("wheel:pkg==1.0#sha256={}", "0".repeat(64)), "both needed");
        check(&format!("wheel:pkg==1.0#sha256={},folder=../x", "0".repeat(64)), "leaves the folder");
        check("wheel:pkg==1.0#md5=00", "'md5=00' is not understood");
        check("./no-such-folder", "there is no folder");
        check("no-such-model", "no model of the repository");
    }
}
