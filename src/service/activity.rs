//! Whether anything happens on a stream, or on a connection.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::time::sleep;

/// What is in flight there, and when something last came or went.
#[derive(Debug)]
pub(crate) struct Activity(Mutex<State>);

#[derive(Clone, Copy, Debug)]
struct State {
    in_flight: usize,
    last: Instant,
}

impl Activity {
    pub(crate) fn new() -> Arc<Activity> {
        Arc::new(Activity(Mutex::new(State { in_flight: 0, last: Instant::now() })))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request has come, and is in flight until the result is dropped.
    pub(crate) fn begin(self: &Arc<Self>) -> Busy {
        let mut state = self.state();
        *state = State { in_flight: state.in_flight + 1, last: Instant::now() };
        Busy(self.clone())
    }

    /// Comes back when nothing has been in flight, come or gone for so long.
    pub(crate) async fn ceases(&self, most: Duration) {
        loop {
            let State { in_flight, last } = *self.state();
            let left = if in_flight > 0 { most } else { most.saturating_sub(last.elapsed()) };
            if left.is_zero() {
                return;
            }
            sleep(left).await;
        }
    }
}

/// A request that is in flight.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        let mut state = self.0.state();
        *state = State { in_flight: state.in_flight.saturating_sub(1), last: Instant::now() };
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn it_ceases_only_while_nothing_is_in_flight() {
        let (activity, most) = (Activity::new(), Duration::from_millis(50));
        activity.ceases(most).await;
        let busy = activity.begin();
        assert!(timeout(most * 4, activity.ceases(most)).await.is_err());
        let ended = Instant::now();
        drop(busy);
        activity.ceases(most).await;
        assert!(ended.elapsed() >= most);
    }
}
