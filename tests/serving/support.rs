//! A server, its models, and calls to it.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use plimsoll::config::{
    Amount, Environment, LogFilter, MemoryBudget, Models, ServeOptions, ServerConfig, SettingFlags,
};
use plimsoll::device::{Device, StartOptions, start};
use plimsoll::engine::{EngineHandle, ModelStatus};
use plimsoll::server::{Ended, Reports, Server, ServerError};
use plimsoll::service::proto::inference::grpc_inference_service_client::GrpcInferenceServiceClient;
use plimsoll::service::proto::inference::model_infer_request::InferInputTensor;
use plimsoll::service::proto::inference::{InferTensorContents, ModelInferRequest};
use plimsoll::service::proto::plimsoll::embed_client::EmbedClient;
use plimsoll::service::proto::plimsoll::memory_client::MemoryClient;
use plimsoll::service::proto::plimsoll::models_client::ModelsClient;
use plimsoll::service::proto::plimsoll::{EmbedRequest, EmbedResponse, TokenIds};
use plimsoll::units::{Bytes, Micros};
use tokio::sync::{Mutex, MutexGuard, oneshot};
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};

/// Every number of the embedded embedder's vocabulary below this is a word of it.
const WORDS: u32 = 4_000;

/// A process has one allocator, which counts for one server: tests take turns.
static TURN: Mutex<()> = Mutex::const_new(());

/// A running server. Tests end it with [`TestServer::end`], or let it fall.
pub(crate) struct TestServer {
    pub(crate) engine: EngineHandle,
    pub(crate) channel: Channel,
    pub(crate) endpoint: Endpoint,
    pub(crate) metrics: std::net::SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    running: JoinHandle<Result<Ended, ServerError>>,
    _folder: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

/// One model: its name, the embedded model that it is, and more lines of its `model.toml`.
pub(crate) type Model<'a> = (&'a str, &'a str, &'a str);

/// The embedder with small steps, so that measuring it takes a moment and client batches are split.
pub(crate) const SMALL: Model<'static> = ("small", "tiny-embed", "length_max = 64\nstep_tokens_max = 256\n");

impl TestServer {
    /// A server with these models, with room for all of them.
    pub(crate) async fn start(models: &[Model<'_>]) -> TestServer {
        TestServer::with(models, SettingFlags::default()).await
    }

    /// Starts a server and waits until the models that load at its start are ready.
    pub(crate) async fn with(models: &[Model<'_>], settings: SettingFlags) -> TestServer {
        let device = |options, epoch, reports: Reports| start(options, epoch, reports);
        TestServer::on(models, settings, device).await
    }

    /// The same on a device of the test's own.
    pub(crate) async fn on(
        models: &[Model<'_>],
        settings: SettingFlags,
        device: impl FnOnce(StartOptions, Instant, Reports) -> io::Result<Box<dyn Device>> + Send + 'static,
    ) -> TestServer {
        let turn = TURN.lock().await;
        let folder = tempfile::tempdir().unwrap();
        let repository = folder.path().join("models");
        for (name, embedded, lines) in models {
            std::fs::create_dir_all(repository.join(name)).unwrap();
            let text = format!("schema = 1\n{lines}\n[source]\nembedded = \"{embedded}\"\n");
            std::fs::write(repository.join(name).join("model.toml"), text).unwrap();
        }
        let settings = SettingFlags {
            grpc_port: Some(0),
            http_port: Some(0),
            metrics_port: Some(0),
            models: Some(Models::Folder(repository)),
            log_level: Some(LogFilter::quiet()),
            memory_budget: settings.memory_budget.or(Some(budget(Bytes::mib(256)))),
            ..settings
        };
        let environment = Environment::from_pairs([("HOME", folder.path().to_str().unwrap())]);
        let options = ServeOptions { settings, ..ServeOptions::default() };
        let config = ServerConfig::load(&options, &environment).unwrap().config;
        let server = Server::start_on(config, &environment, device).await.unwrap();
        let (engine, metrics) = (server.engine(), server.metrics);
        let endpoint = Endpoint::from_shared(format!("http://{}", server.grpc)).unwrap();
        let (stop, stopped) = oneshot::channel();
        let running = tokio::spawn(server.run(async {
            let _ = stopped.await;
        }));
        let channel = endpoint.connect().await.unwrap();
        tokio::time::timeout(Duration::from_secs(60), engine.health().wait_for(|view| view.ready))
            .await
            .expect("the server is ready in time")
            .unwrap();
        TestServer { engine, channel, endpoint, metrics, stop: Some(stop), running, _folder: folder, _turn: turn }
    }

    /// Tells the server to go down.
    pub(crate) fn shut_down(&mut self) {
        self.stop.take().unwrap().send(()).unwrap();
    }

    /// Waits until it has gone down, and says how.
    pub(crate) async fn end(mut self) -> Ended {
        if self.stop.is_some() {
            self.shut_down();
        }
        self.ended().await
    }

    /// Waits until it has gone down by itself, if nobody has told it to.
    pub(crate) async fn ended(self) -> Ended {
        drop(self.channel);
        let ended = tokio::time::timeout(Duration::from_secs(60), self.running).await.expect("it goes down");
        ended.unwrap().unwrap()
    }

    pub(crate) fn oip(&self) -> GrpcInferenceServiceClient<Channel> {
        GrpcInferenceServiceClient::new(self.channel.clone()).max_decoding_message_size(usize::MAX)
    }

    pub(crate) fn models(&self) -> ModelsClient<Channel> {
        ModelsClient::new(self.channel.clone())
    }

    pub(crate) fn memory(&self) -> MemoryClient<Channel> {
        MemoryClient::new(self.channel.clone())
    }

    /// Embeds rows of token ids.
    pub(crate) async fn embed(&self, model: &str, rows: &[Vec<u32>]) -> Result<EmbedResponse, Status> {
        embed(self.channel.clone(), model.to_owned(), rows.to_vec()).await
    }

    pub(crate) fn status(&self, model: &str) -> ModelStatus {
        self.engine.models().into_iter().find(|status| status.name == model).unwrap()
    }

    /// Rows that steps for requests of a model have computed, whether or not anybody got them.
    pub(crate) fn rows_run(&self, model: &str) -> u64 {
        let batches: BTreeMap<_, _> = self.status(model).statistics.batches;
        batches.iter().map(|(rows, tally)| u64::from(*rows) * tally.count).sum()
    }

    /// Waits until this holds of a model.
    pub(crate) async fn until(&self, model: &str, holds: impl Fn(&ModelStatus) -> bool) {
        for _ in 0..3_000 {
            if holds(&self.status(model)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("it never comes to that: {:?}", self.status(model));
    }

    /// Waits until the profile is measured, so that no probe stands between two steps any more.
    pub(crate) async fn until_measured(&self, model: &str) {
        self.until(model, |status| status.profile == Some(plimsoll::memory::ProfileState::Complete)).await;
    }

    /// A call that is served right after something went wrong shows that the server and the connection are well.
    pub(crate) async fn assert_serves(&self, model: &str) {
        self.embed(model, &[row(1, 5)]).await.unwrap();
    }
}

pub(crate) fn budget(bytes: Bytes) -> MemoryBudget {
    MemoryBudget::Amount(Amount::Bytes(bytes))
}

/// Settings in which a model may be evicted as soon as it is idle.
pub(crate) fn eager(memory: Bytes) -> SettingFlags {
    SettingFlags {
        memory_budget: Some(budget(memory)),
        minimum_residency: Some(Micros::ZERO),
        ..SettingFlags::default()
    }
}

/// Embeds rows of token ids over a connection.
pub(crate) async fn embed(channel: Channel, model: String, rows: Vec<Vec<u32>>) -> Result<EmbedResponse, Status> {
    let tokens = rows.into_iter().map(|ids| TokenIds { ids }).collect();
    let request = EmbedRequest { model, tokens, ..EmbedRequest::default() };
    Ok(EmbedClient::new(channel).embed(request).await?.into_inner())
}

/// A row of so many token ids; rows with another seed are others.
pub(crate) fn row(seed: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|at| 10 + (seed.wrapping_mul(2_654_435_761) >> 8).wrapping_add(at * 97) % WORDS).collect()
}

pub(crate) fn vectors(response: EmbedResponse) -> Vec<Vec<f32>> {
    response.embeddings.into_iter().map(|embedding| embedding.values).collect()
}

pub(crate) fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// The same rows, all of one length, as a call of the open protocol.
pub(crate) fn token_request(model: &str, id: &str, rows: &[Vec<u32>]) -> ModelInferRequest {
    let ids = rows.iter().flatten().map(|&id| i64::from(id)).collect();
    ModelInferRequest {
        model_name: model.to_owned(),
        id: id.to_owned(),
        inputs: vec![InferInputTensor {
            name: "input_ids".to_owned(),
            datatype: "INT64".to_owned(),
            shape: vec![rows.len() as i64, rows[0].len() as i64],
            contents: Some(InferTensorContents { int64_contents: ids, ..InferTensorContents::default() }),
            ..InferInputTensor::default()
        }],
        ..ModelInferRequest::default()
    }
}
