//! Where traces go, and how many of them.

use super::written::{Form, Written};

/// Where a collector takes traces over gRPC, which may be left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OptionalEndpoint {
    /// There is none.
    None,
    /// This one, with its scheme, host and port.
    At(String),
}

impl OptionalEndpoint {
    /// Its address, if there is one.
    pub fn get(&self) -> Option<&str> {
        match self {
            OptionalEndpoint::None => None,
            OptionalEndpoint::At(endpoint) => Some(endpoint),
        }
    }
}

impl Written for OptionalEndpoint {
    const FORM: Form = Form::Text;

    fn allowed() -> String {
        "\"none\", or where a collector listens for gRPC without TLS, such as \"http://127.0.0.1:4317\"".into()
    }

    fn read(text: &str) -> Option<OptionalEndpoint> {
        if text == "none" {
            return Some(OptionalEndpoint::None);
        }
        let endpoint = text.strip_suffix('/').unwrap_or(text);
        let (host, port) = endpoint.strip_prefix("http://")?.rsplit_once(':')?;
        let is_address = host.starts_with('[') && host.ends_with(']') && host.len() > 2;
        let in_host =
            |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_') || (is_address && "[:]".contains(c));
        let is_host = !host.is_empty() && host.chars().all(in_host);
        let is_port = port.parse::<u16>().is_ok_and(|port| port > 0);
        (is_host && is_port).then(|| OptionalEndpoint::At(endpoint.into()))
    }

    fn show(&self) -> String {
        self.get().unwrap_or("none").into()
    }
}

/// A part of a whole.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio(f64);

impl Ratio {
    /// From 0 to 1.
    pub fn get(self) -> f64 {
        self.0
    }
}

impl Written for Ratio {
    const FORM: Form = Form::Number;

    fn allowed() -> String {
        "a number from 0 to 1".into()
    }

    fn read(text: &str) -> Option<Ratio> {
        text.parse().ok().filter(|number| (0.0..=1.0).contains(number)).map(Ratio)
    }

    fn show(&self) -> String {
        self.0.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_have_a_scheme_a_host_and_a_port() {
        for text in ["http://127.0.0.1:4317", "http://localhost:4317", "http://[::1]:4317", "none"] {
            let endpoint = OptionalEndpoint::read(text).unwrap_or_else(|| panic!("{text}"));
            assert_eq!(endpoint.show(), text);
        }
        let with_slash = OptionalEndpoint::read("http://127.0.0.1:4317/");
        assert_eq!(with_slash, Some(OptionalEndpoint::At("http://127.0.0.1:4317".into())));
        let refused = ["", "127.0.0.1:4317", "https://127.0.0.1:4317", "http://127.0.0.1", "http://:4317"];
        let refused = refused.into_iter().chain([
            "http://127.0.0.1:0",
            "http://127.0.0.1 :1",
            "http://[]:1",
            "http://localhost:1/v1",
        ]);
        for text in refused {
            assert_eq!(OptionalEndpoint::read(text), None, "{text}");
        }
    }

    #[test]
    fn ratios_are_from_0_to_1() {
        for text in ["0", "0.05", "1"] {
            assert_eq!(Ratio::read(text).map(|ratio| ratio.show()).as_deref(), Some(text));
        }
        for text in ["", "-0.1", "1.1", "NaN", "all"] {
            assert_eq!(Ratio::read(text), None, "{text}");
        }
    }
}
