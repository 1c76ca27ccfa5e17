//! The HTTP port beside gRPC: metrics for Prometheus, two health checks for an orchestrator, a page for people.

use std::sync::Arc;

use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;

use super::{Metrics, dashboard};

const METRICS_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Whether something holds; the error says, in a sentence for an operator, why not.
pub type Condition = Result<(), String>;

/// The routes of the metrics port.
///
/// - `GET /metrics`: the Prometheus text format;
/// - `GET /health/live`: 200 while the engine's loop turns; a supervisor should restart the process when it does not;
/// - `GET /health/ready`: 200 while every required model is ready and the server is not draining;
/// - `GET /dashboard`: a page for people that shows the metrics as they are.
///
/// A check that does not hold answers 503 and the reason. Both are asked at each request and must not block.
pub fn router(
    metrics: Metrics,
    live: impl Fn() -> Condition + Send + Sync + 'static,
    ready: impl Fn() -> Condition + Send + Sync + 'static,
) -> Router {
    let (live, ready) = (Arc::new(live), Arc::new(ready));
    let is_ready = ready.clone();
    let scraped = move || async move {
        // Asked here as it is there: the two never differ.
        metrics.ready(is_ready().is_ok());
        ([(header::CONTENT_TYPE, METRICS_TYPE)], metrics.encode())
    };
    Router::new()
        .route("/metrics", get(scraped))
        .route("/health/live", get(move || async move { answer(live()) }))
        .route("/dashboard", get(dashboard::page))
        .route("/health/ready", get(move || async move { answer(ready()) }))
}

fn answer(condition: Condition) -> impl IntoResponse {
    match condition {
        Ok(()) => (StatusCode::OK, "ok\n".to_owned()),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use axum::http::Request;
    use tower::ServiceExt;

    use super::*;

    async fn get(path: &str) -> (StatusCode, String) {
        get_while(path, || Err("model a is being loaded".to_owned())).await
    }

    async fn get_while(path: &str, ready: fn() -> Condition) -> (StatusCode, String) {
        let metrics = Metrics::new();
        metrics.model("a").state("ready");
        let app = router(metrics, || Ok(()), ready);
        let response = app.oneshot(Request::get(path).body(Body::empty()).expect("a valid request")).await;
        let (parts, body) = response.expect("the router is infallible").into_parts();
        let bytes = axum::body::to_bytes(body, 1 << 20).await.expect("a small body");
        (parts.status, String::from_utf8(bytes.to_vec()).expect("the answers are text"))
    }

    #[tokio::test]
    async fn a_condition_that_holds_is_200_and_one_that_does_not_is_503_with_its_reason() {
        assert_eq!(get("/health/live").await, (StatusCode::OK, "ok\n".to_owned()));
        assert_eq!(
            get("/health/ready").await,
            (StatusCode::SERVICE_UNAVAILABLE, "model a is being loaded\n".to_owned())
        );
        assert_eq!(get("/health").await.0, StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn metrics_are_prometheus_text() {
        let (status, body) = get("/metrics").await;
        assert_eq!(status, StatusCode::OK);
        assert!(body.contains("# TYPE plimsoll_requests_total counter\n"), "{body}");
        assert!(body.contains(r#"plimsoll_model_state{model="a",state="ready"} 1.0"#), "{body}");
        assert!(body.contains("\nplimsoll_ready 0.0\n"), "{body}");
    }

    #[tokio::test]
    async fn a_server_that_is_ready_says_so_in_both_places() {
        assert_eq!(get_while("/health/ready", || Ok(())).await.0, StatusCode::OK);
        let (_, body) = get_while("/metrics", || Ok(())).await;
        assert!(body.contains("\nplimsoll_ready 1.0\n"), "{body}");
    }
}
