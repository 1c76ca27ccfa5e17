//! Connections as they come in, each after its handshake.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;

use super::connection::{Connection, Place, Stream, Written};
use super::peers::Peers;
use super::tls::{Protocol, Tls};

/// How long a client may take for its handshake. What it does not finish costs some KiB and a socket meanwhile.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);

/// Connections of a listener at a time, those in handshake among them. Beyond, they wait in the system's queue: a process
/// has files to open beside them.
const CONNECTIONS_MAX: usize = 8192;

/// Those of one peer, so that it leaves some for others. Beyond, they are closed at once.
const CONNECTIONS_OF_ONE: usize = CONNECTIONS_MAX / 2;

/// Connections that are ready and that nobody has taken yet.
const READY_MAX: usize = 64;

/// How long nothing is accepted after the system has refused to: usually this process has too many open files, and some
/// of them have to be closed first.
const PAUSE: Duration = Duration::from_millis(100);

/// What becomes of connections.
#[derive(Clone)]
pub(crate) struct Accepting {
    /// How they are encrypted, if they are.
    pub(crate) tls: Option<Arc<Tls>>,
    /// What is spoken over them.
    pub(crate) protocol: Protocol,
    /// Where what they write is counted.
    pub(crate) written: Written,
}

/// The connections of a listener, to the last that came before it was told to stop.
pub(crate) struct Incoming {
    ready: mpsc::Receiver<Connection>,
}

impl Incoming {
    /// Accepts until the sender of `stopped` is gone, or this is dropped; the port is closed then. What is in handshake
    /// may finish it.
    pub(crate) fn new(listener: TcpListener, accepting: Accepting, stopped: watch::Receiver<()>) -> Incoming {
        let (sender, ready) = mpsc::channel(READY_MAX);
        tokio::spawn(accept(listener, accepting, sender, stopped));
        Incoming { ready }
    }

    /// The next one; `None` when there will be none.
    pub(crate) async fn next(&mut self) -> Option<Connection> {
        self.ready.recv().await
    }

    /// The same as a stream, which tonic wants.
    pub(crate) fn into_stream(self) -> impl tokio_stream::Stream<Item = io::Result<Connection>> + Send + 'static {
        use tokio_stream::StreamExt;
        ReceiverStream::new(self.ready).map(Ok)
    }
}

async fn accept(
    listener: TcpListener,
    accepting: Accepting,
    ready: mpsc::Sender<Connection>,
    mut stopped: watch::Receiver<()>,
) {
    let (places, peers) = (Arc::new(Semaphore::new(CONNECTIONS_MAX)), Peers::new(CONNECTIONS_OF_ONE));
    let mut refused = false;
    loop {
        let accepted = async {
            let place = places.clone().acquire_owned().await;
            (listener.accept().await, place)
        };
        let accepted = tokio::select! {
            accepted = accepted => accepted,
            // Nothing is ever sent over it.
            _ = stopped.changed() => return,
            () = ready.closed() => return,
        };
        let (stream, address, place) = match accepted {
            (Ok((stream, address)), Ok(place)) => (stream, address.ip(), place),
            // Nobody closes the semaphore.
            (_, Err(_)) => return,
            (Err(error), _) => {
                // One that was given up while it waited is nobody's trouble.
                if !matches!(error.kind(), io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset) {
                    // Said once for as long as it lasts.
                    if !std::mem::replace(&mut refused, true) {
                        tracing::warn!(%error, "connections cannot be accepted");
                    }
                    sleep(PAUSE).await;
                }
                continue;
            }
        };
        refused = false;
        let Some(peer) = peers.enter(address) else {
            tracing::debug!(%address, most = CONNECTIONS_OF_ONE, "a connection of a peer that has too many is closed");
            continue;
        };
        let place = Place { _of_all: place, _of_peer: peer };
        // Small messages are not to wait for one another.
        let _ = stream.set_nodelay(true);
        let (Accepting { tls, protocol, written }, ready) = (accepting.clone(), ready.clone());
        let begin = async move {
            let stream = match tls {
                None => Some(Stream::Plain(stream)),
                Some(tls) => shake_hands(stream, &tls, protocol).await,
            };
            if let Some(stream) = stream {
                // An error means that nobody takes connections any more.
                let _ = ready.send(Connection::new(stream, protocol, written, place)).await;
            }
        };
        // None of them is to wait for another.
        tokio::spawn(begin);
    }
}

async fn shake_hands(stream: TcpStream, tls: &Tls, protocol: Protocol) -> Option<Stream> {
    match timeout(HANDSHAKE_TIME, tls.acceptor(protocol).accept(stream)).await {
        Ok(Ok(stream)) => Some(Stream::Encrypted(Box::new(stream))),
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
