//! Pages of which origins a browser may let call.

use super::written::{Form, Written};

/// The origins of pages whose scripts may call over HTTP. A browser keeps to it; other clients do not ask.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origins {
    /// No page's but the server's own.
    None,
    /// Every page's.
    Any,
    /// Those of these: scheme, host, and port where it is not the scheme's own.
    Listed(Vec<String>),
}

impl Written for Origins {
    const FORM: Form = Form::Text;

    fn allowed() -> String {
        "\"none\", \"*\", or origins such as \"http://localhost:5173,http://localhost:8080\"".into()
    }

    fn read(text: &str) -> Option<Origins> {
        match text {
            "none" => Some(Origins::None),
            "*" => Some(Origins::Any),
            list => {
                let origins: Vec<String> = list.split(',').map(|origin| origin.trim().to_owned()).collect();
                origins.iter().all(|origin| is_origin(origin)).then_some(Origins::Listed(origins))
            }
        }
    }

    fn show(&self) -> String {
        match self {
            Origins::None => "none".into(),
            Origins::Any => "*".into(),
            Origins::Listed(origins) => origins.join(","),
        }
    }
}

/// Whether it is one as a browser sends it: in small letters, nothing behind the port.
fn is_origin(text: &str) -> bool {
    let Some((scheme, host)) = text.split_once("://") else { return false };
    let of_scheme = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
    let of_host = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-._:[]".contains(c);
    !scheme.is_empty() && scheme.chars().all(of_scheme) && !host.is_empty() && host.chars().all(of_host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_read_and_shown() {
        for text in
            ["none", "*", "https://page.invalid", "http://localhost:5173,https://a.page.invalid", "http://[::1]:80"]
        {
            assert_eq!(Origins::read(text).unwrap().show(), text);
        }
        let spaced = Origins::read("https://a.invalid, https://b.invalid").unwrap();
        assert_eq!(spaced.show(), "https://a.invalid,https://b.invalid");
        for text in [
            "",
            "page.invalid",
            "https://",
            "https://page.invalid/",
            "https://Page.invalid",
            "https://a.invalid,",
            "*,*",
        ] {
            assert_eq!(Origins::read(text), None, "{text}");
        }
    }
}
