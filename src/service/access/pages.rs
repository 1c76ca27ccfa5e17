//! Web pages: a browser on this machine reaches what is meant for this machine alone, and calls for whatever page asks it to.
//! What it says of the page decides. Other clients say nothing of the kind.

use axum::http::header::{HOST, HeaderName, ORIGIN};
use axum::http::{HeaderMap, Uri};

use super::methods::is_admin;
use super::{Access, Refusal};
use crate::config::Origins;

/// Who a browser asks for, as it sees it; no page can set it.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

impl Access {
    /// Refuses a call over HTTP that comes from a page of elsewhere, where nothing else tells pages from their users: where
    /// there are no tokens, on an address of this machine alone.
    pub(super) fn admit_page(&self, uri: &Uri, headers: &HeaderMap, origins: &Origins) -> Result<(), Refusal> {
        if !self.is_loopback || self.asks_for_tokens() {
            return Ok(());
        }
        let page = Page::of(uri, headers);
        let is_listed = page.is_listed(origins);
        if page.is_foreign() && !is_listed && *origins != Origins::Any {
            return Err(Refusal::ForeignPage);
        }
        if is_admin(uri.path()) && !self.asks_for_admin_tokens() {
            if (page.is_foreign() || page.site == Some("cross-site")) && !is_listed {
                return Err(Refusal::ForeignPage);
            }
            // A name of elsewhere that leads to this machine makes its pages those of the server.
            if !page.host.is_none_or(is_of_this_machine) {
                return Err(Refusal::ForeignHost);
            }
        }
        Ok(())
    }
}

/// What is said of the page that calls.
struct Page<'a> {
    origin: Option<&'a str>,
    /// The server's name and port, as the page has it.
    host: Option<&'a str>,
    site: Option<&'a str>,
}

impl<'a> Page<'a> {
    fn of(uri: &'a Uri, headers: &'a HeaderMap) -> Page<'a> {
        // What is no text is nobody's name.
        let text = |name| headers.get(name).map(|value| value.to_str().unwrap_or_default());
        let host = text(HOST).or_else(|| uri.authority().map(|authority| authority.as_str()));
        Page { origin: text(ORIGIN), host, site: text(FETCH_SITE) }
    }

    /// Whether it is a page of another server. One behind a proxy may know us by another name: its browser says so.
    fn is_foreign(&self) -> bool {
        let Some(origin) = self.origin else { return false };
        let server = origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
        let is_own = server.zip(self.host).is_some_and(|(server, host)| server.eq_ignore_ascii_case(host));
        !is_own && self.site != Some("same-origin")
    }

    fn is_listed(&self, origins: &Origins) -> bool {
        match (origins, self.origin) {
            (Origins::Listed(listed), Some(origin)) => listed.iter().any(|listed| listed == origin),
            _ => false,
        }
    }
}

/// Whether nobody else's name leads here: `localhost`, those below it, and numbers.
fn is_of_this_machine(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => {
            return rest.split_once(']').is_some_and(|(address, _)| address.parse::<std::net::Ipv6Addr>().is_ok());
        }
        None => host.split_once(':').map_or(host, |(name, _)| name),
    };
    let name = name.to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || name.parse::<std::net::Ipv4Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: &str = "/embed";
    const LOAD: &str = "/v2/repository/models/a/load";

    /// What comes of a call with these headers at a server on this machine without tokens.
    fn answer(path: &str, given: &[(&'static str, &str)], origins: &Origins) -> Result<(), Refusal> {
        let access = Access::open([127, 0, 0, 1].into(), None, None).unwrap();
        let headers =
            given.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect();
        access.admit_page(&path.parse().unwrap(), &headers, origins)
    }

    #[test]
    fn programs_may_call_and_administrate() {
        for host in ["127.0.0.1:8000", "localhost:8000", "LOCALHOST", "a.localhost:1", "[::1]:8000", "10.0.0.7:80"] {
            for path in [CALL, LOAD] {
                assert_eq!(answer(path, &[("host", host)], &Origins::None), Ok(()), "{path} {host}");
            }
        }
        assert_eq!(answer(LOAD, &[], &Origins::None), Ok(()));
        // Whatever name they know us by.
        assert_eq!(answer(CALL, &[("host", "models.invalid")], &Origins::None), Ok(()));
    }

    #[test]
    fn pages_of_the_server_may_and_others_may_not() {
        let here = ("host", "127.0.0.1:8000");
        for path in [CALL, LOAD] {
            let check = |given: &[_], expected| assert_eq!(answer(path, given, &Origins::None), expected, "{given:?}");
            check(&[here, ("origin", "http://127.0.0.1:8000")], Ok(()));
            check(&[here, ("origin", "http://127.0.0.1:8000"), ("sec-fetch-site", "same-origin")], Ok(()));
            for origin in
                ["http://evil.invalid", "http://127.0.0.1:3000", "null", "", "http://127.0.0.1:8000.evil.invalid"]
            {
                check(&[here, ("origin", origin)], Err(Refusal::ForeignPage));
                check(&[here, ("origin", origin), ("sec-fetch-site", "cross-site")], Err(Refusal::ForeignPage));
            }
            // Behind a proxy that does not tell us our name.
            check(&[here, ("origin", "https://app.invalid"), ("sec-fetch-site", "same-origin")], Ok(()));
        }
        // No header of the page's, such as of a picture.
        assert_eq!(answer(CALL, &[here, ("sec-fetch-site", "cross-site")], &Origins::None), Ok(()));
        assert_eq!(answer(LOAD, &[here, ("sec-fetch-site", "cross-site")], &Origins::None), Err(Refusal::ForeignPage));
    }

    #[test]
    fn a_name_of_elsewhere_that_leads_here_administrates_nothing() {
        for host in ["evil.invalid:8000", "evil.invalid", "localhost.evil.invalid", "127.0.0.1.evil.invalid", "", "[x]"]
        {
            let given = [("host", host), ("origin", &format!("http://{host}"))];
            assert_eq!(answer(LOAD, &given, &Origins::None), Err(Refusal::ForeignHost), "{host}");
            assert_eq!(answer(LOAD, &given[..1], &Origins::None), Err(Refusal::ForeignHost), "{host}");
        }
    }

    #[test]
    fn pages_that_are_listed_may() {
        let given = [("host", "127.0.0.1:8000"), ("origin", "http://a.invalid"), ("sec-fetch-site", "cross-site")];
        let listed = Origins::Listed(vec!["http://a.invalid".to_owned()]);
        for path in [CALL, LOAD] {
            assert_eq!(answer(path, &given, &listed), Ok(()));
        }
        let others = Origins::Listed(vec!["http://b.invalid".to_owned()]);
        assert_eq!(answer(CALL, &given, &others), Err(Refusal::ForeignPage));
        // A star lets every page call, and none administrate.
        assert_eq!(answer(CALL, &given, &Origins::Any), Ok(()));
        assert_eq!(answer(LOAD, &given, &Origins::Any), Err(Refusal::ForeignPage));
    }

    #[test]
    fn where_others_reach_the_server_tokens_decide() {
        let access = Access::open([0, 0, 0, 0].into(), None, None).unwrap();
        let headers = [(ORIGIN, "http://evil.invalid".parse().unwrap())].into_iter().collect();
        assert_eq!(access.admit_page(&CALL.parse().unwrap(), &headers, &Origins::None), Ok(()));
    }
}
