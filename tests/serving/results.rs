//! Answers do not depend on what else the server does.

use tokio::task::JoinSet;

use crate::support::{Model, SMALL, TestServer, cosine, embed, row, vectors};

const TWIN: Model<'static> = ("twin", "tiny-embed", "dtype = \"int8\"\nlength_max = 64\nstep_tokens_max = 256\n");

/// Each row alone.
async fn singles(server: &TestServer, model: &str, rows: &[Vec<u32>]) -> Vec<Vec<f32>> {
    let mut singles = Vec::new();
    for row in rows {
        singles.extend(vectors(server.embed(model, std::slice::from_ref(row)).await.unwrap()));
    }
    singles
}

fn assert_same(found: &[Vec<f32>], expected: &[Vec<f32>], least: f64, what: &str) {
    assert_eq!(found.len(), expected.len());
    for (index, (a, b)) in found.iter().zip(expected).enumerate() {
        assert!(cosine(a, b) >= least, "{what}: row {index} has a cosine of {} to its single answer", cosine(a, b));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_13_batched_answers_equal_single_ones() {
    let server = TestServer::start(&[SMALL]).await;
    let rows: Vec<Vec<u32>> = (0..33).map(|index| row(index, 1 + (index * 7) % 60)).collect();
    let expected = singles(&server, "small", &rows).await;
    // Big, small, big: what a step leaves behind must not show in the next.
    for count in [33, 1, 33, 2, 3, 8, 33] {
        let found = vectors(server.embed("small", &rows[..count]).await.unwrap());
        assert_same(&found, &expected[..count], 0.999_999, &format!("a batch of {count}"));
    }
    let equal: Vec<Vec<u32>> = (0..8).map(|index| row(index, 16)).collect();
    let expected = singles(&server, "small", &equal).await;
    let found = vectors(server.embed("small", &equal).await.unwrap());
    assert_same(&found, &expected, 0.999_999, "rows of one length");
    server.until_measured("small").await;
    let first = server.embed("small", &rows[..4]).await.unwrap();
    let again = server.embed("small", &rows[..4]).await.unwrap();
    assert_eq!(vectors(first), vectors(again), "the same batch gives the same bits");
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_14_interleaved_models_give_their_own_answers() {
    let server = TestServer::start(&[SMALL, TWIN]).await;
    let rows: Vec<Vec<u32>> = (0..24).map(|index| row(index, 12)).collect();
    let own = [singles(&server, "small", &rows).await, singles(&server, "twin", &rows).await];
    let mut calls = JoinSet::new();
    for index in 0..rows.len() {
        for (which, model) in ["small", "twin"].into_iter().enumerate() {
            let (channel, rows) = (server.channel.clone(), vec![rows[index].clone()]);
            calls.spawn(async move { (index, which, embed(channel, model.to_owned(), rows).await.unwrap()) });
        }
    }
    for (index, which, response) in calls.join_all().await {
        let found = vectors(response).remove(0);
        let (mine, other) = (cosine(&found, &own[which][index]), cosine(&found, &own[1 - which][index]));
        assert!(mine >= 0.999_99, "row {index} of model {which}: {mine}");
        assert!(mine > other, "row {index} is closer to the other model's answer: {mine}, {other}");
    }
    server.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_16_a_client_batch_larger_than_a_step_is_split_and_comes_back_whole() {
    let server = TestServer::start(&[SMALL]).await;
    // At most 256 tokens a step: 12 rows of 20.
    let rows: Vec<Vec<u32>> = (0..100).map(|index| row(index, 20)).collect();
    let before = server.status("small").statistics.rows;
    let response = server.embed("small", &rows).await.unwrap();
    let steps = &response.metadata.as_ref().unwrap().steps;
    assert!(steps.len() >= 100_usize.div_ceil(12), "{} steps", steps.len());
    assert!(steps.iter().all(|step| step.batch_rows <= 12 && step.true_peak_bytes <= step.lease_ceiling_bytes));
    assert_eq!(steps.iter().map(|step| step.batch_rows).sum::<u32>(), 100, "nobody else had rows in them");
    let found = vectors(response);
    for index in [0, 1, 49, 98, 99] {
        let alone = vectors(server.embed("small", &rows[index..=index]).await.unwrap());
        assert_same(&found[index..=index], &alone, 0.999_999, "the order is kept");
    }
    assert_eq!(server.status("small").statistics.rows, before + 105, "rows are counted, not calls");
    server.end().await;
}
