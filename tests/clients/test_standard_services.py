"""grpc.health.v1 and reflection, through their standard clients."""

import json
import subprocess
import sys
import pathlib

from google.protobuf import message_factory
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tensors import refused

BUF = str(pathlib.Path(sys.executable).parent / "buf")


def test_health_of_the_server_and_of_each_model(channel):
    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", "inference.GRPCInferenceService", "plimsoll.v1.Embed", "tiny-embed", "tiny-section-int8"):
        found = health.Check(health_pb2.HealthCheckRequest(service=service)).status
        assert found == health_pb2.HealthCheckResponse.SERVING, service
    refused(lambda: health.Check(health_pb2.HealthCheckRequest(service="nobody")), "NOT_FOUND")
    watch = health.Watch(health_pb2.HealthCheckRequest(service="tiny-embed"))
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
    watch.cancel()


def test_a_client_without_any_proto_finds_and_calls_everything(channel):
    database = ProtoReflectionDescriptorDatabase(channel)
    services = set(database.get_services())
    assert {"inference.GRPCInferenceService", "grpc.health.v1.Health", "plimsoll.v1.Embed"} <= services
    pool = DescriptorPool(database)
    method = pool.FindServiceByName("plimsoll.v1.Embed").FindMethodByName("Embed")
    request = message_factory.GetMessageClass(method.input_type)(model="tiny-embed", texts=["found by reflection"])
    answer_type = message_factory.GetMessageClass(method.output_type)
    call = channel.unary_unary(
        "/plimsoll.v1.Embed/Embed",
        request_serializer=lambda message: message.SerializeToString(),
        response_deserializer=answer_type.FromString,
    )
    assert len(call(request).embeddings[0].values) == 192


def test_buf_curl_calls_through_reflection(server):
    command = [BUF, "curl", "--http2-prior-knowledge", "--protocol", "grpc", "--data"]
    command += [json.dumps({"model": "tiny-embed", "texts": ["a compiler"]})]
    command += [f"http://{server.address}/plimsoll.v1.Embed/Embed"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["embeddings"][0]["values"]) == 192
