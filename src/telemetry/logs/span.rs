//! What every line about a request carries: its id and its place in the caller's trace.

use std::borrow::Cow;
use std::fmt;

use tracing::Span;

/// Longest client-chosen name that a line carries.
const NAME_MAX: usize = 128;

/// A W3C `traceparent` header: proof that the text is of the standard's form and safe in a log line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Traceparent(String);

impl Traceparent {
    /// The header's value, if it is of version 00 with non-zero ids; a malformed one is ignored, as the standard says.
    pub fn parse(header: &str) -> Option<Traceparent> {
        let mut parts = header.split('-');
        let (version, trace, parent, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        let hex =
            |part: &str, length| part.len() == length && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        let named = |part: &str| part.bytes().any(|b| b != b'0');
        let valid = version == "00"
            && hex(trace, 32)
            && hex(parent, 16)
            && hex(flags, 2)
            && named(trace)
            && named(parent)
            && parts.next().is_none();
        valid.then(|| Traceparent(header.to_owned()))
    }
}

impl fmt::Display for Traceparent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The span of one call. Everything logged inside carries its fields.
pub fn request_span(method: &'static str, model: &str, request_id: &str, trace: Option<&Traceparent>) -> Span {
    tracing::info_span!(
        "request",
        method,
        model = %sanitized(model),
        request_id = %sanitized(request_id),
        traceparent = trace.map(tracing::field::display),
    )
}

/// A name that a client chose, fit for a log line: printable ASCII, at most 128 characters; anything else becomes `?`.
pub fn sanitized(name: &str) -> Cow<'_, str> {
    if name.len() <= NAME_MAX && name.bytes().all(|b| b.is_ascii_graphic()) {
        return Cow::Borrowed(name);
    }
    Cow::Owned(name.chars().take(NAME_MAX).map(|c| if c.is_ascii_graphic() { c } else { '?' }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_standards_form_is_a_traceparent() {
        #[track_caller]
        fn check(header: &str, valid: bool) {
            assert_eq!(Traceparent::parse(header).is_some(), valid, "{header:?}");
        }
        check("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", true);
        check("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00", true);
        check("", false);
        check("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331", false);
        check("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more", false);
        check("ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", false);
        check("00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01", false);
        check("00-00000000000000000000000000000000-b7ad6b7169203331-01", false);
        check("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", false);
        check("00-0af7651916cd43dd8448eb211c80319\n-b7ad6b7169203331-01", false);
    }

    #[test]
    fn a_clients_name_cannot_forge_a_line() {
        #[track_caller]
        fn check(name: &str, expected: &str) {
            assert_eq!(sanitized(name), expected);
        }
        check("", "");
        check("client-7:a/b", "client-7:a/b");
        check("a b\r\n{\"level\":\"ERROR\"}", "a?b??{\"level\":\"ERROR\"}");
        check("naïve", "na?ve");
        assert_eq!(sanitized(&"x".repeat(1000)).len(), NAME_MAX);
        assert_eq!(sanitized(&"ä".repeat(1000)), "?".repeat(NAME_MAX));
    }
}
