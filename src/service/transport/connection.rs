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
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::tls::Protocol;

/// With so many bytes an HTTP/2 connection begins. Until they are there nothing else watches it; over HTTP/1 the headers
/// have their own time.
const PREFACE: usize = 24;

/// How long a client may take for them.
const PREFACE_TIME: Duration = Duration::from_secs(10);

/// How long a client may take nothing of what is sent to it. One that never reads would hold its answers for ever. The system
/// says that there is room again only when a third of its buffer is free, some megabytes to a client on the same
/// machine: whoever reads, slow as he may be, has to have taken so much by then.
const STALL_TIME: Duration = Duration::from_secs(300);

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

/// A connection with its place among those of its listener.
pub(crate) struct Connection {
    stream: Stream,
    /// Bytes that are awaited, and until when.
    awaited: Option<(usize, Pin<Box<Sleep>>)>,
    /// Until when what is written has to move on, while it does not.
    stalled: Option<Pin<Box<Sleep>>>,
    written: Written,
    _place: OwnedSemaphorePermit,
}

impl Connection {
    pub(super) fn new(stream: Stream, protocol: Protocol, written: Written, place: OwnedSemaphorePermit) -> Connection {
        let awaited = match protocol {
            Protocol::Grpc => Some((PREFACE, Box::pin(sleep(PREFACE_TIME)))),
            Protocol::Http => None,
        };
        Connection { stream, awaited, stalled: None, written, _place: place }
    }

    fn tcp(&self) -> &TcpStream {
        match &self.stream {
            Stream::Plain(stream) => stream,
            Stream::Encrypted(stream) => stream.get_ref().0,
        }
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
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.tcp().connect_info()
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
        let Some((bytes, until)) = &mut this.awaited else { return read };
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
