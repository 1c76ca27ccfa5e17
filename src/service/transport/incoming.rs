//! Connections as they come in, each after its handshake.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;

use super::connection::Connection;
use super::tls::{Protocol, Tls};

/// How long a client may take for its handshake. What it does not finish costs some KiB and a socket meanwhile.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// Handshakes at a time. Beyond, connections wait in the system's queue.
const HANDSHAKES_MAX: usize = 512;

/// Connections that are ready and that nobody has taken yet.
const READY_MAX: usize = 64;

/// How long nothing is accepted after the system has refused to: usually this process has too many open files, and some
/// of them have to be closed first.
const PAUSE: Duration = Duration::from_millis(100);

/// The connections of a listener. The port is closed when this is dropped.
pub(crate) struct Incoming {
    ready: mpsc::Receiver<Connection>,
}

impl Incoming {
    /// Starts to accept.
    pub(crate) fn new(listener: TcpListener, tls: Option<Arc<Tls>>, protocol: Protocol) -> Incoming {
        let (sender, ready) = mpsc::channel(READY_MAX);
        tokio::spawn(accept(listener, tls, protocol, sender));
        Incoming { ready }
    }

    /// The next one; `None` when there will be none.
    pub(crate) async fn next(&mut self) -> Option<Connection> {
        self.ready.recv().await
    }

    /// The same as a stream, which tonic wants.
    pub(crate) fn into_stream(self) -> impl tokio_stream::Stream<Item = io::Result<Connection>> {
        use tokio_stream::StreamExt;
        ReceiverStream::new(self.ready).map(Ok)
    }
}

async fn accept(listener: TcpListener, tls: Option<Arc<Tls>>, protocol: Protocol, ready: mpsc::Sender<Connection>) {
    let handshakes = Arc::new(Semaphore::new(HANDSHAKES_MAX));
    loop {
        let Ok(permit) = handshakes.clone().acquire_owned().await else { return };
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = ready.closed() => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // One that was given up while it waited is nobody's trouble.
                if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
                    tracing::warn!(%error, "a connection cannot be accepted");
                    sleep(PAUSE).await;
                }
                continue;
            }
        };
        // Small messages are not to wait for one another.
        let _ = stream.set_nodelay(true);
        let Some(tls) = &tls else {
            if ready.send(Connection::Plain(stream)).await.is_err() {
                return;
            }
            continue;
        };
        let (tls, ready) = (tls.clone(), ready.clone());
        tokio::spawn(async move {
            if let Some(connection) = shake_hands(stream, &tls, protocol).await {
                // An error means that the port has been closed meanwhile.
                let _ = ready.send(connection).await;
            }
            drop(permit);
        });
    }
}

async fn shake_hands(stream: TcpStream, tls: &Tls, protocol: Protocol) -> Option<Connection> {
    match timeout(HANDSHAKE_TIME, tls.acceptor(protocol).accept(stream)).await {
        Ok(Ok(stream)) => Some(Connection::Encrypted(Box::new(stream))),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a handshake failed");
            None
        }
        Err(_) => {
            tracing::debug!("a handshake was not finished in time");
            None
        }
    }
}
