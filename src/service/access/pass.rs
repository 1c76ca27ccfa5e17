//! What let a call in, to be looked at again while it lasts.

use std::sync::Arc;

use axum::http::HeaderMap;
use axum::http::header::AUTHORIZATION;

use super::{Access, Door};
use crate::service::errors::Problem;

/// Where a call came in, and with which token.
pub(crate) struct Pass {
    access: Arc<Access>,
    path: String,
    authorization: HeaderMap,
    door: Door,
}

impl Pass {
    /// That of a call with this path and these headers.
    pub(crate) fn new(access: &Arc<Access>, path: &str, headers: &HeaderMap, door: Door) -> Pass {
        let given = headers.get_all(AUTHORIZATION).iter();
        let authorization = given.map(|value| (AUTHORIZATION, value.clone())).collect();
        Pass { access: access.clone(), path: path.to_owned(), authorization, door }
    }

    /// Whether the call would be let in now.
    pub(crate) fn check(&self) -> Result<(), Problem> {
        self.access.admit(&self.path, &self.authorization, self.door)
    }
}

/// Tokens go into no log.
impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pass").field("path", &self.path).field("door", &self.door).finish_non_exhaustive()
    }
}
