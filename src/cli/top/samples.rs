//! What one answer of `/metrics` says: the Prometheus text format, taken apart.
//!
//! The parsers there are split labels at every comma and know no escapes; a model may have any name.

use std::collections::BTreeMap;

/// One series: its name and its labels, sorted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Series {
    /// As the format writes it, `_bucket` and the like included.
    pub(super) name: String,
    labels: Vec<(String, String)>,
}

impl Series {
    /// The value of a label; empty if there is none, which to Prometheus is the same.
    pub(super) fn label(&self, name: &str) -> &str {
        self.labels.iter().find(|(found, _)| found == name).map_or("", |(_, value)| value)
    }
}

/// The values of all series at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Samples {
    values: BTreeMap<Series, f64>,
}

impl Samples {
    /// The series whose names are wanted. Comments and lines that cannot be read are left out.
    pub(super) fn parse(text: &str, wanted: impl Fn(&str) -> bool) -> Samples {
        text.lines().filter_map(parse_line).filter(|(series, _)| wanted(&series.name)).collect()
    }

    /// The series of a name that have these labels, in a fixed order.
    pub(super) fn of<'a>(
        &'a self,
        name: &'a str,
        labels: &'a [(&'a str, &'a str)],
    ) -> impl Iterator<Item = (&'a Series, f64)> {
        let first = Series { name: name.to_owned(), labels: Vec::new() };
        self.values
            .range(first..)
            .take_while(move |(series, _)| series.name == name)
            .filter(move |(series, _)| labels.iter().all(|(name, value)| series.label(name) == *value))
            .map(|(series, value)| (series, *value))
    }

    /// The sum of those; zero where there is none.
    pub(super) fn sum(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.of(name, labels).map(|(_, value)| value).sum()
    }

    /// The value of one series.
    pub(super) fn get(&self, series: &Series) -> Option<f64> {
        self.values.get(series).copied()
    }

    /// All of them.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&Series, f64)> {
        self.values.iter().map(|(series, value)| (series, *value))
    }
}

impl FromIterator<(Series, f64)> for Samples {
    fn from_iter<I: IntoIterator<Item = (Series, f64)>>(all: I) -> Samples {
        Samples { values: all.into_iter().collect() }
    }
}

/// `name{label="value",...} number`, with a time behind it or not.
fn parse_line(line: &str) -> Option<(Series, f64)> {
    let line = line.trim_start();
    if line.starts_with('#') {
        return None;
    }
    let end = line.find(|c: char| c == '{' || c.is_ascii_whitespace())?;
    let (name, rest) = line.split_at(end);
    let (mut labels, rest) = match rest.strip_prefix('{') {
        Some(rest) => parse_labels(rest)?,
        None => (Vec::new(), rest),
    };
    labels.sort();
    // Rust reads `+Inf` and `NaN` as the format writes them.
    let value = rest.split_ascii_whitespace().next()?.parse().ok()?;
    Some((Series { name: name.to_owned(), labels }, value))
}

/// The labels up to the closing brace, and what is behind it.
fn parse_labels(mut rest: &str) -> Option<(Vec<(String, String)>, &str)> {
    let mut labels = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', ',']);
        if let Some(rest) = rest.strip_prefix('}') {
            return Some((labels, rest));
        }
        let (name, behind) = rest.split_once('=')?;
        let (value, behind) = parse_quoted(behind.trim_start().strip_prefix('"')?)?;
        labels.push((name.trim_end().to_owned(), value));
        rest = behind;
    }
}

/// The text up to the closing quote, and what is behind it.
fn parse_quoted(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Some((value, &text[at + 1..])),
            '\\' => value.push(match chars.next()?.1 {
                'n' => '\n',
                escaped => escaped,
            }),
            c => value.push(c),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, name: &str, labels: &[(&str, &str)], value: f64) {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        assert_eq!(parse_line(line), Some((Series { name: name.to_owned(), labels }, value)), "{line}");
    }

    #[test]
    fn a_line_is_a_name_labels_and_a_number() {
        check("up 1", "up", &[], 1.0);
        check("up{} 1.5 1395066363000", "up", &[], 1.5);
        check(r#"a{m="x"} 2e3"#, "a", &[("m", "x")], 2000.0);
        check(r#"a{z="1", b="2",} +Inf"#, "a", &[("b", "2"), ("z", "1")], f64::INFINITY);
        check(r#"a{m="x,y=\"}\\\n"} 0"#, "a", &[("m", "x,y=\"}\\\n")], 0.0);
        check(r#"a{m="größe"} -1"#, "a", &[("m", "größe")], -1.0);
    }

    #[test]
    fn what_is_no_sample_is_left_out() {
        for line in ["", "# HELP a b", "a", "a b", r#"a{m="x} 1"#, r#"a{m=x} 1"#, r#"a{m="x" 1"#, r#"a{m="x\"#, "a{"] {
            assert_eq!(parse_line(line), None, "{line}");
        }
    }

    #[test]
    fn series_are_found_by_name_and_labels() {
        let text = "a{m=\"x\",r=\"1\"} 1\na{m=\"x\",r=\"2\"} 2\na{m=\"y\"} 4\na_b 8\nb 16\n";
        let samples = Samples::parse(text, |name| name != "b");
        assert_eq!(samples.sum("a", &[]), 7.0);
        assert_eq!(samples.sum("a", &[("m", "x")]), 3.0);
        assert_eq!(samples.sum("a", &[("m", "x"), ("r", "2")]), 2.0);
        assert_eq!(samples.sum("b", &[]), 0.0);
        let labels: Vec<_> = samples.of("a", &[("m", "x")]).map(|(series, _)| series.label("r")).collect();
        assert_eq!(labels, ["1", "2"]);
    }
}
