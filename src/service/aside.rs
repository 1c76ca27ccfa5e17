//! Work that takes long, away from the threads of connections: there are few of those for all of them.

use super::errors::Problem;

/// So many values are worked on without other calls noticing.
pub(crate) const VALUES_IN_PASSING: usize = 1 << 16;

/// Does the work, on a thread of its own if it is long.
///
/// # Errors
/// [`Problem::Panicked`] if it did there.
pub(crate) async fn aside<T: Send + 'static>(
    is_long: bool,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Problem> {
    match is_long {
        true => tokio::task::spawn_blocking(work).await.map_err(|_| Problem::Panicked),
        false => Ok(work()),
    }
}
