//! A connection, encrypted or not, that ends by itself where nothing moves.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::answers::{OfConnection, Untaken};
use super::peers::Peer;
use super::tls::Protocol;
use crate::service::activity::Activity;

/// With so many bytes an HTTP/2 connection begins. Until they are there nothing else watches it; over HTTP/1 the headers
/// have their own time.
const PREFACE: usize = 24;

/// How long a client may take for them.
const PREFACE_TIME: Duration = Duration::from_secs(10);

/// How long a client may take nothing of what is sent to it. One that never reads would hold its answers for ever. The system
/// says that there is room again only when a third of its buffer is free, some megabytes to a client on the same
/// machine: whoever reads, slow as he may be, has to have taken so much by then.
const STALL_TIME: Duration = Duration::from_secs(300);

/// How long a connection for gRPC may stay open without a call. Its pings show that the client is there, not that it wants
/// anything.
const IDLE_TIME: Duration = Duration::from_secs(600);

/// Bytes that connections have taken, all of them together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written(Arc<AtomicU64>);

impl Written {
    /// How many.
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a connection is made of.
pub(super) enum Stream {
    Plain(TcpStream),
    Encrypted(Box<TlsStream<TcpStream>>),
}

/// Why we end a connection.
enum Ended {
    /// There has been no call for long.
    Idle,
    /// An answer has not been taken for long.
    Untaken,
}

/// A place among the connections of a listener.
pub(super) struct Place {
    pub(super) _of_all: OwnedSemaphorePermit,
    pub(super) _of_peer: Peer,
}

/// A connection with its place among those of its listener.
pub(crate) struct Connection {
    stream: Stream,
    /// Bytes that are awaited, and until when.
    awaited: Option<(usize, Pin<Box<Sleep>>)>,
    /// Until when what is written has to move on, while it does not.
    stalled: Option<Pin<Box<Sleep>>>,
    written: Written,
    calls: OfConnection,
    /// Why a connection is ended on which nothing is wrong; `None` where something else sees to that.
    ended: Option<Pin<Box<dyn Future<Output = Ended> + Send>>>,
    _place: Place,
}

impl Connection {
    pub(super) fn new(stream: Stream, protocol: Protocol, written: Written, place: Place) -> Connection {
        Connection::idle_for(IDLE_TIME, stream, protocol, written, place)
    }

    fn idle_for(most: Duration, stream: Stream, protocol: Protocol, written: Written, place: Place) -> Connection {
        let calls = OfConnection { calls: Activity::new(), untaken: Untaken::new(STALL_TIME) };
        let (awaited, ended) = match protocol {
            Protocol::Grpc => {
                let OfConnection { calls, untaken } = calls.clone();
                let ended = async move {
                    tokio::select! {
                        () = calls.ceases(most) => Ended::Idle,
                        () = untaken.lasts() => Ended::Untaken,
                    }
                };
                (Some((PREFACE, Box::pin(sleep(PREFACE_TIME)))), Some(Box::pin(ended) as _))
            }
            Protocol::Http => (None, None),
        };
        Connection { stream, awaited, stalled: None, written, calls, ended, _place: place }
    }

    /// What comes of reading where nothing has come.
    fn nothing_read(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(ended) = &mut self.ended else { return Poll::Pending };
        let why = ready!(ended.as_mut().poll(context));
        self.ended = None;
        Poll::Ready(match why {
            // As if the client had closed it.
            Ended::Idle => Ok(()),
            Ended::Untaken => Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not take an answer")),
        })
    }

    fn count(&self, written: &Poll<io::Result<usize>>) {
        if let Poll::Ready(Ok(bytes)) = written {
            self.written.0.fetch_add(*bytes as u64, Ordering::Relaxed);
        }
    }

    /// What came of writing, or that nothing has come of it for too long.
    fn moving<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(STALL_TIME)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing of what is sent to it")))
    }
}

impl Connected for Connection {
    type ConnectInfo = OfConnection;

    fn connect_info(&self) -> OfConnection {
        self.calls.clone()
    }
}

/// A call of the stream within, whatever it is.
macro_rules! within {
    ($this:ident, $stream:ident => $call:expr) => {
        match &mut $this.stream {
            Stream::Plain(stream) => {
                let $stream = Pin::new(stream);
                $call
            }
            Stream::Encrypted(stream) => {
                let $stream = Pin::new(stream.as_mut());
                $call
            }
        }
    };
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        let read = within!(this, stream => stream.poll_read(context, buffer));
        let Some((bytes, until)) = &mut this.awaited else {
            return if read.is_pending() { this.nothing_read(context) } else { read };
        };
        if read.is_ready() {
            *bytes = bytes.saturating_sub(buffer.filled().len() - before);
            if *bytes == 0 {
                this.awaited = None;
            }
            return read;
        }
        ready!(until.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not begin")))
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = within!(this, stream => stream.poll_write(context, bytes));
        this.count(&written);
        this.moving(context, written)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let written = within!(this, stream => stream.poll_flush(context));
        this.moving(context, written)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let written = within!(this, stream => stream.poll_shutdown(context));
        this.moving(context, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = within!(this, stream => stream.poll_write_vectored(context, bytes));
        this.count(&written);
        this.moving(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Encrypted(stream) => stream.is_write_vectored(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use tokio::io::AsyncReadExt;
    use tokio::net::TcpListener;
    use tokio::sync::Semaphore;
    use tokio::time::timeout;

    use super::super::peers::Peers;
    use super::*;

    #[tokio::test]
    async fn a_connection_without_calls_is_closed_and_one_with_a_call_is_not() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let stream = Stream::Plain(listener.accept().await.unwrap().0);
        let peer = Peers::new(1).enter(IpAddr::from([127, 0, 0, 1])).unwrap();
        let place = Place { _of_all: Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap(), _of_peer: peer };
        let most = Duration::from_millis(100);
        let mut connection = Connection::idle_for(most, stream, Protocol::Grpc, Written::default(), place);
        tokio::io::AsyncWriteExt::write_all(&mut client, &[0; PREFACE]).await.unwrap();
        connection.read_exact(&mut [0; PREFACE]).await.unwrap();
        let call = connection.connect_info().calls.begin();
        assert!(timeout(most * 4, connection.read(&mut [0])).await.is_err());
        drop(call);
        assert_eq!(timeout(most * 40, connection.read(&mut [0])).await.unwrap().unwrap(), 0);
    }
}
