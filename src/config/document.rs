//! A TOML file read strictly: each key is asked for by name, whatever is left over is a mistake, and every mistake is
//! kept with its line and column, so that one run reports them all.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Place, Problem, suggestion};
use super::written::{self, Form, Written};

/// The text of a file and what was found wrong with it so far.
pub(super) struct Document<'t> {
    path: PathBuf,
    text: &'t str,
    problems: RefCell<Vec<(Range<usize>, String)>>,
    written: RefCell<BTreeMap<String, Place>>,
}

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Found<T> {
    pub(super) value: T,
    pub(super) span: Range<usize>,
}

impl<'t> Document<'t> {
    /// Reads `text` with `read`, which must end every section with [`Section::finish`].
    ///
    /// # Errors
    /// All problems of the syntax, or else all that `read` found.
    pub(super) fn read<T>(
        path: &Path,
        text: &'t str,
        read: impl FnOnce(&Document<'t>, Section<'_>) -> Option<T>,
    ) -> Result<T, ConfigError> {
        let document =
            Document { path: path.to_owned(), text, problems: RefCell::default(), written: RefCell::default() };
        let (root, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            document.problem(error.span().unwrap_or(0..0), error.message());
        }
        let syntax_is_broken = !document.problems.borrow().is_empty();
        let value = if syntax_is_broken {
            // Values that were skipped would be reported as missing: say only what is certain.
            None
        } else {
            read(
                &document,
                Section { document: &document, prefix: String::new(), table: root.get_ref(), known: vec![] },
            )
        };
        let mut problems = document.problems.take();
        problems.sort_by_key(|(span, _)| span.start);
        let problems: Vec<_> =
            problems.into_iter().map(|(span, message)| Problem { place: document.place(&span), message }).collect();
        ConfigError::unless_empty(problems, value)
            .map(|value| value.expect("`read` gives a value unless it has reported a problem"))
    }

    /// Notes a problem.
    pub(super) fn problem(&self, span: Range<usize>, message: impl Into<String>) {
        self.problems.borrow_mut().push((span, message.into()));
    }

    /// The keys that were asked for and found, and where.
    pub(super) fn written(&self) -> BTreeMap<String, Place> {
        self.written.take()
    }

    /// The folder that holds the file.
    pub(super) fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    /// Where `span` begins.
    pub(super) fn place(&self, span: &Range<usize>) -> Place {
        let start = (0..=span.start).rev().find(|at| self.text.is_char_boundary(*at)).unwrap_or(0);
        let before = &self.text[..start];
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Place::File {
            path: self.path.clone(),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

/// The text of a configuration file.
///
/// # Errors
/// It cannot be read, or is so large that it is no configuration file.
pub(super) fn read_text(path: &Path) -> io::Result<String> {
    const BYTES_MAX: u64 = 1 << 20;
    let mut text = String::new();
    let count = File::open(path)?.take(BYTES_MAX + 1).read_to_string(&mut text)?;
    match count as u64 > BYTES_MAX {
        true => Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is larger than 1 MiB: no configuration is")),
        false => Ok(text),
    }
}

/// One table of a document.
pub(super) struct Section<'d> {
    document: &'d Document<'d>,
    /// `budget.` for the keys of `[budget]`.
    prefix: String,
    table: &'d DeTable<'d>,
    known: Vec<&'static str>,
}

impl<'d> Section<'d> {
    /// The value of `key`; `None` if it is absent, or not allowed (then that is noted).
    pub(super) fn get<T: Written>(&mut self, key: &'static str) -> Option<Found<T>> {
        let found = self.raw(key)?;
        self.value(key, found)
    }

    /// [`Section::get`] without the place.
    pub(super) fn value_of<T: Written>(&mut self, key: &'static str) -> Option<T> {
        self.get(key).map(|found| found.value)
    }

    /// Whether `key` is there, allowed or not.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// The table `key`.
    pub(super) fn section(&mut self, key: &'static str) -> Option<Found<Section<'d>>> {
        let Found { value, span } = self.raw(key)?;
        let prefix = format!("{}{key}.", self.prefix);
        match value {
            DeValue::Table(table) => {
                Some(Found { value: Section { document: self.document, prefix, table, known: vec![] }, span })
            }
            other => {
                let message = format!("{}{key} must be a table, not {}", self.prefix, describe(other));
                self.document.problem(span, message);
                None
            }
        }
    }

    /// The table `key`, whose keys are free and whose values are text.
    pub(super) fn texts(&mut self, key: &'static str) -> BTreeMap<String, Found<String>> {
        let Some(Found { value: section, .. }) = self.section(key) else { return BTreeMap::new() };
        let entries = section.table.iter().filter_map(|(name, value)| {
            let found = Found { value: value.get_ref(), span: value.span() };
            Some((name.get_ref().to_string(), section.value::<String>(name.get_ref(), found)?))
        });
        entries.collect()
    }

    /// The list of texts `key`.
    pub(super) fn list(&mut self, key: &'static str) -> Vec<Found<String>> {
        let Some(Found { value, span }) = self.raw(key) else { return vec![] };
        let DeValue::Array(items) = value else {
            self.document
                .problem(span, format!("{}{key} must be a list of texts, not {}", self.prefix, describe(value)));
            return vec![];
        };
        items.iter().filter_map(|item| self.value(key, Found { value: item.get_ref(), span: item.span() })).collect()
    }

    /// Notes every key that nobody asked for.
    pub(super) fn finish(self) {
        for name in self.table.keys() {
            if !self.known.contains(&name.get_ref().as_ref()) {
                let message = format!(
                    "unknown key '{}{}'{}",
                    self.prefix,
                    name.get_ref(),
                    suggestion(name.get_ref(), self.known.iter().copied())
                );
                self.document.problem(name.span(), message);
            }
        }
    }

    fn raw(&mut self, key: &'static str) -> Option<Found<&'d DeValue<'d>>> {
        self.known.push(key);
        let value = self.table.get(key)?;
        let place = self.document.place(&value.span());
        self.document.written.borrow_mut().insert(format!("{}{key}", self.prefix), place);
        Some(Found { value: value.get_ref(), span: value.span() })
    }

    fn value<T: Written>(&self, key: &str, found: Found<&DeValue<'_>>) -> Option<Found<T>> {
        let Found { value, span } = found;
        let read = match text_of(value, T::FORM) {
            Some(text) => written::read::<T>(&text).map(|value| value.relative_to(self.document.folder())),
            None => Err(format!("{} is not allowed: write {}", describe(value), T::allowed())),
        };
        match read {
            Ok(value) => Some(Found { value, span }),
            Err(message) => {
                self.document.problem(span, format!("{}{key}: {message}", self.prefix));
                None
            }
        }
    }
}

/// The text of a value that has the right TOML type.
fn text_of(value: &DeValue<'_>, form: Form) -> Option<String> {
    match (value, form) {
        (DeValue::String(text), Form::Text | Form::TextOrInteger) => Some(text.to_string()),
        (DeValue::Integer(integer), Form::Integer | Form::Number | Form::TextOrInteger) => {
            // A number too large for 64 bits keeps its digits, and is refused by the reader of the value.
            let number = i64::from_str_radix(integer.as_str(), integer.radix());
            Some(number.map_or_else(|_| integer.as_str().to_owned(), |number| number.to_string()))
        }
        (DeValue::Float(float), Form::Number) => Some(float.as_str().to_owned()),
        (DeValue::Boolean(flag), Form::Boolean) => Some(flag.to_string()),
        _ => None,
    }
}

fn describe(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("the text \"{text}\""),
        DeValue::Integer(integer) => format!("the number {integer}"),
        DeValue::Float(float) => format!("the number {float}"),
        DeValue::Boolean(flag) => flag.to_string(),
        DeValue::Datetime(moment) => format!("the date {moment}"),
        DeValue::Array(_) => "a list".into(),
        DeValue::Table(_) => "a table".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_counted_in_characters() {
        let problem = |text: &str| {
            let read = Document::read(Path::new("f"), text, |_, mut section| {
                section.texts("t");
                section.finish();
                Some(())
            });
            read.expect_err("must be refused").to_string()
        };
        assert_eq!(
            problem("t = { a = \"\u{e9}\u{1f6a2}\", b = 5 }"),
            "f:1:21: t.b: the number 5 is not allowed: write text"
        );
        assert_eq!(problem("\n\u{e9} = 1"), "f:2:1: invalid unquoted key, expected letters, numbers, `-`, `_`");
    }

    #[test]
    fn a_huge_or_binary_file_is_refused() {
        let file = tempfile::NamedTempFile::new().expect("a temporary file");
        let check = |content: &[u8], part: &str| {
            std::fs::write(file.path(), content).expect("written");
            let error = read_text(file.path()).expect_err("must be refused").to_string();
            assert!(error.contains(part), "{error}");
        };
        check(&vec![b'#'; (1 << 20) + 1], "larger than 1 MiB");
        check(&[0xff, 0xfe], "UTF-8");
    }
}
