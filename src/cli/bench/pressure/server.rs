//! A server of this executable, started for one arm.

use std::ffi::OsString;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use super::enclosure::Enclosure;
use super::room::Room;
use crate::cli::bench::client::{Client, Protocol};
use crate::cli::bench::connect::CredentialArgs;

/// How long a server may take until its models are ready and measured. Measuring goes on between requests, so a
/// profile that is not complete by then is no error, only a slower start of the arm.
const SETTLE: Duration = Duration::from_secs(90);

/// How long no model may be ready and none on its way until the server has not started: longer than from the port's
/// opening to the first load's beginning.
const GIVEN_UP: Duration = Duration::from_secs(5);

/// How often it is asked.
const GLANCE: Duration = Duration::from_millis(200);

/// A running server; dropping it kills it.
pub(super) struct Server {
    child: Child,
    address: String,
    log: PathBuf,
}

impl Server {
    /// Starts `plimsoll serve` inside `enclosure`, with its log in `log`.
    ///
    /// # Errors
    /// An executable that cannot be started, or no free port.
    pub(super) fn start(
        program: &Path,
        enclosure: &Enclosure,
        options: &[String],
        log: PathBuf,
    ) -> anyhow::Result<Server> {
        // Another process may take the port before the server does; then the server says so and the arm fails.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        // Where the kernel has to kill someone for want of memory, it shall be the server: the memory is the neighbour's
        // own. Any process may offer itself; sparing the other one needs rights that root in a container often lacks.
        let mut command = enclosure.command(Path::new("/bin/sh"));
        command.args(["-c", "echo 1000 > /proc/self/oom_score_adj; exec \"$0\" \"$@\""]).arg(program);
        command.args(own_arguments(port, enclosure.room())).args(options);
        let place = || format!("{}", log.display());
        let out = File::create(&log).with_context(place)?;
        let child = command
            .stdin(Stdio::null())
            .stdout(out.try_clone().with_context(place)?)
            .stderr(out)
            .spawn()
            .with_context(|| format!("{}", program.display()))?;
        Ok(Server { child, address: format!("127.0.0.1:{port}"), log })
    }

    /// Waits until models answer and, for a while, until their profiles are complete. Gives connections to it.
    ///
    /// # Errors
    /// A server that ends, or has no ready model in time, or none that is still on its way.
    pub(super) async fn settle(&mut self, connections: usize) -> anyhow::Result<Client> {
        let began = Instant::now();
        let mut hopeful = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                bail!("the server ended with {status}: {}", self.last_words());
            }
            // One that answers only with errors is not there yet.
            if let Ok(client) =
                Client::connect(&self.address, &CredentialArgs::default(), Protocol::Plimsoll, connections).await
                && let Ok(models) = client.models().await
            {
                let ready = models.iter().any(|model| model.ready);
                // What is not loaded, or is broken and so not among them, is settled too.
                let settled = models.iter().all(|model| model.settled);
                if ready && (settled || began.elapsed() > SETTLE) {
                    return Ok(client);
                }
                if ready || !settled {
                    hopeful = Instant::now();
                }
            } else {
                hopeful = Instant::now();
            }
            if hopeful.elapsed() > GIVEN_UP {
                bail!("no model is ready, and none is being loaded: {}", self.last_words());
            }
            if began.elapsed() > 2 * SETTLE {
                bail!("no model was ready within {} s: {}", (2 * SETTLE).as_secs(), self.last_words());
            }
            tokio::time::sleep(GLANCE).await;
        }
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still runs.
    pub(super) fn runs(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    /// The last lines of its log.
    fn last_words(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        format!("{}: ...\n{}", self.log.display(), lines[lines.len().saturating_sub(5)..].join("\n"))
    }
}

/// What every server is told, whatever it is compared with.
fn own_arguments(port: u16, room: &Room) -> Vec<OsString> {
    let mut arguments: Vec<OsString> =
        ["serve", "--grpc-port", &port.to_string(), "--http-port", "0", "--metrics-port", "0"]
            .map(OsString::from)
            .into();
    if let Room::File(path) = room {
        arguments.extend(["--memory-reading-file".into(), path.into()]);
    }
    arguments
}

impl Drop for Server {
    fn drop(&mut self) {
        // Nothing it holds is of use any more; a server that is already dead is no error.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn a_server_knows_what_it_is_told() {
        for room in [Room::File("/some/file".into()), Room::Cgroup2("/some/folder".into())] {
            let arguments = std::iter::once(OsString::from("plimsoll")).chain(own_arguments(8001, &room));
            Cli::try_parse_from(arguments).unwrap_or_else(|error| panic!("{room:?}: {error}"));
        }
    }
}
