//! A model named on the command line: `[NAME=]ID-OR-PATH[:DTYPE]`.

use std::fmt;
use std::str::FromStr;

use super::Dtype;

/// What `--model` says, before anybody has looked where it leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelArgument {
    /// The name that clients shall use.
    pub name: Option<String>,
    /// A folder, a Hugging Face id, or the name of a model in the repository.
    pub target: String,
    /// The dtype that it shall be served in.
    pub dtype: Option<Dtype>,
}

impl FromStr for ModelArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<ModelArgument, String> {
        let (name, rest) = match text.split_once('=') {
            Some((name, rest)) => (Some(name), rest),
            None => (None, text),
        };
        if let Some(name) = name {
            check_name(name)?;
        }
        // Neither the colon of `hf:` nor one inside a path begins a dtype: only one behind the last separator does.
        let scheme = if rest.starts_with("hf:") { "hf:".len() } else { 0 };
        let (target, dtype) = match rest[scheme..].rsplit_once(':') {
            Some((target, dtype)) if !dtype.contains('/') => {
                (&rest[..scheme + target.len()], Some(dtype.parse::<Dtype>()?))
            }
            _ => (rest, None),
        };
        if target.is_empty() {
            return Err(format!("'{text}' names no model: write [NAME=]ID-OR-PATH[:DTYPE]"));
        }
        Ok(ModelArgument { name: name.map(str::to_owned), target: target.to_owned(), dtype })
    }
}

impl fmt::Display for ModelArgument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = &self.name {
            write!(f, "{name}=")?;
        }
        f.write_str(&self.target)?;
        match self.dtype {
            Some(dtype) => write!(f, ":{dtype}"),
            None => Ok(()),
        }
    }
}

/// Checks that `name` can be a model's name: it becomes a folder, a metric's label and a part of URLs.
///
/// # Errors
/// What is wrong with it.
pub fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    if starts_well && name.len() <= NAME_BYTES_MAX && name.chars().all(allowed) {
        return Ok(());
    }
    Err(format!(
        "'{name}' cannot be a model's name: up to {NAME_BYTES_MAX} letters, digits, '.', '_' and '-', the first a letter, digit or '_'"
    ))
}

/// File names end at 255 bytes; what a profile's or a metric's name adds must fit too.
const NAME_BYTES_MAX: usize = 128;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_apart() {
        let check = |text: &str, name: Option<&str>, target: &str, dtype: Option<Dtype>| {
            let argument: ModelArgument = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
            let expected = ModelArgument { name: name.map(str::to_owned), target: target.to_owned(), dtype };
            assert_eq!(argument, expected);
            assert_eq!(argument.to_string(), text);
        };
        check("tiny-embed", None, "tiny-embed", None);
        check("tiny-embed:int8", None, "tiny-embed", Some(Dtype::Int8));
        check("small=tiny-embed:int8", Some("small"), "tiny-embed", Some(Dtype::Int8));
        check("org/name@v1:f16", None, "org/name@v1", Some(Dtype::F16));
        check("hf:name", None, "hf:name", None);
        check("hf:name:int8", None, "hf:name", Some(Dtype::Int8));
        check("./a:b/model", None, "./a:b/model", None);
    }

    #[test]
    fn bad_arguments_are_refused() {
        let check = |text: &str, part: &str| {
            let error = text.parse::<ModelArgument>().expect_err(text);
            assert!(error.contains(part), "{error}");
        };
        check("", "names no model");
        check(":int8", "names no model");
        check("tiny-embed:fp4", "'fp4' is not one of");
        check("../x=tiny-embed", "cannot be a model's name");
        check("=tiny-embed", "cannot be a model's name");
    }

    #[test]
    fn names_cannot_leave_the_folder() {
        for name in ["", ".", "..", ".hidden", "a/b", "a\\b", "-x", "a b", "é", &"x".repeat(129)] {
            assert!(check_name(name).is_err(), "{name}");
        }
        for name in ["a", "_a", "all-MiniLM-L6-v2", "bge.small_1", &"x".repeat(128)] {
            assert!(check_name(name).is_ok(), "{name}");
        }
    }
}
