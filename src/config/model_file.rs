//! `model.toml`: the keys of schema 1, and what must hold between them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::document::{Document, Found, Section};
use super::error::{ConfigError, Place};
use super::model::{Amount, ModelConfig, Source};
use super::{LoadPolicy, source};
use crate::units::{Bytes, Micros};

/// The only schema so far. A later one will say here how the older is read.
const SCHEMA: u32 = 1;

/// Reads the text of a `model.toml` at `path` as the configuration of the model `name`.
///
/// # Errors
/// Every problem of the file, each with its line and column.
pub(super) fn read(name: &str, path: &Path, text: &str) -> Result<Written, ConfigError> {
    Document::read(path, text, |document, section| {
        let config = Reader { document }.model(name, section)?;
        Some(Written { config, places: document.written() })
    })
}

/// What a file says.
#[derive(Debug)]
pub(super) struct Written {
    /// The model.
    pub(super) config: ModelConfig,
    /// Where each key is, as in `budget.limit`.
    pub(super) places: BTreeMap<String, Place>,
}

/// Whether the text, which may be broken elsewhere, says `required = true`.
pub(super) fn says_required(text: &str) -> bool {
    let (table, _) = toml::de::DeTable::parse_recoverable(text);
    table.get_ref().get("required").is_some_and(|value| value.get_ref().as_bool() == Some(true))
}

struct Reader<'d> {
    document: &'d Document<'d>,
}

impl Reader<'_> {
    fn model(&self, name: &str, mut section: Section<'_>) -> Option<ModelConfig> {
        match section.get::<u32>("schema") {
            None if !section.has("schema") => self.problem(0..0, "schema is missing: write 'schema = 1' first"),
            Some(Found { value, span }) if value != SCHEMA => {
                self.problem(span, format!("schema {value} is not understood: this version reads schema {SCHEMA}"));
            }
            _ => {}
        }
        let task = section.value_of("task");
        let source = match section.section("source") {
            Some(Found { value, span }) => self.source(value, span),
            None => {
                if !section.has("source") {
                    self.problem(0..0, format!("source is missing: write a table [source] with {SOURCES}"));
                }
                None
            }
        };
        let source_is_known = source.is_some();
        // The rest is checked in any case: a placeholder stands in for a source that is already reported.
        let mut model = ModelConfig::new(name, source.unwrap_or(Source::Path(PathBuf::new())));
        model.task = task;
        model.sha256 = self.digests(&mut section);
        if let Some(dtype) = section.value_of("dtype") {
            model.dtype = dtype;
        }
        model.length_max = section.value_of("length_max");
        if let Some(truncate) = section.value_of("truncate") {
            model.truncate = truncate;
        }
        model.pooling = section.value_of("pooling");
        model.normalize = section.value_of("normalize");
        self.prompts(&mut section, &mut model);
        self.budget(&mut section, &mut model);
        self.scheduling(&mut section, &mut model);
        self.lifecycle(&mut section, &mut model);
        section.finish();
        source_is_known.then_some(model)
    }

    fn problem(&self, span: Range<usize>, message: impl Into<String>) {
        self.document.problem(span, message);
    }

    fn source(&self, mut section: Section<'_>, span: Range<usize>) -> Option<Source> {
        let embedded = section.get::<String>("embedded");
        let path = section.get::<String>("path");
        let hub = section.get::<String>("hub");
        let revision = section.get::<String>("revision");
        let wheel = section.get::<String>("wheel");
        let sha256 = section.get::<String>("sha256");
        let folder = section.get::<String>("folder");
        section.finish();
        for (key, found, owner, present) in [
            ("revision", &revision, "hub", hub.is_some()),
            ("sha256", &sha256, "wheel", wheel.is_some()),
            ("folder", &folder, "wheel", wheel.is_some()),
        ] {
            if let (Some(found), false) = (found, present) {
                self.problem(found.span.clone(), format!("source.{key} belongs to source.{owner}, which is absent"));
            }
        }
        match (embedded, path, hub, wheel) {
            (Some(name), None, None, None) => self.keep(name, |name| {
                super::check_name(&name)?;
                Ok(Source::Embedded(name))
            }),
            (None, Some(path), None, None) => self.keep(path, |path| {
                source::check_inside(&path)?;
                Ok(Source::Path(self.document.folder().join(path)))
            }),
            (None, None, Some(hub), None) => {
                let revision = match revision {
                    Some(found) => self.keep(found, |text| source::check_revision(&text).map(|()| text))?,
                    None => source::DEFAULT_REVISION.to_owned(),
                };
                self.keep(hub, |id| source::check_hub_id(&id).map(|()| Source::Hub { id, revision }))
            }
            (None, None, None, Some(wheel)) => self.wheel(wheel, sha256, folder),
            (None, None, None, None) => {
                self.problem(span, format!("[source] says nothing: write {SOURCES}"));
                None
            }
            _ => {
                self.problem(span, format!("[source] says several things: write {SOURCES}"));
                None
            }
        }
    }

    fn wheel(
        &self,
        wheel: Found<String>,
        sha256: Option<Found<String>>,
        folder: Option<Found<String>>,
    ) -> Option<Source> {
        let span = wheel.span.clone();
        let requirement = self.keep(wheel, |text| source::split_requirement(&text));
        let sha256 = match sha256 {
            Some(found) => self.keep(found, |text| source::check_sha256(&text)),
            None => {
                self.problem(span.clone(), "source.sha256 is missing: a wheel is only taken by its SHA-256");
                None
            }
        };
        let folder = match folder {
            Some(found) => self.keep(found, |text| source::check_inside(&text)),
            None => {
                self.problem(span, "source.folder is missing: name the folder of the model inside the wheel");
                None
            }
        };
        let (package, version) = requirement?;
        Some(Source::Wheel { package, version, sha256: sha256?, folder: folder? })
    }

    fn digests(&self, section: &mut Section<'_>) -> BTreeMap<String, String> {
        let digest = |(file, found): (String, Found<String>)| {
            let span = found.span.clone();
            let digest = self.keep(found, |text| source::check_sha256(&text))?;
            source::check_inside(&file).map_err(|message| self.problem(span, message)).ok()?;
            Some((file, digest))
        };
        section.texts("sha256").into_iter().filter_map(digest).collect()
    }

    fn prompts(&self, section: &mut Section<'_>, model: &mut ModelConfig) {
        model.prompts = section.texts("prompts").into_iter().map(|(name, found)| (name, found.value)).collect();
        // The model's own files may define more prompts, so that an unknown name is certain only once they are read.
        model.default_prompt = section.get::<String>("default_prompt").map(|found| found.value);
    }

    fn budget(&self, section: &mut Section<'_>, model: &mut ModelConfig) {
        let Some(Found { value: mut budget, .. }) = section.section("budget") else { return };
        let guaranteed = budget.get::<Amount>("guaranteed");
        let limit = budget.get::<Amount>("limit");
        budget.finish();
        if let Some(guaranteed) = &guaranteed {
            model.guaranteed = guaranteed.value;
        }
        let Some(limit) = limit else { return };
        model.limit = Some(limit.value);
        // Bytes against a percentage are compared when the budget of the device is known.
        let below = match (model.guaranteed, limit.value) {
            (Amount::Bytes(guaranteed), Amount::Bytes(limit)) => limit < guaranteed,
            (Amount::Percent(guaranteed), Amount::Percent(limit)) => limit < guaranteed,
            _ => false,
        };
        let nothing = matches!(limit.value, Amount::Bytes(Bytes::ZERO)) || limit.value == Amount::Percent(0.0);
        if below {
            self.problem(limit.span, "budget.limit is below budget.guaranteed: raise the limit or lower the guarantee");
        } else if nothing {
            self.problem(limit.span, "budget.limit is zero: nothing could be loaded; leave the key out for no limit");
        }
    }

    fn scheduling(&self, section: &mut Section<'_>, model: &mut ModelConfig) {
        if let Some(share) = section.value_of("share") {
            model.share = share;
        }
        if let Some(Found { value, span }) = section.get::<Micros>("target_latency") {
            if value == Micros::ZERO {
                self.problem(span, "target_latency is zero: no step is that fast; leave the key out for no target");
            }
            model.target_latency = Some(value);
        }
        if let Some(Found { value, span }) = section.get::<Micros>("max_linger") {
            if model.target_latency.is_some_and(|target| value >= target) {
                self.problem(span, "max_linger is not below target_latency: no time would be left for the step");
            }
            model.max_linger = value;
        }
        if let Some(Found { value, span }) = section.get::<u32>("step_tokens_max") {
            if model.length_max.is_some_and(|length| value < length) {
                self.problem(span, "step_tokens_max is below length_max: the longest text would fit no step");
            }
            model.step_tokens_max = Some(value);
        }
    }

    fn lifecycle(&self, section: &mut Section<'_>, model: &mut ModelConfig) {
        if let Some(load) = section.value_of("load") {
            model.load = load;
        }
        model.required = model.load == LoadPolicy::Startup;
        if let Some(Found { value, span }) = section.get::<bool>("required") {
            if value && model.load != LoadPolicy::Startup {
                let message = format!(
                    "required = true needs load = \"startup\": with \"{}\" the server would wait for a model that nobody loads",
                    model.load
                );
                self.problem(span, message);
            }
            model.required = value;
        }
        if let Some(pinned) = section.value_of("pinned") {
            model.pinned = pinned;
        }
    }

    /// `convert`'s value; its error is noted at `found`'s place.
    fn keep<A, B>(&self, found: Found<A>, convert: impl FnOnce(A) -> Result<B, String>) -> Option<B> {
        convert(found.value).map_err(|message| self.problem(found.span, message)).ok()
    }
}

const SOURCES: &str =
    "exactly one of embedded = \"NAME\", path = \"FOLDER\", hub = \"ORG/NAME\" or wheel = \"PACKAGE==VERSION\"";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Dtype, Pooling, Task, Truncate};

    const HEAD: &str = "schema = 1\n[source]\nembedded = \"tiny-embed\"\n";

    /// All problems of a file with `text`, as they are shown.
    #[track_caller]
    fn problems(text: &str) -> String {
        read("m", Path::new("models/m/model.toml"), text).expect_err("must be refused").to_string()
    }

    /// `keys` before a valid rest have one problem, which contains `part`.
    #[track_caller]
    fn check(keys: &str, part: &str) {
        let shown = problems(&format!("{keys}\n{HEAD}"));
        assert!(shown.contains(part), "{keys}: {shown}");
        assert_eq!(shown.lines().count(), 1, "{shown}");
    }

    #[test]
    fn every_key_arrives() {
        let text = r#"
            schema = 1
            task = "embed"
            dtype = "int8"
            length_max = 256
            truncate = "start"
            pooling = "cls"
            normalize = false
            default_prompt = "query"
            share = 2
            target_latency = "50ms"
            max_linger = "2ms"
            step_tokens_max = 8_192
            load = "on_demand"
            pinned = true
            source = { hub = "org/name", revision = "v1" }
            budget = { guaranteed = "100MiB", limit = "40%" }
            prompts = { query = "query: " }
            sha256 = { "model.safetensors" = "ABABABABABABABABABABABABABABABABABABABABABABABABABABABABABABABAB" }
        "#;
        let model = read("m", Path::new("m/model.toml"), text).expect("valid").config;
        let expected = ModelConfig {
            name: "m".into(),
            task: Some(Task::Embed),
            source: Source::Hub { id: "org/name".into(), revision: "v1".into() },
            sha256: [("model.safetensors".to_owned(), "ab".repeat(32))].into(),
            dtype: Dtype::Int8,
            length_max: Some(256),
            truncate: Truncate::Start,
            pooling: Some(Pooling::Cls),
            normalize: Some(false),
            prompts: [("query".to_owned(), "query: ".to_owned())].into(),
            default_prompt: Some("query".into()),
            guaranteed: Amount::Bytes(Bytes::mib(100)),
            limit: Some(Amount::Percent(40.0)),
            share: 2.0,
            target_latency: Some(Micros::millis(50)),
            max_linger: Micros::millis(2),
            step_tokens_max: Some(8192),
            load: LoadPolicy::OnDemand,
            required: false,
            pinned: true,
        };
        assert_eq!(model, expected);
    }

    #[test]
    fn what_is_left_out_has_the_documented_default() {
        let model = read("m", Path::new("m/model.toml"), HEAD).expect("valid").config;
        assert_eq!(model, ModelConfig::new("m", Source::Embedded("tiny-embed".into())));
    }

    #[test]
    fn a_relative_path_starts_at_the_file() {
        let text = "schema = 1\nsource.path = \"weights\"\n";
        let model = read("m", Path::new("models/m/model.toml"), text).expect("valid").config;
        assert_eq!(model.source, Source::Path("models/m/weights".into()));
    }

    #[test]
    fn an_empty_default_prompt_is_no_prompt_and_not_nothing_said() {
        let text = format!("default_prompt = \"\"\n{HEAD}");
        let model = read("m", Path::new("m/model.toml"), &text).expect("valid").config;
        assert_eq!(model.default_prompt.as_deref(), Some(""));
    }

    #[test]
    fn all_problems_are_reported_at_once_in_order() {
        let shown = problems("schema = 1\ndtpye = \"f16\"\nshare = 0\n\n[source]\nembedded = \"x\"\npath = \"y\"\n");
        let expected = "\
models/m/model.toml:2:1: unknown key 'dtpye': did you mean 'dtype'?
models/m/model.toml:3:9: share: '0' is not allowed: write a number above 0
models/m/model.toml:5:1: [source] says several things: write exactly one of embedded = \"NAME\", path = \"FOLDER\", hub = \"ORG/NAME\" or wheel = \"PACKAGE==VERSION\"";
        assert_eq!(shown, expected);
    }

    #[test]
    fn values_are_checked() {
        let dtypes = "write \"f32\", \"f16\", \"bf16\", \"q8_0\", \"int8\" or \"fp8\"";
        check("dtype = \"fp4\"", &format!("1:9: dtype: 'fp4' is not allowed: {dtypes}"));
        check("dtype = 16", "dtype: the number 16 is not allowed");
        check("length_max = 0", "a whole number from 1");
        check("length_max = 99999999999", "'99999999999' is not allowed");
        check("length_max = 9999999999999999999999999", "is not allowed");
        check("length_max = \"256\"", "the text \"256\" is not allowed");
        check("normalize = 1", "write true or false");
        check("truncate = true", "write \"none\", \"end\" or \"start\"");
        check("task = \"generate\"", "\"embed\", \"classify\", \"rerank\" or \"token_classify\"");
        check("target_latency = 50", "with its unit");
        check("target_latency = \"0s\"", "target_latency is zero");
        check("max_linger = \"9ms\"\ntarget_latency = \"9ms\"", "1:14: max_linger is not below target_latency");
        check("length_max = 512\nstep_tokens_max = 256", "step_tokens_max is below length_max");
        check("load = \"manual\"\nrequired = true", "required = true needs load = \"startup\"");
        check("share = nan", "a number above 0");
        check("budget = 5", "budget must be a table, not the number 5");
        check("budget = { limit = \"1GiB\", guaranteed = \"2GiB\" }", "below budget.guaranteed");
        check("budget = { limit = \"10%\", guaranteed = \"20%\" }", "below budget.guaranteed");
        check("budget = { limit = 0 }", "budget.limit is zero");
        check("budget = { max = 0 }", "unknown key 'budget.max'");
        check("prompts = { query = 5 }", "prompts.query: the number 5 is not allowed");
        check(
            "sha256 = { \"../x\" = \"abababababababababababababababababababababababababababababababab\" }",
            "leaves the folder",
        );
        check("sha256 = { x = \"ab\" }", "64 hexadecimal digits");
    }

    #[test]
    fn schemas_and_sources_are_checked() {
        #[track_caller]
        fn check(text: &str, part: &str) {
            let shown = problems(text);
            assert!(shown.contains(part), "{text}: {shown}");
        }
        check("", "schema is missing");
        check("", "source is missing");
        check("schema = 2\nsource.embedded = \"x\"", "schema 2 is not understood: this version reads schema 1");
        check("schema = \"1\"\nsource.embedded = \"x\"", "schema: the text \"1\" is not allowed");
        check("schema = 1\n[source]\n", "[source] says nothing");
        check("schema = 1\nsource.path = \"../x\"", "leaves the folder");
        check("schema = 1\nsource.path = \"/x\"", "leaves the folder");
        check("schema = 1\nsource.embedded = \"../x\"", "cannot be a model's name");
        check("schema = 1\nsource.hub = \"a/b/c\"", "not a Hugging Face id");
        check("schema = 1\nsource = { hub = \"a/b\", revision = \"..\" }", "not a revision");
        check("schema = 1\nsource = { path = \"x\", revision = \"v1\" }", "source.revision belongs to source.hub");
        check("schema = 1\nsource.wheel = \"pkg==1.0\"", "source.sha256 is missing");
        check("schema = 1\nsource.wheel = \"pkg==1.0\"", "source.folder is missing");
        check("schema = 1\nsource = { wheel = \"pkg\", sha256 = \"x\", folder = \"y\" }", "PACKAGE==VERSION");
        check("schema = 1\nschema = 1", "m/model.toml:2:1: duplicate key");
        check("schema = ", "m/model.toml:1:10: ");
    }

    #[test]
    fn a_broken_file_is_still_asked_whether_it_is_required() {
        assert!(says_required("required = true\ndtype = = 3"));
        assert!(!says_required("required = \"yes\""));
        assert!(!says_required("dtype = \"fp4\""));
    }
}
