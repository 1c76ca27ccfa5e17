//! What clients ask before and beside inference: readiness, metadata, configuration, statistics, repository, settings,
//! shared memory, health, reflection.

use tokio_stream::StreamExt;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use super::fake::DIMENSIONS;
use super::harness::{TestServer, assert_told, texts};
use crate::engine::ModelState;
use crate::service::proto::inference::model_config::SchedulingChoice;
use crate::service::proto::inference::*;

#[tokio::test]
async fn readiness_follows_the_engine() {
    let server = TestServer::start().await;
    let mut client = server.oip();
    assert!(client.server_live(ServerLiveRequest {}).await.unwrap().into_inner().live);
    assert!(client.server_ready(ServerReadyRequest {}).await.unwrap().into_inner().ready);
    for (name, version, expected) in
        [("embed", "", true), ("embed", "1", true), ("embed", "2", false), ("broken", "", false), ("none", "", false)]
    {
        let request = ModelReadyRequest { name: name.to_owned(), version: version.to_owned() };
        assert_eq!(client.model_ready(request).await.unwrap().into_inner().ready, expected, "{name} {version}");
    }
    server.engine.set_state("embed", ModelState::Loading);
    let request = ModelReadyRequest { name: "embed".to_owned(), version: String::new() };
    assert!(!client.model_ready(request).await.unwrap().into_inner().ready);
}

#[tokio::test]
async fn metadata_and_configuration_agree() {
    let server = TestServer::start().await;
    let mut client = server.oip();
    let about = client.server_metadata(ServerMetadataRequest {}).await.unwrap().into_inner();
    assert_eq!(about.name, "plimsoll");
    for needed in ["statistics", "model_configuration", "model_repository", "binary_tensor_data"] {
        assert!(about.extensions.iter().any(|extension| extension == needed), "{needed}");
    }
    for name in ["embed", "rank", "section"] {
        let (name, version) = (name.to_owned(), "1".to_owned());
        let request = ModelMetadataRequest { name: name.clone(), version: version.clone() };
        let metadata = client.model_metadata(request).await.unwrap().into_inner();
        let request = ModelConfigRequest { name, version };
        let config = client.model_config(request).await.unwrap().into_inner().config.unwrap();
        assert_eq!(
            (metadata.name.as_str(), metadata.versions.as_slice()),
            (config.name.as_str(), &["1".to_owned()][..])
        );
        let inputs = |tensors: &[model_metadata_response::TensorMetadata]| -> Vec<(String, Vec<i64>)> {
            // The batch dimension leads in the metadata and is left out of the configuration.
            assert!(tensors.iter().all(|tensor| tensor.shape[0] == -1));
            tensors.iter().map(|tensor| (tensor.name.clone(), tensor.shape[1..].to_vec())).collect()
        };
        let of_config = |name: &String, dims: &Vec<i64>| (name.clone(), dims.clone());
        assert_eq!(
            inputs(&metadata.inputs),
            config.input.iter().map(|i| of_config(&i.name, &i.dims)).collect::<Vec<_>>()
        );
        assert_eq!(
            inputs(&metadata.outputs),
            config.output.iter().map(|o| of_config(&o.name, &o.dims)).collect::<Vec<_>>()
        );
        assert_eq!(config.max_batch_size, 1024);
        assert_eq!(
            (config.parameters["dtype"].string_value.as_str(), config.parameters.contains_key("task")),
            ("f32", true)
        );
        assert!(!config.model_transaction_policy.unwrap().decoupled);
        let Some(SchedulingChoice::DynamicBatching(batching)) = config.scheduling_choice else { panic!("no batching") };
        assert_eq!((batching.priority_levels, batching.default_priority_level), (3, 2));
        assert_eq!(batching.max_queue_delay_microseconds, 300);
    }
    let embed = ModelMetadataRequest { name: "embed".to_owned(), version: String::new() };
    let metadata = client.model_metadata(embed).await.unwrap().into_inner();
    assert_eq!(metadata.inputs[0].shape, [-1, 1]);
    assert_eq!(metadata.outputs[0].shape, [-1, i64::from(DIMENSIONS)]);
    let unknown = ModelConfigRequest { name: "none".to_owned(), version: String::new() };
    assert_told(&client.model_config(unknown).await.unwrap_err(), Code::NotFound, &["'none'"]);
}

#[tokio::test]
async fn statistics_grow_as_load_generators_expect() {
    let server = TestServer::start().await;
    let mut client = server.oip();
    for rows in [2, 3] {
        server.infer(texts("embed", &vec!["web server"; rows])).await.unwrap();
    }
    let ask = |name: &str| ModelStatisticsRequest { name: name.to_owned(), version: String::new() };
    let stats = client.model_statistics(ask("embed")).await.unwrap().into_inner().model_stats.remove(0);
    assert_eq!((stats.name.as_str(), stats.version.as_str()), ("embed", "1"));
    assert_eq!((stats.inference_count, stats.execution_count), (5, 2));
    let counted = stats.inference_stats.unwrap();
    let read = |duration: Option<StatisticDuration>| duration.map(|duration| (duration.count, duration.ns)).unwrap();
    assert_eq!(read(counted.success), (2, 1_800_000));
    assert_eq!(read(counted.queue), (2, 400_000));
    assert_eq!(read(counted.compute_infer), (2, 1_400_000));
    assert!(read(counted.compute_input).1 > 0, "tokenization takes time");
    assert_eq!(counted.fail.map(|fail| fail.count), Some(0));
    assert_eq!(stats.batch_stats.iter().map(|batch| batch.batch_size).collect::<Vec<_>>(), [2, 3]);
    assert_eq!(stats.memory_usage[0].byte_size, 3 << 20);
    let all = client.model_statistics(ask("")).await.unwrap().into_inner().model_stats;
    assert_eq!(all.len(), 5);
    assert_eq!(client.model_statistics(ask("none")).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn the_repository_lists_loads_and_unloads_under_both_numberings() {
    let server = TestServer::start().await;
    let mut client = server.oip();
    let index = |ready| RepositoryIndexRequest { repository_name: String::new(), ready };
    let all = client.repository_index(index(false)).await.unwrap().into_inner().models;
    let broken = all.iter().find(|model| model.name == "broken").unwrap();
    assert_eq!((broken.state.as_str(), broken.reason.as_str()), ("UNAVAILABLE", "config.json is missing"));
    assert_eq!(client.repository_index(index(true)).await.unwrap().into_inner().models.len(), 4);

    let unload = RepositoryModelUnloadRequest { model_name: "embed".to_owned(), ..Default::default() };
    let unloaded = client.repository_model_unload(unload).await.unwrap().into_inner();
    assert_eq!((unloaded.model_name.as_str(), unloaded.is_unloaded), ("embed", true));
    let state = |models: Vec<repository_index_response::ModelIndex>| models[0].state.clone();
    assert_eq!(state(client.repository_index(index(false)).await.unwrap().into_inner().models), "UNAVAILABLE");
    let load = RepositoryModelLoadRequest { repository_name: "embed".to_owned(), ..Default::default() };
    let loaded = client.repository_model_load(load).await.unwrap().into_inner();
    assert_eq!((loaded.model_name.as_str(), loaded.is_loaded), ("embed", true));
    assert_eq!(state(client.repository_index(index(false)).await.unwrap().into_inner().models), "READY");

    let nobody = RepositoryModelLoadRequest::default();
    assert_told(&client.repository_model_load(nobody).await.unwrap_err(), Code::InvalidArgument, &["model_name"]);
    let unknown = RepositoryModelLoadRequest { model_name: "none".to_owned(), ..Default::default() };
    assert_told(&client.repository_model_load(unknown).await.unwrap_err(), Code::NotFound, &["'none'"]);
    let files = RepositoryModelLoadRequest {
        model_name: "embed".to_owned(),
        parameters: [("config".to_owned(), ModelRepositoryParameter::default())].into(),
        ..Default::default()
    };
    assert_told(&client.repository_model_load(files).await.unwrap_err(), Code::InvalidArgument, &["model repository"]);
}

#[tokio::test]
async fn what_is_not_offered_says_so() {
    let server = TestServer::start().await;
    let mut client = server.oip();
    let regions = client.system_shared_memory_status(SystemSharedMemoryStatusRequest::default()).await.unwrap();
    assert!(regions.into_inner().regions.is_empty());
    client.system_shared_memory_unregister(SystemSharedMemoryUnregisterRequest::default()).await.unwrap();
    let refused = client.system_shared_memory_register(SystemSharedMemoryRegisterRequest::default()).await;
    assert_told(&refused.unwrap_err(), Code::Unimplemented, &["shared memory"]);
    let regions = client.cuda_shared_memory_status(CudaSharedMemoryStatusRequest::default()).await.unwrap();
    assert!(regions.into_inner().regions.is_empty());
    client.cuda_shared_memory_unregister(CudaSharedMemoryUnregisterRequest::default()).await.unwrap();
    let refused = client.cuda_shared_memory_register(CudaSharedMemoryRegisterRequest::default()).await;
    assert_told(&refused.unwrap_err(), Code::Unimplemented, &["shared memory"]);

    let trace = client.trace_setting(TraceSettingRequest::default()).await.unwrap().into_inner();
    assert_eq!(trace.settings["trace_level"].value, ["OFF"]);
    let set = |name: &str, value: &str| {
        let value = trace_setting_request::SettingValue { value: vec![value.to_owned()] };
        TraceSettingRequest { settings: [(name.to_owned(), value)].into(), ..Default::default() }
    };
    assert_eq!(client.trace_setting(set("trace_level", "OFF")).await.unwrap().into_inner(), trace);
    for other in [set("trace_level", "TIMESTAMPS"), set("trace_rate", "1")] {
        assert_told(&client.trace_setting(other).await.unwrap_err(), Code::Unimplemented, &["--otlp-endpoint"]);
    }
    let log = client.log_settings(LogSettingsRequest::default()).await.unwrap().into_inner();
    let Some(log_settings_response::setting_value::ParameterChoice::BoolParam(info)) =
        log.settings["log_info"].parameter_choice
    else {
        panic!("{log:?}")
    };
    let set = |name: &str, choice| {
        let value = log_settings_request::SettingValue { parameter_choice: choice };
        LogSettingsRequest { settings: [(name.to_owned(), value)].into() }
    };
    let flag = |flag| Some(log_settings_request::setting_value::ParameterChoice::BoolParam(flag));
    assert_eq!(client.log_settings(set("log_info", flag(info))).await.unwrap().into_inner(), log);
    for other in [set("log_info", flag(!info)), set("log_info", None), set("log_file", flag(info))] {
        assert_told(&client.log_settings(other).await.unwrap_err(), Code::Unimplemented, &["started"]);
    }
}

#[tokio::test]
async fn health_is_told_of_the_server_its_services_and_its_models() {
    let server = TestServer::start().await;
    let mut client = HealthClient::new(server.channel.clone());
    let ask = |service: &str| HealthCheckRequest { service: service.to_owned() };
    for (service, expected) in [
        ("", ServingStatus::Serving),
        ("inference.GRPCInferenceService", ServingStatus::Serving),
        ("plimsoll.v1.Embed", ServingStatus::Serving),
        ("plimsoll.v1.Memory", ServingStatus::Serving),
        ("embed", ServingStatus::Serving),
        ("broken", ServingStatus::NotServing),
    ] {
        let status = client.check(ask(service)).await.unwrap().into_inner().status();
        assert_eq!(status, expected, "'{service}'");
    }
    assert_eq!(client.check(ask("none")).await.unwrap_err().code(), Code::NotFound);

    let mut watch = client.watch(ask("embed")).await.unwrap().into_inner();
    assert_eq!(watch.next().await.unwrap().unwrap().status(), ServingStatus::Serving);
    server.engine.set_state("embed", ModelState::Draining);
    assert_eq!(watch.next().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    // The server goes on: a model that leaves is not the server's end.
    assert_eq!(client.check(ask("")).await.unwrap().into_inner().status(), ServingStatus::Serving);
}

#[tokio::test]
async fn reflection_lists_every_service_in_both_versions() {
    let server = TestServer::start().await;
    macro_rules! services {
        ($version:ident) => {{
            use tonic_reflection::pb::$version::ServerReflectionRequest;
            use tonic_reflection::pb::$version::server_reflection_client::ServerReflectionClient;
            use tonic_reflection::pb::$version::server_reflection_request::MessageRequest;
            use tonic_reflection::pb::$version::server_reflection_response::MessageResponse;
            let list = MessageRequest::ListServices(String::new());
            let request = ServerReflectionRequest { host: String::new(), message_request: Some(list) };
            let mut client = ServerReflectionClient::new(server.channel.clone());
            let answers = client.server_reflection_info(tokio_stream::once(request)).await.unwrap();
            let answer = answers.into_inner().next().await.unwrap().unwrap().message_response;
            let Some(MessageResponse::ListServicesResponse(list)) = answer else { panic!("{answer:?}") };
            list.service.into_iter().map(|service| service.name).collect::<Vec<String>>()
        }};
    }
    for services in [services!(v1), services!(v1alpha)] {
        for needed in ["inference.GRPCInferenceService", "plimsoll.v1.Models", "grpc.health.v1.Health"] {
            assert!(services.iter().any(|service| service == needed), "{needed} is not in {services:?}");
        }
    }
}
