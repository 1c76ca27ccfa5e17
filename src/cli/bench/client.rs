//! One caller's view of a server, whatever the protocol: models to ask, calls, replies.

use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tonic::Status;

use super::answer::Answer;
use super::connect::{Connection, CredentialArgs};
use super::{oip_client, plimsoll_client};
use crate::cli::deadline;
use crate::config::{Dtype, Task};

/// The largest answer that is taken: as large as a server's default limit for messages.
pub(super) const MESSAGE_BYTES_MAX: usize = 64 << 20;

/// The protocol that is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Protocol {
    /// plimsoll.v1: answers tell how they were batched.
    Plimsoll,
    /// The Open Inference Protocol, so that other servers can be measured too. Nothing is known about batches then.
    Oip,
}

/// What the load must know of a model.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ModelFacts {
    /// Its name in calls.
    pub name: String,
    /// What it does.
    pub task: Task,
    /// The form of its weights: decides how far answers may differ.
    pub dtype: Dtype,
    /// The longest row in tokens.
    pub length_max: u32,
    /// Whether it answers at once.
    pub ready: bool,
    /// Whether its memory profile is complete (before that batches are small and measuring takes a part of the device),
    /// or it is not loaded, so that nothing of it is to be waited for.
    pub settled: bool,
}

/// The priority class of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// Others go first.
    Low,
    /// The default.
    Normal,
    /// Goes first.
    High,
}

impl FromStr for Urgency {
    type Err = String;

    fn from_str(text: &str) -> Result<Urgency, String> {
        match text {
            "low" => Ok(Urgency::Low),
            "normal" => Ok(Urgency::Normal),
            "high" => Ok(Urgency::High),
            _ => Err(format!("'{text}' is not one of low, normal, high")),
        }
    }
}

/// The rows of a call.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Rows {
    /// Texts, tokenized by the server.
    Texts(Vec<String>),
    /// Token ids.
    Tokens(Vec<Vec<u32>>),
}

impl Rows {
    /// How many.
    pub(super) fn len(&self) -> usize {
        match self {
            Rows::Texts(rows) => rows.len(),
            Rows::Tokens(rows) => rows.len(),
        }
    }
}

/// One call.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Call {
    /// Index of the model among those of the workload.
    pub model: usize,
    /// The query; empty unless the model reranks.
    pub query: String,
    /// What is computed.
    pub rows: Rows,
    /// Its priority.
    pub urgency: Urgency,
    /// When the caller stops waiting, from the moment of sending.
    pub deadline: Option<Duration>,
    /// When the caller cancels, from the moment of sending.
    pub cancel_after: Option<Duration>,
    /// Its number among the calls whose undisturbed answers are known.
    pub reference: Option<u32>,
}

/// A step that a call's rows ran in, as its reply tells it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct SeenStep {
    /// Unique within a server's run.
    pub id: u64,
    /// Rows of all callers.
    pub rows: u32,
    /// Tokens computed, padding included.
    pub computed_tokens: u64,
    /// Which bound decided the size.
    pub reason: &'static str,
    /// Workspace in bytes that the profile foretold.
    pub predicted: u64,
    /// Workspace in bytes that it took.
    pub peak: u64,
    /// Bytes that it could have used when it was chosen.
    pub headroom: u64,
    /// Microseconds on the device.
    pub compute_us: u64,
}

/// What came back.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Reply {
    /// The answer.
    pub answer: Answer,
    /// Tokens computed for the call's rows; 0 where the protocol does not tell.
    pub tokens: u64,
    /// The steps that the rows ran in; none where the protocol does not tell.
    pub steps: Vec<SeenStep>,
}

/// Connections to one server. Calls take them in turn.
pub(super) struct Client {
    protocol: Protocol,
    channels: Vec<Connection>,
    next: AtomicUsize,
}

impl Client {
    /// Connects to `address` (`host:port`).
    ///
    /// # Errors
    /// As [`CredentialArgs::connect`].
    pub(super) async fn connect(
        address: &str,
        credentials: &CredentialArgs,
        protocol: Protocol,
        connections: usize,
    ) -> anyhow::Result<Client> {
        let mut channels = Vec::with_capacity(connections);
        for _ in 0..connections {
            channels.push(credentials.connect(address).await?);
        }
        Ok(Client { protocol, channels, next: AtomicUsize::new(0) })
    }

    fn channel(&self) -> Connection {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        self.channels[turn % self.channels.len()].clone()
    }

    /// The models of the server.
    ///
    /// # Errors
    /// What the server answers, or a model whose task or dtype is not known.
    pub(super) async fn models(&self) -> anyhow::Result<Vec<ModelFacts>> {
        match self.protocol {
            Protocol::Plimsoll => plimsoll_client::models(self.channel()).await,
            Protocol::Oip => oip_client::models(self.channel()).await,
        }
    }

    /// Sends a call and waits for its answer. Dropping the future cancels the call.
    ///
    /// # Errors
    /// The status of the server; DEADLINE_EXCEEDED also when the deadline passed here.
    pub(super) async fn ask(&self, model: &ModelFacts, call: &Call) -> Result<Reply, Status> {
        let reply = match self.protocol {
            Protocol::Plimsoll => plimsoll_client::ask(self.channel(), model, call).await,
            Protocol::Oip => oip_client::ask(self.channel(), model, call).await,
        };
        reply.map_err(|status| deadline::named(status, call.deadline))
    }
}

/// `message` as a request with the call's deadline.
pub(super) fn request<T>(message: T, call: &Call) -> tonic::Request<T> {
    deadline::request(message, call.deadline)
}
