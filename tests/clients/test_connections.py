"""Clients that open much and do little: memory stays bounded, and nobody else notices."""

import queue
import resource
import socket
import threading

import grpc
import pytest
import tritonclient.grpc as triton

from server import Server
from tensors import infer, texts

MIB = 1 << 20
# What an HTTP/2 client begins with: the preface, and settings of which none is changed.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = Server(tmp_path_factory.mktemp("connections"), "--models", "embedded")
    yield server
    assert server.stop() == 0, server.log()


def resident(server):
    with open(f"/proc/{server.process.pid}/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmRSS:"))


def one_text():
    """A request as tritonclient sends it, for calls that its client cannot make."""
    message, tensor = triton.service_pb2.ModelInferRequest(model_name="tiny-embed"), texts(["web server"])
    message.inputs.append(tensor._get_tensor())
    message.raw_input_contents.append(tensor._get_content())
    return message


def answers(server):
    """Calls of a client that has just come."""
    with triton.InferenceServerClient(server.address) as client:
        return all(infer(client, "tiny-embed", texts(["web server"]), "embedding").shape == (1, 192) for _ in range(5))


def test_connections_that_stay_silent(server):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    count = 5_000 if hard >= 12_000 else hard // 3
    assert answers(server)
    before = resident(server)
    silent = []
    for number in range(count):
        port, begun = [
            (server.port, PREFACE),
            (server.http_port, b""),
            (server.http_port, b"POST /embed HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n{"),
        ][number % 3]
        connection = socket.create_connection(("127.0.0.1", port))
        connection.sendall(begun)
        silent.append(connection)
    assert answers(server)
    grown = (resident(server) - before) / count
    print(f"\n{count} silent connections: {grown / 1024:.1f} KiB each")
    assert grown < 64 * 1024
    # As they go, so does what they took; half of them by a reset.
    for number, connection in enumerate(silent):
        if number % 2:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
    assert answers(server)


def test_streams_that_stay_open(server):
    """As many as may be open at once, each with a request that is answered; one more is told so."""
    infer_once = one_text()
    before = resident(server)
    channels = [grpc.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)]) for _ in range(4)]
    opened = []

    def open_one(channel):
        requests = queue.SimpleQueue()
        requests.put(infer_once)
        call = channel.stream_stream(
            STREAM,
            request_serializer=triton.service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=triton.service_pb2.ModelStreamInferResponse.FromString,
        )(iter(requests.get, None))
        opened.append((call, requests))
        return call

    calls = [open_one(channels[number % 4]) for number in range(1_000)]
    assert all(next(call).infer_response.model_name == "tiny-embed" for call in calls)
    with pytest.raises(grpc.RpcError) as error:
        next(open_one(channels[0]))
    assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    grown = (resident(server) - before) / len(calls)
    print(f"\n1,000 open streams: {grown / 1024:.1f} KiB each")
    assert grown < 256 * 1024
    assert answers(server)
    # A third ends as it should, a third by the client's wish, the rest with its connection.
    for number, (call, requests) in enumerate(opened):
        if number % 3 == 0:
            call.cancel()
        requests.put(None)
    for channel in channels:
        channel.close()
    assert answers(server)


def test_calls_that_are_given_up(server):
    """Thousands of calls that are cancelled as soon as they are begun, from several connections at once."""

    message = one_text().SerializeToString()

    def give_up():
        with grpc.insecure_channel(server.address, [("grpc.use_local_subchannel_pool", 1)]) as channel:
            grpc.channel_ready_future(channel).result(10)
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            for _ in range(50):
                for one in [call.future(message) for _ in range(10)]:
                    one.cancel()

    # Once before, so that what the server keeps for later is there.
    give_up()
    before = resident(server)
    threads = [threading.Thread(target=give_up) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert answers(server)
    for thread in threads:
        thread.join()
    assert answers(server) and resident(server) - before < 16 * MIB
