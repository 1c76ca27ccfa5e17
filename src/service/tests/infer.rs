//! Inference through the Open Inference Protocol: what goes in by every road, and what comes out.

use tonic::Code;

use super::fake::{DIMENSIONS, LABELS, vector};
use super::harness::{
    TestServer, assert_told, floats, raw_bytes, raw_i64, tensor, texts, token_ids, typed_texts, with_parameter,
};
use crate::model::TokenRow;
use crate::scheduler::Priority;
use crate::service::proto::inference::infer_parameter::ParameterChoice;
use crate::service::proto::inference::model_infer_request::{InferInputTensor, InferRequestedOutputTensor};
use crate::service::proto::inference::{InferParameter, InferTensorContents, ModelInferRequest};
use crate::service::results;

fn normalized(mut values: Vec<f32>) -> Vec<f32> {
    results::normalize(&mut values);
    values
}

fn row(ids: &[u32]) -> TokenRow {
    TokenRow::new(ids.to_vec(), Vec::new())
}

#[tokio::test]
async fn texts_come_raw_or_typed_and_the_answer_is_raw_in_order() {
    let server = TestServer::start().await;
    let raw = server.infer(texts("embed", &["web server", "json parser for python"])).await.unwrap();
    assert_eq!((raw.model_name.as_str(), raw.model_version.as_str(), raw.id.as_str()), ("embed", "1", "call-1"));
    assert_eq!(raw.outputs.len(), 1);
    assert_eq!((raw.outputs[0].name.as_str(), raw.outputs[0].datatype.as_str()), ("embedding", "FP32"));
    assert_eq!(raw.outputs[0].shape, [2, i64::from(DIMENSIONS)]);
    assert!(raw.outputs[0].contents.is_none());
    let submitted = server.engine.accepted().remove(0);
    let expected: Vec<f32> = submitted.rows.iter().flat_map(|row| normalized(vector(row, DIMENSIONS))).collect();
    assert_eq!(floats(&raw, 0), expected);

    let typed = server.infer(typed_texts("embed", &["web server", "json parser for python"])).await.unwrap();
    assert_eq!(typed.raw_output_contents, raw.raw_output_contents);

    // Clients that keep a dimension of the value write [rows, 1].
    let mut kept = texts("embed", &["web server", "json parser for python"]);
    kept.inputs[0].shape = vec![2, 1];
    assert_eq!(server.infer(kept).await.unwrap().raw_output_contents, raw.raw_output_contents);
}

#[tokio::test]
async fn token_ids_are_taken_as_they_are_and_padding_is_cut_off() {
    let server = TestServer::start().await;
    server.infer(token_ids("embed", 2, &[2, 5, 3, 2, 6, 3])).await.unwrap();
    let padded = ModelInferRequest {
        inputs: vec![tensor("input_ids", "INT64", &[2, 4]), tensor("attention_mask", "INT64", &[2, 4])],
        raw_input_contents: vec![raw_i64(&[2, 5, 3, 0, 0, 2, 6, 3]), raw_i64(&[1, 1, 1, 0, 0, 1, 1, 1])],
        ..token_ids("embed", 1, &[1])
    };
    server.infer(padded).await.unwrap();
    let int_contents = vec![2, 5, 3, 2, 6, 3];
    let contents = InferTensorContents { int_contents, ..InferTensorContents::default() };
    let typed = ModelInferRequest {
        inputs: vec![InferInputTensor { contents: Some(contents), ..tensor("input_ids", "INT32", &[2, 3]) }],
        raw_input_contents: Vec::new(),
        ..token_ids("embed", 1, &[1])
    };
    server.infer(typed).await.unwrap();
    for submission in server.engine.accepted() {
        let rows: Vec<_> = submission.rows.iter().map(|row| (**row).clone()).collect();
        assert_eq!(rows, [row(&[2, 5, 3]), row(&[2, 6, 3])]);
    }
    let pair = ModelInferRequest {
        inputs: vec![tensor("input_ids", "INT64", &[1, 4]), tensor("token_type_ids", "INT64", &[1, 4])],
        raw_input_contents: vec![raw_i64(&[2, 5, 6, 3]), raw_i64(&[0, 0, 1, 1])],
        ..token_ids("rank", 1, &[1])
    };
    server.infer(pair).await.unwrap();
    assert_eq!(server.engine.accepted().pop().unwrap().rows[0].types, [0, 0, 1, 1]);
}

#[tokio::test]
async fn a_reranker_takes_pairs_and_gives_scores_and_logits() {
    let server = TestServer::start().await;
    let request = ModelInferRequest {
        inputs: vec![tensor("TEXT", "BYTES", &[2]), tensor("TEXT_PAIR", "BYTES", &[2])],
        raw_input_contents: vec![raw_bytes(&["web", "web"]), raw_bytes(&["a small web server", "python json"])],
        ..texts("rank", &["web"])
    };
    let response = server.infer(request).await.unwrap();
    let names: Vec<_> = response.outputs.iter().map(|output| output.name.as_str()).collect();
    assert_eq!(names, ["scores", "logits"]);
    let submitted = server.engine.accepted().remove(0);
    assert!(submitted.rows.iter().all(|row| row.types.contains(&1)));
    let logits: Vec<f32> = submitted.rows.iter().map(|row| vector(row, 1)[0]).collect();
    assert_eq!(floats(&response, 1), logits);
    assert_eq!(floats(&response, 0), logits.iter().map(|logit| results::sigmoid(*logit)).collect::<Vec<_>>());
    let status = server.infer(texts("rank", &["web"])).await.unwrap_err();
    assert_told(&status, Code::InvalidArgument, &["inputs['TEXT_PAIR']"]);
}

#[tokio::test]
async fn classification_gives_the_best_labels_as_text() {
    let server = TestServer::start().await;
    let best = |count| InferParameter { parameter_choice: Some(ParameterChoice::Int64Param(count)) };
    let wanted = |name: &str, count| InferRequestedOutputTensor {
        name: name.to_owned(),
        parameters: [("classification".to_owned(), best(count))].into(),
    };
    let request = ModelInferRequest { outputs: vec![wanted("logits", 2)], ..token_ids("section", 1, &[9, 4, 8]) };
    let response = server.infer(request).await.unwrap();
    // The fake's logits of [9, 4, 8] are 9 - 0, 4 - 1, 8 - 2.
    let expected = raw_bytes(&[format!("9.000000:0:{}", LABELS[0]), format!("6.000000:2:{}", LABELS[2])]);
    assert_eq!(response.raw_output_contents, [expected]);
    assert_eq!((response.outputs[0].datatype.as_str(), response.outputs[0].shape.as_slice()), ("BYTES", &[1, 2][..]));
    let more = ModelInferRequest { outputs: vec![wanted("scores", 99)], ..token_ids("section", 1, &[9, 4, 8]) };
    assert_eq!(server.infer(more).await.unwrap().outputs[0].shape, [1, 3]);
    let none = ModelInferRequest { outputs: vec![wanted("scores", 0)], ..token_ids("section", 1, &[9, 4, 8]) };
    assert_told(&server.infer(none).await.unwrap_err(), Code::InvalidArgument, &["classification is 0"]);
}

#[tokio::test]
async fn parameters_reach_the_engine_and_the_result() {
    use ParameterChoice::{BoolParam, Int64Param, StringParam};
    let server = TestServer::start().await;
    let plain = || token_ids("embed", 1, &[2, 5, 3]);
    let urgent = with_parameter(plain(), "priority", Int64Param(1));
    server.infer(with_parameter(urgent, "timeout", Int64Param(60_000_000))).await.unwrap();
    let submitted = server.engine.accepted().pop().unwrap();
    assert_eq!(submitted.priority, Priority::High);
    let left = submitted.deadline.unwrap().saturating_duration_since(std::time::Instant::now()).as_secs_f64();
    assert!((50.0..=60.0).contains(&left), "{left}");

    let short = with_parameter(plain(), "dimensions", Int64Param(3));
    let response = server.infer(with_parameter(short, "normalize", BoolParam(false))).await.unwrap();
    assert_eq!(response.outputs[0].shape, [1, 3]);
    assert_eq!(floats(&response, 0), vector(&row(&[2, 5, 3]), 3));

    let long = "web ".repeat(100);
    let status = server.infer(texts("embed", &[&long])).await.unwrap_err();
    assert_told(&status, Code::InvalidArgument, &["row 0", "102 tokens", "takes 32"]);
    server.infer(with_parameter(texts("embed", &[&long]), "truncate", StringParam("end".to_owned()))).await.unwrap();
    assert_eq!(server.engine.accepted().pop().unwrap().rows[0].ids.len(), 32);
    server.infer(texts("wide", &[&long])).await.unwrap();
    let none = StringParam("none".to_owned());
    let status = server.infer(with_parameter(texts("wide", &[&long]), "truncate", none)).await.unwrap_err();
    assert_told(&status, Code::InvalidArgument, &["row 0", "102 tokens"]);

    server.infer(texts("embed", &["search: web"])).await.unwrap();
    let written_out = server.engine.accepted().pop().unwrap().rows;
    let prompted = with_parameter(texts("embed", &["web"]), "prompt_name", StringParam("query".to_owned()));
    server.infer(prompted).await.unwrap();
    assert_eq!(server.engine.accepted().pop().unwrap().rows, written_out);
}

#[tokio::test]
async fn what_client_libraries_add_changes_nothing() {
    let server = TestServer::start().await;
    let plain = server.infer(texts("embed", &["web"])).await.unwrap();
    for name in ["str", "np", "hf"] {
        let parameter = || InferParameter { parameter_choice: Some(ParameterChoice::StringParam(name.to_owned())) };
        let parameters = || [("content_type".to_owned(), parameter()), ("headers".to_owned(), parameter())].into();
        let mut request = ModelInferRequest { parameters: parameters(), ..texts("embed", &["web"]) };
        request.inputs[0].parameters = parameters();
        request.outputs = vec![InferRequestedOutputTensor { name: "embedding".to_owned(), parameters: parameters() }];
        assert_eq!(server.infer(request).await.unwrap().raw_output_contents, plain.raw_output_contents, "{name}");
    }
}

#[tokio::test]
async fn only_the_served_version_is_there() {
    let server = TestServer::start().await;
    let version = |version: &str| ModelInferRequest { model_version: version.to_owned(), ..texts("embed", &["web"]) };
    server.infer(version("1")).await.unwrap();
    server.infer(version("")).await.unwrap();
    assert_told(&server.infer(version("2")).await.unwrap_err(), Code::NotFound, &["embed", "'2'", "'1'"]);
    let unknown = server.infer(texts("none", &["web"])).await.unwrap_err();
    assert_told(&unknown, Code::NotFound, &["'none'", "embed, wide, rank, section, broken"]);
    assert_told(&server.infer(texts("broken", &["web"])).await.unwrap_err(), Code::FailedPrecondition, &["broken"]);
}
