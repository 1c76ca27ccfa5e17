//! Reads the sources and blanks what is not code.

use std::fs;
use std::path::{Path, PathBuf};

/// One Rust file: what it says, and what the compiler sees of it outside tests.
pub(crate) struct Source {
    /// Relative to the root, with `/`.
    pub(crate) path: String,
    /// All of it.
    pub(crate) text: String,
    /// What the compiler sees outside tests: comments and strings blanked, lines in their places.
    pub(crate) code: String,
}

impl Source {
    /// The top-level module of a file under `src/`.
    pub(crate) fn module(&self) -> &str {
        let rest = self.path.strip_prefix("src/").unwrap_or(&self.path);
        rest.split(['/', '.']).next().unwrap_or(rest)
    }

    /// Lines of the code that mention `word` as a whole identifier.
    pub(crate) fn mentions(&self, word: &str) -> Vec<usize> {
        let lines = self.code.lines().enumerate();
        lines.filter(|(_, line)| has_word(line, word)).map(|(index, _)| index + 1).collect()
    }
}

pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Every file below `folder`, relative to the root, sorted; build output and what tools leave is passed over.
pub(crate) fn files(folder: &str) -> Vec<PathBuf> {
    const PASSED_OVER: [&str; 6] = ["target", ".git", ".venv", ".cache", "__pycache__", "mutants.out"];
    let mut found = Vec::new();
    let mut folders = vec![root().join(folder)];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for entry in entries {
            let path = entry.expect("the folder can be read").path();
            let name = path.file_name().expect("an entry has a name").to_string_lossy().into_owned();
            if PASSED_OVER.contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                folders.push(path);
            } else {
                found.push(path.strip_prefix(root()).expect("it is below the root").to_owned());
            }
        }
    }
    found.sort();
    found
}

/// The Rust files below `folder`. A file that is compiled for tests only has no code.
pub(crate) fn sources(folder: &str) -> Vec<Source> {
    let paths = files(folder).into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs"));
    let mut sources: Vec<_> = paths
        .map(|path| {
            let text = fs::read_to_string(root().join(&path)).expect("sources are text");
            let code = without_tests(&without_comments_and_strings(&text));
            Source { path: path.to_string_lossy().into_owned(), text, code }
        })
        .collect();
    let for_tests: Vec<_> = sources.iter().flat_map(modules_for_tests).collect();
    for source in &mut sources {
        let stem = source.path.trim_end_matches(".rs");
        if for_tests.iter().any(|module| stem == module || stem.starts_with(&format!("{module}/"))) {
            source.code.clear();
        }
    }
    sources
}

/// The paths, without `.rs`, of the modules that a file declares for tests only.
fn modules_for_tests(source: &Source) -> Vec<String> {
    let stem = source.path.trim_end_matches(".rs");
    let (folder, name) = stem.rsplit_once('/').unwrap_or(("", stem));
    let folder = if ["mod", "lib", "main"].contains(&name) { folder } else { stem };
    let declared = source.text.split("#[cfg(test)]\n").skip(1).filter_map(|item| {
        item.trim_start().strip_prefix("mod ").and_then(|item| item.split_once(';')).map(|(name, _)| name)
    });
    declared.filter(|name| !name.contains(['{', ' '])).map(|name| format!("{folder}/{name}")).collect()
}

/// Whether the line mentions the word with nothing of an identifier directly before or after it. A word may have
/// punctuation at its ends (`print!`, `.unwrap()`), where anything may follow.
pub(crate) fn has_word(line: &str, word: &str) -> bool {
    let ident = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    line.match_indices(word).any(|(at, _)| {
        let (before, after) = (line[..at].chars().next_back(), line[at + word.len()..].chars().next());
        let cut_before = ident(before) && ident(word.chars().next());
        let cut_after = ident(after) && ident(word.chars().next_back());
        !cut_before && !cut_after
    })
}

/// The text with comments and the inside of strings and characters blanked; lines stay where they are.
fn without_comments_and_strings(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    let starts = |at: usize, with: &str| with.chars().enumerate().all(|(i, c)| chars.get(at + i) == Some(&c));
    let blank = |out: &mut String, from: usize, to: usize| {
        out.extend(chars[from..to.min(chars.len())].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
    };
    while at < chars.len() {
        let from = at;
        if starts(at, "//") {
            while at < chars.len() && chars[at] != '\n' {
                at += 1;
            }
        } else if starts(at, "/*") {
            at += 2;
            let mut depth = 1;
            while at < chars.len() && depth > 0 {
                match (starts(at, "/*"), starts(at, "*/")) {
                    (true, _) => (depth, at) = (depth + 1, at + 2),
                    (_, true) => (depth, at) = (depth - 1, at + 2),
                    _ => at += 1,
                }
            }
        } else if chars[at] == 'r' && (starts(at + 1, "\"") || starts(at + 1, "#")) {
            let hashes = chars[at + 1..].iter().take_while(|c| **c == '#').count();
            if chars.get(at + 1 + hashes) != Some(&'"') {
                out.push(chars[at]);
                at += 1;
                continue;
            }
            let end: String = std::iter::once('"').chain(std::iter::repeat_n('#', hashes)).collect();
            at += 2 + hashes;
            while at < chars.len() && !starts(at, &end) {
                at += 1;
            }
            at += end.len();
        } else if chars[at] == '"' {
            at += 1;
            while at < chars.len() && chars[at] != '"' {
                at += if chars[at] == '\\' { 2 } else { 1 };
            }
            at += 1;
        } else if chars[at] == '\'' && (starts(at + 1, "\\") || chars.get(at + 2) == Some(&'\'')) {
            // An escape is at least two characters long, and the second may be a quotation mark.
            at += if starts(at + 1, "\\") { 3 } else { 2 };
            while at < chars.len() && chars[at] != '\'' {
                at += 1;
            }
            at += 1;
        } else {
            out.push(chars[at]);
            at += 1;
            continue;
        }
        blank(&mut out, from, at);
    }
    out
}

/// The code with every item under `#[cfg(test)]` blanked. `code` has no comments and strings any more.
fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut out = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find(MARK) {
        out.push_str(&rest[..at]);
        let item = &rest[at..];
        let mut depth = 0usize;
        let end = item.char_indices().find_map(|(index, c)| match c {
            '{' => {
                depth += 1;
                None
            }
            '}' => {
                depth = depth.saturating_sub(1);
                (depth == 0).then_some(index + 1)
            }
            ';' if depth == 0 => Some(index + 1),
            _ => None,
        });
        let end = end.unwrap_or(item.len());
        out.extend(item[..end].chars().filter(|c| *c == '\n'));
        rest = &item[end..];
    }
    out.push_str(rest);
    out
}

#[test]
fn the_scanner_sees_code_only() {
    #[track_caller]
    fn check(text: &str, expected: &str) {
        let code = without_tests(&without_comments_and_strings(text));
        assert_eq!(code.split_whitespace().collect::<Vec<_>>().join(" "), expected, "{text}");
        assert_eq!(code.matches('\n').count(), text.matches('\n').count(), "lines move in {text}");
    }
    check("a // b\nc", "a c");
    check("a /* b /* c */ d */ e", "a e");
    check("f(\"un\\\"safe // x\") g", "f( ) g");
    check("f(r#\"a\"b\"#) g", "f( ) g");
    check("x<'a>('\"', '\\'') y", "x<'a>( , ) y");
    check("r + for r in", "r + for r in");
    check("a\n#[cfg(test)]\nmod tests { fn b() { c } }\nd", "a d");
    check("a\n#[cfg(test)]\nuse b;\nd", "a d");
}

#[test]
fn words_are_whole() {
    #[track_caller]
    fn check(line: &str, word: &str, expected: bool) {
        assert_eq!(has_word(line, word), expected, "{word} in {line}");
    }
    check("use tokio::sync;", "tokio", true);
    check("use tokio_stream::x;", "tokio", false);
    check("let x = y.unwrap();", ".unwrap()", true);
    check("let x = y.unwrap_or(1);", ".unwrap()", false);
    check("println!(x)", "print!", false);
    check("print!(x)", "print!", true);
    check("use crate::{a, b};", "crate::{", true);
    check("use crate::engines;", "crate::engine", false);
    check("Status::internal(x)", "Status::internal", true);
}

#[test]
fn modules_for_tests_are_found_where_the_compiler_finds_them() {
    #[track_caller]
    fn check(path: &str, text: &str, expected: &[&str]) {
        let source = Source { path: path.into(), text: text.into(), code: String::new() };
        assert_eq!(modules_for_tests(&source), expected, "{path}");
    }
    check("src/a/mod.rs", "mod b;\n#[cfg(test)]\nmod c;\n", &["src/a/c"]);
    check("src/a.rs", "#[cfg(test)]\nmod c;\n#[cfg(test)]\nmod tests {\n    fn d() { e; }\n}\n", &["src/a/c"]);
    check("src/lib.rs", "#[cfg(test)]\nuse a;\nmod b;\n", &[]);
}
