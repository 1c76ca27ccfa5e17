//! Which pages a browser may let call, by the headers of cross-origin resource sharing.

use axum::http::{HeaderName, HeaderValue, Method};
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

use crate::config::Origins;

/// What a page may read of an answer beside its body.
const EXPOSED: [&str; 7] = [
    "retry-after",
    "x-compute-tokens",
    "x-compute-characters",
    "x-total-time",
    "x-tokenization-time",
    "x-queue-time",
    "x-inference-time",
];

/// Answers browsers that ask before they call, and says in answers whose pages may read them; `None`: nothing is said, so
/// that no page of another origin may.
pub(crate) fn layer(origins: &Origins) -> Option<CorsLayer> {
    let allowed = match origins {
        Origins::None => return None,
        Origins::Any => AllowOrigin::any(),
        // What the configuration has let pass is a header's value.
        Origins::Listed(origins) => {
            AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()))
        }
    };
    let layer = CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST])
        // Tokens, names of models and traces are in headers, which a star does not stand for.
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(EXPOSED.map(HeaderName::from_static));
    Some(layer)
}
