//! Bad input: one clear INVALID_ARGUMENT that names the tensor and the row, and the server serves on.

use prost::bytes::Bytes;
use tonic::Code;
use tonic_types::StatusExt;

use super::fake::Behaviour;
use super::harness::{
    TestServer, assert_serves, assert_told, raw_bytes, raw_i64, tensor, texts, token_ids, typed_texts, with_parameter,
};
use crate::admission::Rejection;
use crate::engine::Failure;
use crate::service::proto::inference::infer_parameter::ParameterChoice;
use crate::service::proto::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use crate::service::proto::inference::{InferParameter, InferTensorContents, ModelInferRequest};
use crate::service::proto::plimsoll::embed_client::EmbedClient;
use crate::service::proto::plimsoll::{EmbedRequest, TokenIds};

async fn check(server: &TestServer, request: ModelInferRequest, parts: &[&str]) {
    let status = server.infer(request).await.unwrap_err();
    assert_told(&status, Code::InvalidArgument, parts);
    assert!(server.engine.accepted().is_empty(), "it reached the engine");
}

fn request(inputs: Vec<InferInputTensor>, raw: Vec<Bytes>) -> ModelInferRequest {
    ModelInferRequest { inputs, raw_input_contents: raw, ..texts("embed", &["web"]) }
}

fn shaped(datatype: &str, shape: &[i64], raw: Bytes) -> ModelInferRequest {
    request(vec![tensor("input_ids", datatype, shape)], vec![raw])
}

fn text_shaped(shape: &[i64], raw: Bytes) -> ModelInferRequest {
    request(vec![tensor("TEXT", "BYTES", shape)], vec![raw])
}

#[tokio::test]
async fn case_30_bad_tensors_are_named() {
    let server = TestServer::start().await;
    let ids = raw_i64(&[2, 5, 3]);
    check(&server, shaped("INT128", &[1, 3], ids.clone()), &["inputs['input_ids']", "'INT128'", "INT64"]).await;
    check(&server, shaped("INT64", &[1, 4], ids.clone()), &["inputs['input_ids']", "24 bytes", "takes 32"]).await;
    check(&server, shaped("INT64", &[-1, 3], ids.clone()), &["inputs['input_ids']", "negative"]).await;
    check(&server, shaped("INT64", &[i64::MAX, i64::MAX], ids.clone()), &["more elements"]).await;
    check(&server, shaped("INT64", &[1 << 61, 1], ids.clone()), &["more elements"]).await;
    check(&server, shaped("INT64", &[0, 3], Bytes::new()), &["inputs['input_ids']", "no rows"]).await;
    check(&server, shaped("INT64", &[3, 0], Bytes::new()), &["inputs['input_ids']", "no tokens"]).await;
    check(&server, shaped("INT64", &[3], ids.clone()), &["[rows, tokens]"]).await;
    check(&server, shaped("FP64", &[1, 3], ids.clone()), &["FP64", "INT64 or INT32"]).await;
    check(&server, token_ids("embed", 2, &[2, 3, 2, 9999]), &["inputs['input_ids'][1]", "9999", "8191"]).await;
    check(&server, token_ids("embed", 1, &[-1]), &["inputs['input_ids'][0]", "-1"]).await;
    check(&server, token_ids("embed", 1, &[5; 33]), &["row 0", "33 tokens", "takes 32"]).await;

    let web = raw_bytes(&["web"]);
    check(&server, text_shaped(&[0], Bytes::new()), &["inputs['TEXT']", "no rows"]).await;
    check(&server, text_shaped(&[2], web.clone()), &["inputs['TEXT'][1]", "0 bytes are left"]).await;
    check(&server, text_shaped(&[1, 2], web.clone()), &["[1, 2]", "[rows]"]).await;
    check(&server, text_shaped(&[1], web.slice(..5)), &["inputs['TEXT'][0]", "says 3 bytes", "1 left"]).await;
    check(&server, text_shaped(&[1], raw_bytes(&["web", "x"])), &["5 bytes after the last of 1"]).await;
    let hostile = Bytes::from_static(&[0xff, 0xff, 0xff, 0xff, b'x']);
    check(&server, text_shaped(&[1], hostile), &["says 4294967295 bytes"]).await;
    check(&server, text_shaped(&[1 << 40], web.clone()), &["1099511627776 rows", "1024"]).await;
    check(&server, texts("embed", &["web", ""]), &["inputs['TEXT'][1]", "empty"]).await;
    check(&server, typed_texts("embed", &["web", ""]), &["inputs['TEXT'][1]", "empty"]).await;
    let not_utf8 = raw_bytes(&[&b"web"[..], &b"we\xffb"[..]]);
    check(&server, text_shaped(&[2], not_utf8), &["inputs['TEXT'][1]", "not UTF-8 from byte 2"]).await;
    let long = "x".repeat((1 << 20) + 1);
    check(&server, texts("embed", &["web", &long]), &["inputs['TEXT'][1]", "has 1048577 bytes and may have 1048576"])
        .await;
    assert_serves(&server).await;
}

#[tokio::test]
async fn case_30_bad_requests_are_named() {
    use ParameterChoice::{Int64Param, StringParam};
    let server = TestServer::start().await;
    let web = || raw_bytes(&["web"]);
    let text = || tensor("TEXT", "BYTES", &[1]);
    check(&server, request(vec![], vec![]), &["neither TEXT nor input_ids"]).await;
    check(&server, request(vec![text()], vec![web(), web()]), &["2 blobs for 1 inputs"]).await;
    check(&server, request(vec![text(), text()], vec![web(), web()]), &["inputs['TEXT']", "twice"]).await;
    let stray = tensor("IMAGE", "BYTES", &[1]);
    check(&server, request(vec![stray], vec![web()]), &["inputs['IMAGE']", "TEXT"]).await;
    let mixed = vec![text(), tensor("input_ids", "INT64", &[1, 1])];
    check(&server, request(mixed, vec![web(), raw_i64(&[2])]), &["mixed"]).await;
    let pair = vec![text(), tensor("TEXT_PAIR", "BYTES", &[1])];
    check(&server, request(pair, vec![web(), web()]), &["inputs['TEXT_PAIR']", "single texts"]).await;
    let masks = |mask: &[i64], shape: &[i64]| {
        let inputs = vec![tensor("input_ids", "INT64", &[1, 3]), tensor("attention_mask", "INT64", shape)];
        request(inputs, vec![raw_i64(&[2, 5, 3]), raw_i64(mask)])
    };
    check(&server, masks(&[1, 0, 1], &[1, 3]), &["inputs['attention_mask'][0]", "gap"]).await;
    check(&server, masks(&[0, 0, 0], &[1, 3]), &["inputs['attention_mask'][0]", "no real token"]).await;
    check(&server, masks(&[1, 1], &[1, 2]), &["inputs['attention_mask']", "[1, 2]", "[1, 3]"]).await;

    let filled = InferTensorContents { int64_contents: vec![1], ..InferTensorContents::default() };
    let both = InferInputTensor { contents: Some(filled.clone()), ..tensor("input_ids", "INT64", &[1, 1]) };
    check(&server, request(vec![both], vec![raw_i64(&[1])]), &["typed contents and a blob"]).await;
    let wrong = InferInputTensor { contents: Some(filled.clone()), ..tensor("input_ids", "INT32", &[1, 1]) };
    check(&server, request(vec![wrong], vec![]), &["int64_contents", "int_contents"]).await;
    let few = InferInputTensor { contents: Some(filled.clone()), ..tensor("input_ids", "INT64", &[1, 2]) };
    check(&server, request(vec![few], vec![]), &["has 1 elements", "takes 2"]).await;
    let half = InferInputTensor { contents: Some(filled), ..tensor("input_ids", "FP16", &[1, 1]) };
    check(&server, request(vec![half], vec![]), &["FP16 has no typed contents"]).await;

    let good = || texts("embed", &["web"]);
    check(&server, with_parameter(good(), "sequence_id", Int64Param(4)), &["sequence_id", "not supported"]).await;
    check(&server, with_parameter(good(), "priority", Int64Param(-9)), &["parameters['priority']", "9"]).await;
    check(&server, with_parameter(good(), "timeout", Int64Param(-1)), &["parameters['timeout']", "-1"]).await;
    check(&server, with_parameter(good(), "timeout", StringParam("1".into())), &["int64"]).await;
    check(&server, with_parameter(good(), "dimension", Int64Param(4)), &["'dimension'", "dimensions"]).await;
    check(&server, with_parameter(good(), "dimensions", Int64Param(9)), &["'dimensions'", "9", "8"]).await;
    check(&server, with_parameter(good(), "prompt_name", StringParam("x".into())), &["'x'", "query"]).await;
    check(&server, with_parameter(good(), "truncate", StringParam("middle".into())), &["'middle'", "end"]).await;
    let output = |name: &str| InferRequestedOutputTensor { name: name.to_owned(), ..Default::default() };
    check(&server, ModelInferRequest { outputs: vec![output("logits")], ..good() }, &["'logits'", "embedding"]).await;
    let twice = vec![output("embedding"), output("embedding")];
    check(&server, ModelInferRequest { outputs: twice, ..good() }, &["twice"]).await;
    let of_tensors = |name: &str, choice: ParameterChoice| {
        let parameters = || [(name.to_owned(), InferParameter { parameter_choice: Some(choice.clone()) })].into();
        let mut of_input = good();
        of_input.inputs[0].parameters = parameters();
        let asked = InferRequestedOutputTensor { parameters: parameters(), ..output("embedding") };
        [("inputs['TEXT'].", of_input), ("outputs['embedding'].", ModelInferRequest { outputs: vec![asked], ..good() })]
    };
    let text = |text: &str| StringParam(text.to_owned());
    for (name, choice, part) in [
        ("content_type", text("base64"), "send texts as they are"),
        ("content_type", text("pd"), "'pd'; there are: str, np, hf"),
        ("content_type", Int64Param(1), "has to be a string"),
        ("truncate", text("end"), "not known"),
    ] {
        for (place, request) in of_tensors(name, choice) {
            check(&server, request, &[place, name, part]).await;
        }
    }
    check(&server, with_parameter(good(), "content_type", text("pd")), &["parameters['content_type']", "str"]).await;
    let many = vec!["web"; 1025];
    check(&server, texts("embed", &many), &["1025 rows", "1024"]).await;
    let mut shared = good();
    let region = InferParameter { parameter_choice: Some(StringParam("region".into())) };
    shared.inputs[0].parameters.insert("shared_memory_region".to_owned(), region);
    assert_told(&server.infer(shared).await.unwrap_err(), Code::Unimplemented, &["shared memory"]);
    assert_serves(&server).await;
}

#[tokio::test]
async fn case_30_our_own_calls_name_the_field() {
    let server = TestServer::start().await;
    let mut client = EmbedClient::new(server.channel.clone());
    let good = || EmbedRequest { model: "embed".into(), texts: vec!["web".into()], ..EmbedRequest::default() };
    let ids = |ids: &[u32]| TokenIds { ids: ids.to_vec() };
    for (request, field, part) in [
        (EmbedRequest { truncate: 17, ..good() }, "truncate", "17"),
        (EmbedRequest { priority: -1, ..good() }, "priority", "-1"),
        (EmbedRequest { dimensions: 9, ..good() }, "dimensions", "9"),
        (EmbedRequest { prompt_name: "x".into(), ..good() }, "prompt_name", "query"),
        (EmbedRequest { texts: vec![], ..good() }, "texts", "no rows"),
        (EmbedRequest { texts: vec!["web".into(), "".into()], ..good() }, "texts[1]", "empty"),
        (EmbedRequest { tokens: vec![ids(&[2])], ..good() }, "tokens", "mixed"),
        (EmbedRequest { texts: vec![], tokens: vec![ids(&[2]), ids(&[])], ..good() }, "tokens[1]", "no tokens"),
        (EmbedRequest { texts: vec![], tokens: vec![ids(&[8192])], ..good() }, "tokens[0]", "8192"),
        (EmbedRequest { model: "rank".into(), ..good() }, "model", "rerank"),
        (EmbedRequest { model: String::new(), ..good() }, "model", "embed, wide"),
    ] {
        let status = client.embed(request).await.unwrap_err();
        assert_told(&status, Code::InvalidArgument, &[field, part]);
        let violations = status.get_details_bad_request().unwrap().field_violations;
        assert_eq!(violations.iter().map(|violation| violation.field.as_str()).collect::<Vec<_>>(), [field]);
    }
    assert!(server.engine.accepted().is_empty());
    client.embed(good()).await.unwrap();
}

#[tokio::test]
async fn case_30_a_message_that_is_not_protobuf_is_invalid() {
    use prost::Message;
    let server = TestServer::start().await;
    // A string field has to be UTF-8; a client that does not check can be had by writing the same field as bytes.
    #[derive(Clone, PartialEq, Message)]
    struct Unchecked {
        #[prost(bytes, tag = "1")]
        model_name: Vec<u8>,
    }
    let mut client = tonic::client::Grpc::new(server.channel.clone());
    client.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<Unchecked, Unchecked>::default();
    let path = "/inference.GRPCInferenceService/ModelInfer".parse().unwrap();
    let request = tonic::Request::new(Unchecked { model_name: b"\xff\xfe".to_vec() });
    let status = client.unary(request, path, codec).await.unwrap_err();
    assert_told(&status, Code::InvalidArgument, &["not what the protocol says"]);
    assert_serves(&server).await;
}

#[tokio::test]
async fn names_of_any_length_are_quoted_in_part() {
    let server = TestServer::start().await;
    let long = "é".repeat(1 << 20);
    let status = server.infer(texts(&long, &["web"])).await.unwrap_err();
    assert_told(&status, Code::NotFound, &["no model 'é"]);
    assert!(status.message().len() <= 512 && status.message().ends_with("..."), "{}", status.message().len());
    let stray = request(vec![tensor(&long, "BYTES", &[1])], vec![raw_bytes(&["web"])]);
    check(&server, stray, &["inputs['é"]).await;
    assert_serves(&server).await;
}

#[tokio::test]
async fn case_17_a_bad_row_is_named_and_other_callers_are_not_affected() {
    let server = TestServer::start().await;
    server.engine.hold();
    let neighbour = {
        let mut client = server.oip();
        tokio::spawn(async move { client.model_infer(texts("embed", &["web server"; 3])).await })
    };
    server.engine.rows_waiting(3).await;
    let long = "web ".repeat(100);
    let status = server.infer(texts("embed", &["web", "server", &long, "json"])).await.unwrap_err();
    assert_told(&status, Code::InvalidArgument, &["row 2", "102 tokens", "takes 32"]);
    let violations = status.get_details_bad_request().unwrap().field_violations;
    assert_eq!(violations[0].field, "rows[2]");
    server.engine.release();
    assert_eq!(neighbour.await.unwrap().unwrap().into_inner().outputs[0].shape[0], 3);
    assert_eq!(server.engine.accepted().len(), 1);
}

#[tokio::test]
async fn failures_of_the_engine_become_statuses_with_details() {
    use crate::admission::{LateAt, QueueLimit, TooLarge};
    use crate::model::Fault;
    use crate::units::{Bytes, Micros};
    let server = TestServer::start().await;
    let (needed, available, retry_after) = (Bytes::mib(9), Bytes::mib(4), Micros::millis(40));
    let cases = [
        (Rejection::Empty, Code::InvalidArgument, "no rows"),
        (Rejection::TooLarge(TooLarge::Workspace { needed, possible: available }), Code::InvalidArgument, "4.00 MiB"),
        (Rejection::TooLarge(TooLarge::Rows { needed: 9, possible: 4 }), Code::InvalidArgument, "9 rows"),
        (
            Rejection::TooLarge(TooLarge::Queue { limit: QueueLimit::Tokens, needed: 9, possible: 4 }),
            Code::InvalidArgument,
            "takes 4 at most",
        ),
        (Rejection::Late { at: LateAt::Step, waited: Micros::millis(12) }, Code::DeadlineExceeded, "12.0 ms"),
        (Rejection::Cancelled, Code::Cancelled, "cancelled"),
        (Rejection::OutOfMemory { needed, available, retry_after }, Code::ResourceExhausted, "9.00 MiB"),
        (Rejection::NotLoaded, Code::Unavailable, "not loaded"),
        (Rejection::Loading { retry_after }, Code::Unavailable, "being loaded"),
        (Rejection::Draining, Code::Unavailable, "going down"),
        (Rejection::DoesNotFit { needed, available, retry_after }, Code::ResourceExhausted, "4.00 MiB"),
        (Rejection::Broken, Code::FailedPrecondition, "could not be loaded"),
    ];
    for (rejection, code, part) in cases {
        server.engine.behave(Behaviour::Fail(Failure::Rejected(rejection)));
        let status = server.infer(texts("embed", &["web"])).await.unwrap_err();
        assert_told(&status, code, &[part]);
        let hint = status.get_details_retry_info().and_then(|info| info.retry_delay);
        assert_eq!(hint, rejection.retry_after().map(Into::into), "{rejection:?}");
    }
    let secret = "the text of a user";
    server.engine.behave(Behaviour::Fail(Failure::Fault(Fault::Model { message: secret.to_owned() })));
    let status = server.infer(texts("embed", &["web"])).await.unwrap_err();
    assert_told(&status, Code::Internal, &["embed", "log"]);
    assert!(!status.message().contains(secret));
}
