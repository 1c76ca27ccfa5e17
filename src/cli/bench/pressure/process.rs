//! The neighbour as the arm sees it: a process that is started, followed, and told to go on.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use anyhow::Context;
use tokio::sync::oneshot;

use super::neighbour::Event;
use crate::cli::bench::driver::Control;

/// A running neighbour; dropping it kills it.
pub(super) struct NeighbourProcess {
    child: Child,
    listener: Option<JoinHandle<Vec<(Instant, Event)>>>,
    waits: Option<oneshot::Receiver<()>>,
}

impl NeighbourProcess {
    /// Starts it. What it says pauses and ends the calls of `control`.
    ///
    /// # Errors
    /// An executable that cannot be started.
    pub(super) fn start(command: &mut Command, control: Arc<Control>) -> anyhow::Result<NeighbourProcess> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("the neighbour")?;
        let out = child.stdout.take().expect("its stdout was asked for");
        let (says_so, waits) = oneshot::channel();
        let listener = std::thread::spawn(move || listen(BufReader::new(out), &control, says_so));
        Ok(NeighbourProcess { child, listener: Some(listener), waits: Some(waits) })
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns when it waits for the server.
    ///
    /// # Errors
    /// When it ended before that.
    pub(super) async fn until_it_waits(&mut self) -> anyhow::Result<()> {
        let waits = self.waits.take().expect("it waits once");
        waits.await.context("the neighbour ended before the server was to start")
    }

    /// Tells it that the server has started.
    pub(super) fn go_on(&mut self) {
        if let Some(told) = &mut self.child.stdin {
            // One that is gone has said why, and its end is noticed.
            let _ = told.write_all(b"go on\n");
        }
    }

    /// Waits for its end. Returns what it said, and whether it came to the end of its script.
    pub(super) fn finish(mut self) -> (Vec<(Instant, Event)>, bool) {
        let listener = self.listener.take().expect("it is taken here and in `give_up` only");
        let events = listener.join().expect("the listener does not panic");
        (events, self.child.wait().is_ok_and(|status| status.success()))
    }

    /// Ends it now. Returns what it said.
    pub(super) fn give_up(mut self) -> Vec<(Instant, Event)> {
        self.kill();
        let listener = self.listener.take().expect("it is taken here and in `finish` only");
        listener.join().expect("the listener does not panic")
    }

    fn kill(&mut self) {
        // One that has ended is no error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for NeighbourProcess {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Follows what the neighbour says until it ends or dies: pauses and ends the calls, tells when the server is to start,
/// and keeps all of it with the time.
fn listen(out: impl BufRead, control: &Control, waits: oneshot::Sender<()>) -> Vec<(Instant, Event)> {
    let (mut events, mut waits) = (Vec::new(), Some(waits));
    for line in out.lines().map_while(Result::ok) {
        let at = Instant::now();
        let Ok(event) = serde_json::from_str(&line) else { continue };
        match event {
            Event::Load { on } => control.set_paused(!on),
            Event::Waits { .. } => {
                // Where nobody wants to know, the arm has ended.
                waits.take().map(|waits| waits.send(()));
            }
            Event::Takes { .. } | Event::Holds { .. } | Event::Freed { .. } | Event::Asked { .. } | Event::Done => {}
        }
        events.push((at, event));
    }
    control.stop();
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A neighbour that is a shell.
    fn shell(script: &str) -> NeighbourProcess {
        NeighbourProcess::start(Command::new("/bin/sh").args(["-c", script]), Arc::default()).unwrap()
    }

    fn events(said: &[(Instant, Event)]) -> Vec<Event> {
        said.iter().map(|(_, event)| *event).collect()
    }

    const WAITS: &str = r#"{"waits":{"holds":7}}"#;

    #[tokio::test]
    async fn it_is_let_go_on_once_it_waits() {
        let mut neighbour = shell(&format!("echo '{WAITS}'; read line; echo '\"done\"'"));
        neighbour.until_it_waits().await.unwrap();
        neighbour.go_on();
        let (said, finished) = neighbour.finish();
        assert_eq!((events(&said), finished), (vec![Event::Waits { holds: 7 }, Event::Done], true));
    }

    #[tokio::test]
    async fn one_that_ends_too_early_is_an_error() {
        let mut neighbour = shell("exit 1");
        let error = neighbour.until_it_waits().await.unwrap_err().to_string();
        assert!(error.starts_with("the neighbour ended"), "{error}");
        assert!(!neighbour.finish().1);
    }

    #[tokio::test]
    async fn one_that_is_given_up_has_said_what_it_said() {
        let mut neighbour = shell(&format!("echo '{WAITS}'; exec sleep 600"));
        neighbour.until_it_waits().await.unwrap();
        assert_eq!(events(&neighbour.give_up()), [Event::Waits { holds: 7 }]);
    }
}
