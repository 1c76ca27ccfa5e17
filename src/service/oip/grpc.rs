//! The service itself: each call to the file that knows it.

use std::collections::HashMap;
use std::sync::Arc;

use tonic::{Request, Response, Status, Streaming};

use super::infer::infer;
use super::stream;
use super::{metadata, repository, settings, statistics};
use crate::service::call::Arrival;
use crate::service::context::Context;
use crate::service::errors::Problem;
use crate::service::port::{Inference, Operations};
use crate::service::proto::inference::grpc_inference_service_server::GrpcInferenceService;
use crate::service::proto::inference::*;
use crate::service::streams::Answers;

/// `inference.GRPCInferenceService`.
pub(crate) struct Oip<E> {
    pub(crate) context: Arc<Context<E>>,
}

fn no_shared_memory<T>() -> Result<T, Status> {
    Err(Problem::NotOffered("shared memory is not offered: send tensors in the request").into())
}

#[tonic::async_trait]
impl<E: Inference + Operations> GrpcInferenceService for Oip<E> {
    async fn server_live(&self, _: Request<ServerLiveRequest>) -> Result<Response<ServerLiveResponse>, Status> {
        Ok(Response::new(ServerLiveResponse { live: self.context.engine.alive() }))
    }

    async fn server_ready(&self, _: Request<ServerReadyRequest>) -> Result<Response<ServerReadyResponse>, Status> {
        let ready = self.context.engine.health().borrow().ready && !self.context.is_draining();
        Ok(Response::new(ServerReadyResponse { ready }))
    }

    async fn model_ready(&self, request: Request<ModelReadyRequest>) -> Result<Response<ModelReadyResponse>, Status> {
        let ModelReadyRequest { name, version } = request.into_inner();
        // A model that is not there is not ready: clients ask before they know.
        let served = self
            .context
            .target(&name)
            .is_ok_and(|target| version.is_empty() || version == target.definition.card.version.to_string());
        let serves = self.context.engine.health().borrow().serves(&name);
        Ok(Response::new(ModelReadyResponse { ready: served && serves && !self.context.is_draining() }))
    }

    async fn server_metadata(
        &self,
        _: Request<ServerMetadataRequest>,
    ) -> Result<Response<ServerMetadataResponse>, Status> {
        Ok(Response::new(metadata::server()))
    }

    async fn model_metadata(
        &self,
        request: Request<ModelMetadataRequest>,
    ) -> Result<Response<ModelMetadataResponse>, Status> {
        let ModelMetadataRequest { name, version } = request.into_inner();
        let target = self.context.target(&name)?;
        self.context.check_version(&target.definition.card, &version)?;
        Ok(Response::new(metadata::model(&target.definition.card)))
    }

    async fn model_infer(&self, request: Request<ModelInferRequest>) -> Result<Response<ModelInferResponse>, Status> {
        let arrival = Arrival::of(&request);
        Ok(Response::new(infer(&self.context, arrival, request.into_inner()).await?))
    }

    type ModelStreamInferStream = Answers<ModelStreamInferResponse>;

    async fn model_stream_infer(
        &self,
        request: Request<Streaming<ModelInferRequest>>,
    ) -> Result<Response<Self::ModelStreamInferStream>, Status> {
        let arrival = Arrival::of(&request);
        Ok(Response::new(stream::open(self.context.clone(), arrival, request.into_inner())?))
    }

    async fn model_config(
        &self,
        request: Request<ModelConfigRequest>,
    ) -> Result<Response<ModelConfigResponse>, Status> {
        let ModelConfigRequest { name, version } = request.into_inner();
        let target = self.context.target(&name)?;
        self.context.check_version(&target.definition.card, &version)?;
        let config = metadata::config(&target.definition.card, &target.definition.config, &self.context.limits);
        Ok(Response::new(ModelConfigResponse { config: Some(config) }))
    }

    async fn model_statistics(
        &self,
        request: Request<ModelStatisticsRequest>,
    ) -> Result<Response<ModelStatisticsResponse>, Status> {
        let ModelStatisticsRequest { name, version } = request.into_inner();
        let model_stats = statistics::of_models(&self.context, &name, &version)?;
        Ok(Response::new(ModelStatisticsResponse { model_stats }))
    }

    async fn repository_index(
        &self,
        request: Request<RepositoryIndexRequest>,
    ) -> Result<Response<RepositoryIndexResponse>, Status> {
        let models = repository::index(&self.context, request.into_inner().ready);
        Ok(Response::new(RepositoryIndexResponse { models }))
    }

    async fn repository_model_load(
        &self,
        request: Request<RepositoryModelLoadRequest>,
    ) -> Result<Response<RepositoryModelLoadResponse>, Status> {
        let RepositoryModelLoadRequest { repository_name, model_name, parameters } = request.into_inner();
        let model_name = repository::load(&self.context, &repository_name, &model_name, !parameters.is_empty()).await?;
        Ok(Response::new(RepositoryModelLoadResponse { model_name, is_loaded: true }))
    }

    async fn repository_model_unload(
        &self,
        request: Request<RepositoryModelUnloadRequest>,
    ) -> Result<Response<RepositoryModelUnloadResponse>, Status> {
        // Its parameter `unload_dependents` has nothing to act on: no model here depends on another.
        let RepositoryModelUnloadRequest { repository_name, model_name, .. } = request.into_inner();
        let model_name = repository::unload(&self.context, &repository_name, &model_name).await?;
        Ok(Response::new(RepositoryModelUnloadResponse { model_name, is_unloaded: true }))
    }

    async fn system_shared_memory_status(
        &self,
        _: Request<SystemSharedMemoryStatusRequest>,
    ) -> Result<Response<SystemSharedMemoryStatusResponse>, Status> {
        Ok(Response::new(SystemSharedMemoryStatusResponse { regions: HashMap::new() }))
    }

    async fn system_shared_memory_register(
        &self,
        _: Request<SystemSharedMemoryRegisterRequest>,
    ) -> Result<Response<SystemSharedMemoryRegisterResponse>, Status> {
        no_shared_memory()
    }

    async fn system_shared_memory_unregister(
        &self,
        _: Request<SystemSharedMemoryUnregisterRequest>,
    ) -> Result<Response<SystemSharedMemoryUnregisterResponse>, Status> {
        Ok(Response::new(SystemSharedMemoryUnregisterResponse {}))
    }

    async fn cuda_shared_memory_status(
        &self,
        _: Request<CudaSharedMemoryStatusRequest>,
    ) -> Result<Response<CudaSharedMemoryStatusResponse>, Status> {
        Ok(Response::new(CudaSharedMemoryStatusResponse { regions: HashMap::new() }))
    }

    async fn cuda_shared_memory_register(
        &self,
        _: Request<CudaSharedMemoryRegisterRequest>,
    ) -> Result<Response<CudaSharedMemoryRegisterResponse>, Status> {
        no_shared_memory()
    }

    async fn cuda_shared_memory_unregister(
        &self,
        _: Request<CudaSharedMemoryUnregisterRequest>,
    ) -> Result<Response<CudaSharedMemoryUnregisterResponse>, Status> {
        Ok(Response::new(CudaSharedMemoryUnregisterResponse {}))
    }

    async fn trace_setting(
        &self,
        request: Request<TraceSettingRequest>,
    ) -> Result<Response<TraceSettingResponse>, Status> {
        Ok(Response::new(settings::trace(request.into_inner())?))
    }

    async fn log_settings(
        &self,
        request: Request<LogSettingsRequest>,
    ) -> Result<Response<LogSettingsResponse>, Status> {
        Ok(Response::new(settings::log(request.into_inner())?))
    }
}
