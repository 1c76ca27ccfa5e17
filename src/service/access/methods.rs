//! Which calls are administration: what changes the server for everybody, or shows what its memory holds.

/// By service.
const ADMIN: [(&str, &[&str]); 3] = [
    ("plimsoll.v1.Models", &["Load", "Unload", "Pin", "SetBudget", "Reload"]),
    ("plimsoll.v1.Memory", &["Snapshot", "Plan", "Trace"]),
    (
        "inference.GRPCInferenceService",
        &["RepositoryModelLoad", "RepositoryModelUnload", "TraceSetting", "LogSettings"],
    ),
];

/// Whether the call with this path is one of administration: `/package.Service/Method`, or a route of HTTP.
pub(super) fn is_admin(path: &str) -> bool {
    is_admin_over_http(path) || is_admin_over_grpc(path)
}

/// Paths are told apart as they are sent, by routes as well as here.
fn is_admin_over_http(path: &str) -> bool {
    let Some(path) = path.strip_prefix("/v2/") else { return false };
    ["repository/models/", "trace/", "logging"].iter().any(|start| path.starts_with(start))
        || (path.starts_with("models/") && path.ends_with("/trace/setting"))
}

fn is_admin_over_grpc(path: &str) -> bool {
    let Some((service, method)) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else { return false };
    ADMIN.iter().any(|(known, methods)| *known == service && methods.contains(&method))
}

/// The paths of all calls of administration.
#[cfg(test)]
pub(in crate::service) fn admin_paths() -> Vec<String> {
    let of_service = |(service, methods): (&str, &[&str])| -> Vec<String> {
        methods.iter().map(|method| format!("/{service}/{method}")).collect()
    };
    ADMIN.into_iter().flat_map(of_service).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message;
    use prost_types::FileDescriptorSet;

    use super::*;
    use crate::service::proto::DESCRIPTORS;

    /// The others, so that whoever adds a method says which it is. Those of text-embeddings-inference are all for everybody.
    const FOR_EVERYBODY: &str = "
        plimsoll.v1.Embed/Embed plimsoll.v1.Rerank/Rerank plimsoll.v1.Classify/Classify plimsoll.v1.TokenClassify/TokenClassify
        plimsoll.v1.Models/List
        inference.GRPCInferenceService/ServerLive inference.GRPCInferenceService/ServerReady
        inference.GRPCInferenceService/ModelReady inference.GRPCInferenceService/ServerMetadata
        inference.GRPCInferenceService/ModelMetadata inference.GRPCInferenceService/ModelInfer
        inference.GRPCInferenceService/ModelStreamInfer inference.GRPCInferenceService/ModelConfig
        inference.GRPCInferenceService/ModelStatistics inference.GRPCInferenceService/RepositoryIndex
        inference.GRPCInferenceService/SystemSharedMemoryStatus
        inference.GRPCInferenceService/SystemSharedMemoryRegister
        inference.GRPCInferenceService/SystemSharedMemoryUnregister
        inference.GRPCInferenceService/CudaSharedMemoryStatus
        inference.GRPCInferenceService/CudaSharedMemoryRegister
        inference.GRPCInferenceService/CudaSharedMemoryUnregister";

    #[test]
    fn every_method_is_for_administration_or_for_everybody() {
        let set = FileDescriptorSet::decode(DESCRIPTORS).unwrap();
        let all: BTreeSet<String> = (set.file.iter())
            .flat_map(|file| file.service.iter().map(|service| (file.package(), service)))
            .flat_map(|(package, service)| {
                service.method.iter().map(move |method| format!("{package}.{}/{}", service.name(), method.name()))
            })
            .collect();
        let (admin, everybody): (BTreeSet<_>, BTreeSet<_>) =
            all.into_iter().partition(|path| is_admin(&format!("/{path}")));
        let listed = admin_paths().into_iter().map(|path| path[1..].to_owned());
        assert_eq!(admin, listed.collect(), "each that is listed is there");
        let everybody: BTreeSet<_> = everybody.into_iter().filter(|path| !path.starts_with("tei.v1.")).collect();
        assert_eq!(everybody, FOR_EVERYBODY.split_whitespace().map(str::to_owned).collect());
    }

    #[test]
    fn routes_of_http_are_told_apart() {
        for path in [
            "/v2/repository/models/a/load",
            "/v2/repository/models/a/unload",
            "/v2/trace/setting",
            "/v2/models/a/trace/setting",
            "/v2/logging",
        ] {
            assert!(is_admin(path), "{path}");
        }
        for path in ["/v2", "/v2/health/ready", "/v2/repository/index", "/v2/models/a/infer", "/embed", "/v1/models"] {
            assert!(!is_admin(path), "{path}");
        }
    }

    #[test]
    fn other_paths_are_not_administration() {
        for path in ["", "/", "plimsoll.v1.Models/Load", "//plimsoll.v1.Models/Load", "/plimsoll.v1.Models/Load/"] {
            assert!(!is_admin(path), "{path}: and no service is there");
        }
    }
}
