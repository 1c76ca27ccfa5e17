//! What is asked: every call of the load, drawn from a seed and its index alone.
//!
//! Call 17 of a seed is the same whenever it is sent and whatever the server did to the calls before it, so that two
//! servers, or two settings of one, get the same load.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail, ensure};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::client::{Call, ModelFacts, Rows, Urgency};
use super::duration::parse_duration;
use super::lengths::Lengths;
use super::weighted::{self, Weighted};
use super::words;
use crate::config::Task;

/// The first token ids of a BERT vocabulary are special (padding, unknown, mask, unused): rows start above them.
const TOKEN_ID_MIN: u32 = 104;

/// In which form rows are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum RowForm {
    /// Texts of English words: the server's tokenizer works too.
    Text,
    /// Token ids: the lengths are exact. A reranker always gets texts.
    Tokens,
}

/// What the load is made of.
#[derive(clap::Args, Clone, Debug)]
pub struct WorkloadArgs {
    /// A model to ask, with its share of the calls; repeatable. Default: every model that is ready, evenly.
    #[arg(long = "model", value_name = "NAME[=WEIGHT]")]
    pub models: Vec<Weighted<String>>,
    /// Lengths of the rows in tokens: encode (log-normal, mean 101), bimodal (90 % 16, 10 % 512),
    /// bimodal:SHORT,LONG,PART, fixed:N, uniform:LOW-HIGH, lognormal:MEAN[,SIGMA].
    #[arg(long, value_name = "DISTRIBUTION", default_value = "encode")]
    pub lengths: Lengths,
    /// Draw a length for each row, or one for all rows of a call.
    #[arg(long, value_enum, default_value_t = LengthsOf::Rows)]
    pub lengths_of: LengthsOf,
    /// Send rows as text or as token ids.
    #[arg(long = "as", value_enum, default_value_t = RowForm::Text)]
    pub form: RowForm,
    /// Draw token ids below this number (with --as tokens): at most the size of the models' vocabularies.
    #[arg(long, value_name = "SIZE", default_value_t = 8192)]
    pub vocabulary: u32,
    /// Take the texts from this file, one a line, instead of drawing them.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["lengths", "form"])]
    pub texts: Option<PathBuf>,
    /// Rows of a call; with several numbers each call draws one of them.
    #[arg(long, value_name = "ROWS", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..))]
    pub rows: Vec<u32>,
    /// Deadline of every call, sent as grpc-timeout.
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    pub deadline: Option<Duration>,
    /// The part of the calls that the client cancels before --cancel-after.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.0)]
    pub cancel: f64,
    /// Cancelled calls are dropped at a moment drawn evenly from 0 to this.
    #[arg(long, value_name = "DURATION", default_value = "50ms", value_parser = parse_duration)]
    pub cancel_after: Duration,
    /// Priorities of the calls: low, normal, high, each with a weight; repeatable.
    #[arg(long = "priority", value_name = "CLASS[=WEIGHT]")]
    pub priorities: Vec<Weighted<Urgency>>,
    /// Seed of everything that is drawn.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Calls whose answers are asked for one at a time before the load and compared with those under load; 0: none.
    #[arg(long, value_name = "CALLS", default_value_t = 32)]
    pub check: u32,
    /// The part of the load that is made of those calls.
    #[arg(long, value_name = "FRACTION", default_value_t = 0.05)]
    pub check_share: f64,
}

/// Whose length is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum LengthsOf {
    /// Each row's.
    Rows,
    /// Each call's, for all its rows: one caller sends queries, another documents.
    Calls,
}

/// The load, drawn call by call.
pub(super) struct Workload {
    args: WorkloadArgs,
    models: Vec<Weighted<ModelFacts>>,
    texts: Vec<String>,
}

impl Workload {
    /// The load that `args` describes, over the `served` models.
    ///
    /// # Errors
    /// A model that the server does not have, or none that is ready; a fraction outside 0..1; a texts file that cannot
    /// be read or is empty.
    pub(super) fn new(args: &WorkloadArgs, served: Vec<ModelFacts>) -> anyhow::Result<Workload> {
        for (flag, fraction) in [("--cancel", args.cancel), ("--check-share", args.check_share)] {
            ensure!((0.0..=1.0).contains(&fraction), "{flag} is {fraction}; allowed is 0 to 1");
        }
        let least = TOKEN_ID_MIN + 1;
        ensure!(args.vocabulary >= least, "--vocabulary is {}; allowed is {least} or more", args.vocabulary);
        let texts = match &args.texts {
            Some(path) => {
                let text = std::fs::read_to_string(path).with_context(|| format!("--texts {}", path.display()))?;
                let lines: Vec<String> =
                    text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
                ensure!(!lines.is_empty(), "--texts {}: no line with a text", path.display());
                lines
            }
            None => Vec::new(),
        };
        Ok(Workload { args: args.clone(), models: choose(&args.models, served)?, texts })
    }

    /// The models that are asked, in the order of [`Call::model`].
    pub(super) fn models(&self) -> impl Iterator<Item = &ModelFacts> {
        self.models.iter().map(|model| &model.value)
    }

    /// The model with this index.
    pub(super) fn model(&self, index: usize) -> &ModelFacts {
        &self.models[index].value
    }

    /// The number of calls whose answers are checked.
    pub(super) fn references(&self) -> u32 {
        self.args.check
    }

    /// The call with this index.
    pub(super) fn call(&self, index: u64) -> Call {
        let mut rng = generator(self.args.seed, Stream::Calls, index);
        let reference = self.args.check > 0 && rng.random_bool(self.args.check_share);
        let mut call = match reference {
            true => self.reference(rng.random_range(0..self.args.check)),
            false => self.payload(&mut rng),
        };
        if !self.args.priorities.is_empty() {
            call.urgency = self.args.priorities[weighted::draw(&self.args.priorities, &mut rng)].value;
        }
        call.deadline = self.args.deadline;
        if rng.random_bool(self.args.cancel) {
            call.cancel_after = Some(self.args.cancel_after.mul_f64(rng.random::<f64>()));
        }
        call
    }

    /// One of the calls whose answers are checked: without deadline or cancel.
    pub(super) fn reference(&self, number: u32) -> Call {
        let mut rng = generator(self.args.seed, Stream::References, u64::from(number));
        Call { reference: Some(number), ..self.payload(&mut rng) }
    }

    fn payload(&self, rng: &mut StdRng) -> Call {
        let model = weighted::draw(&self.models, rng);
        let facts = &self.models[model].value;
        let count = self.args.rows[rng.random_range(0..self.args.rows.len())];
        let tokens = self.args.form == RowForm::Tokens && self.texts.is_empty() && facts.task != Task::Rerank;
        let draw = |rng: &mut StdRng| self.args.lengths.draw(facts.length_max, rng);
        let of_call = (self.args.lengths_of == LengthsOf::Calls).then(|| draw(rng));
        let length = |rng: &mut StdRng| of_call.unwrap_or_else(|| draw(rng));
        let rows = match tokens {
            true => Rows::Tokens((0..count).map(|_| self.token_row(length(rng), rng)).collect()),
            false => Rows::Texts((0..count).map(|_| self.text(length, rng)).collect()),
        };
        let query = match facts.task {
            Task::Rerank => words::text_of(8, rng),
            Task::Embed | Task::Classify | Task::TokenClassify => String::new(),
        };
        Call { model, query, rows, urgency: Urgency::Normal, deadline: None, cancel_after: None, reference: None }
    }

    fn text(&self, length: impl Fn(&mut StdRng) -> u32, rng: &mut StdRng) -> String {
        match self.texts.as_slice() {
            // Two special tokens are the tokenizer's.
            [] => words::text_of(length(rng) - 2, rng),
            texts => texts[rng.random_range(0..texts.len())].clone(),
        }
    }

    fn token_row(&self, length: u32, rng: &mut StdRng) -> Vec<u32> {
        (0..length).map(|_| rng.random_range(TOKEN_ID_MIN..self.args.vocabulary)).collect()
    }
}

/// The asked-for models among the served ones; without any, all that can answer at once.
fn choose(asked: &[Weighted<String>], served: Vec<ModelFacts>) -> anyhow::Result<Vec<Weighted<ModelFacts>>> {
    if asked.is_empty() {
        let ready: Vec<_> = served.into_iter().filter(|model| model.ready).collect();
        if ready.is_empty() {
            bail!("the server has no model that is ready: name one with --model, or wait for it");
        }
        return Ok(ready.into_iter().map(|value| Weighted { value, weight: 1.0 }).collect());
    }
    let find = |choice: &Weighted<String>| {
        let found = served.iter().find(|model| model.name == choice.value).cloned();
        let value = found.with_context(|| {
            let names: Vec<_> = served.iter().map(|model| model.name.as_str()).collect();
            format!("--model {}: the server has {}", choice.value, names.join(", "))
        })?;
        Ok(Weighted { value, weight: choice.weight })
    };
    asked.iter().map(find).collect()
}

/// What a generator is for: the streams of one seed must not repeat each other.
#[derive(Clone, Copy)]
enum Stream {
    Calls = 1,
    References = 2,
}

/// An own generator for each call. The odd constants spread neighbouring indices (splitmix64's increment and another).
fn generator(seed: u64, stream: Stream, index: u64) -> StdRng {
    let spread = index.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    StdRng::seed_from_u64(seed.wrapping_mul(0xD134_2543_DE82_EF95) ^ spread ^ ((stream as u64) << 32))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::config::Dtype;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: WorkloadArgs,
    }

    fn served() -> Vec<ModelFacts> {
        let model = |name: &str, task, ready| ModelFacts {
            name: name.to_owned(),
            task,
            dtype: Dtype::F32,
            length_max: 256,
            ready,
            settled: true,
        };
        vec![model("e", Task::Embed, true), model("r", Task::Rerank, true), model("off", Task::Classify, false)]
    }

    fn workload(line: &str) -> anyhow::Result<Workload> {
        let words = std::iter::once("bench").chain(line.split_whitespace());
        Workload::new(&Line::try_parse_from(words)?.args, served())
    }

    #[test]
    fn a_call_depends_on_seed_and_index_only() {
        let (one, other) = (workload("--seed 4 --cancel 0.5").unwrap(), workload("--seed 4 --cancel 0.5").unwrap());
        for index in [9, 0, 3_000_000] {
            assert_eq!(one.call(index), other.call(index));
        }
        assert_ne!(one.call(1), one.call(2));
        assert_ne!(one.call(1), workload("--seed 5 --cancel 0.5").unwrap().call(1));
    }

    #[test]
    fn only_ready_models_are_asked_unless_named() {
        let names = |line: &str| workload(line).unwrap().models().map(|model| model.name.clone()).collect::<Vec<_>>();
        assert_eq!(names(""), ["e", "r"]);
        assert_eq!(names("--model off=2 --model e"), ["off", "e"]);
        let error = workload("--model x").err().unwrap().to_string();
        assert_eq!(error, "--model x: the server has e, r, off");
        assert!(Workload::new(&Line::parse_from(["bench"]).args, Vec::new()).is_err());
    }

    #[test]
    fn fractions_of_the_load_are_as_asked() {
        let load = workload(
            "--model e --cancel 0.2 --check-share 0.1 --rows 1,3 --priority low --priority high=3 --deadline 1s",
        );
        let load = load.unwrap();
        let calls: Vec<Call> = (0..5_000).map(|index| load.call(index)).collect();
        let share = |pick: &dyn Fn(&Call) -> bool| calls.iter().filter(|call| pick(call)).count() as f64 / 5_000.0;
        let check = |found: f64, expected: f64| assert!((found - expected).abs() < 0.025, "{found}, not {expected}");
        check(share(&|call| call.cancel_after.is_some()), 0.2);
        check(share(&|call| call.reference.is_some()), 0.1);
        check(share(&|call| call.rows.len() == 3), 0.5);
        check(share(&|call| call.urgency == Urgency::High), 0.75);
        check(share(&|call| call.deadline == Some(Duration::from_secs(1))), 1.0);
        assert!(calls.iter().all(|call| call.cancel_after.is_none_or(|after| after < Duration::from_millis(50))));
    }

    #[test]
    fn token_rows_have_the_drawn_length_and_rerankers_get_texts() {
        let load = workload("--model e --model r --as tokens --lengths fixed:20 --vocabulary 200").unwrap();
        let (mut tokens, mut texts) = (0, 0);
        for index in 0..100 {
            let call = load.call(index);
            match (&call.rows, load.model(call.model).task) {
                (Rows::Tokens(rows), Task::Embed) => {
                    tokens += 1;
                    assert!(rows.iter().all(|row| row.len() == 20 && row.iter().all(|id| (104..200).contains(id))));
                }
                (Rows::Texts(rows), Task::Rerank) => {
                    texts += 1;
                    assert!(!call.query.is_empty() && rows.iter().all(|row| row.split(' ').count() == 18));
                }
                (rows, task) => panic!("{task} got {rows:?}"),
            }
        }
        assert!(tokens > 20 && texts > 20);
    }

    #[test]
    fn rows_of_a_call_are_alike_where_calls_have_lengths() {
        let load = |of: &str| workload(&format!("--model e --as tokens --rows 8 --lengths uniform:9-90 {of}")).unwrap();
        let lengths = |load: &Workload, index| match load.call(index).rows {
            Rows::Tokens(rows) => rows.iter().map(Vec::len).collect::<Vec<_>>(),
            Rows::Texts(_) => panic!("tokens were asked for"),
        };
        let (calls, rows) = (load("--lengths-of calls"), load(""));
        let is_alike = |load, index| lengths(load, index).windows(2).all(|two| two[0] == two[1]);
        let alike = |load| (0..50).filter(|&index| is_alike(load, index)).count();
        assert_eq!((alike(&calls), alike(&rows)), (50, 0));
        let mut different: Vec<usize> = (0..50).map(|index| lengths(&calls, index)[0]).collect();
        different.sort_unstable();
        different.dedup();
        assert!(different.len() > 20, "calls differ: {different:?}");
    }

    #[test]
    fn texts_come_from_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "first text\n\n second text \n").unwrap();
        let load = workload(&format!("--model e --texts {}", file.path().display())).unwrap();
        let mut seen: Vec<String> = (0..50)
            .map(|index| match load.call(index).rows {
                Rows::Texts(mut rows) => rows.remove(0),
                Rows::Tokens(_) => panic!("texts were asked for"),
            })
            .collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen, ["first text", "second text"]);
        std::fs::write(file.path(), "\n").unwrap();
        assert!(workload(&format!("--texts {}", file.path().display())).is_err());
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for line in
            ["--cancel 1.5", "--check-share -0.1", "--vocabulary 90", "--rows 0", "--lengths none", "--priority x"]
        {
            assert!(workload(line).is_err(), "{line}");
        }
    }
}
