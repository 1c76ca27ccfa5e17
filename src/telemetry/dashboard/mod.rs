//! The dashboard: one page that reads the metrics, second by second. Nothing of it comes from elsewhere.

use axum::http::header;
use axum::response::IntoResponse;

const PAGE: &str = include_str!("page.html");

/// The page may run what is in it and ask the server that it came from, and nothing else.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; \
                      frame-ancestors 'none'; base-uri 'none'; form-action 'none'";

/// The answer to `GET /dashboard`.
pub(super) async fn page() -> impl IntoResponse {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-cache"),
    ];
    (headers, PAGE)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::telemetry::Metrics;

    /// Names in a text that look like metrics, without what a histogram adds.
    fn names(text: &str) -> BTreeSet<String> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| word.starts_with("plimsoll_")).map(str::to_owned).collect()
    }

    #[test]
    fn every_metric_of_the_page_is_there() {
        let known = names(&Metrics::new().reference());
        let unknown: Vec<_> = names(PAGE)
            .into_iter()
            // Put together from their parts: those are looked at below.
            .filter(|name| name != "plimsoll_device_")
            .filter(|name| !known.contains(name))
            .collect();
        assert_eq!(unknown, Vec::<String>::new());
        for part in PAGE.split("of(\"").skip(1).filter_map(|rest| rest.split('"').next()) {
            let name = format!("plimsoll_device_{part}_bytes");
            assert!(known.contains(&name), "{name}");
        }
    }

    #[test]
    fn nothing_comes_from_elsewhere() {
        let outside = ["http://", "https://", "src=", "@import", "url("];
        for mark in outside {
            assert!(!PAGE.contains(mark), "{mark}");
        }
    }
}
