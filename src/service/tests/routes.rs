//! What is asked where nothing is, or in a way that it does not take, is told in the form of its interface.

use axum::http::{Method, StatusCode};

use super::http::Front;

#[tokio::test]
async fn what_is_not_there_is_told_in_the_form_of_its_interface() {
    let front = Front::new();
    let (get, post) = (Method::GET, Method::POST);
    for (method, path, status) in [
        (&get, "/v2/modles/embed", 404),
        (&post, "/v2/models/embed/generate", 404),
        (&get, "/v2/models/embed/", 404),
        (&get, "/v2/models/embed/infer", 405),
        (&post, "/v2/health/ready", 405),
        (&post, "/v2", 405),
        (&get, "/v1/embeddings", 405),
        (&post, "/v1/chat/completions", 404),
        (&get, "/models/embed/v1/embeddings", 405),
        (&get, "/embed", 405),
        (&get, "/models/embed/embed", 405),
        (&post, "/generate", 404),
        (&get, "/models/embed/generate", 404),
    ] {
        let (found, headers, answer) = front.call(method.clone(), path, "", String::new()).await;
        assert_eq!(found.as_u16(), status, "{method} {path}: {answer}");
        let error = &answer["error"];
        let text = match path.contains("/v1/") {
            true => {
                assert_eq!(error["type"], "invalid_request_error", "{answer}");
                &error["message"]
            }
            false => error,
        };
        assert_eq!(answer.get("error_type").is_some(), !path.contains("/v1/") && !path.starts_with("/v2"), "{answer}");
        let text = text.as_str().unwrap_or_else(|| panic!("{path}: {answer}"));
        assert!(text.contains(&format!("'{path}'")), "{text}");
        let allowed = headers.get("allow").map(|allowed| allowed.to_str().unwrap());
        let other = if *method == get { "POST" } else { "GET" };
        let is_told = allowed.is_some_and(|allowed| allowed.contains(other));
        assert_eq!(is_told, found == StatusCode::METHOD_NOT_ALLOWED, "{method} {path}: {allowed:?}");
    }
}
