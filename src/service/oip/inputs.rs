//! From input tensors to rows: texts, pairs of texts, or token ids.

use prost::bytes::Bytes;

use super::parameters::Parameters;
use super::tensor::Tensor;
use crate::config::Task;
use crate::model::{ModelCard, TokenRow};
use crate::service::context::Context;
use crate::service::errors::Problem;
use crate::service::port::Inference;
use crate::service::proto::inference::model_infer_request::InferInputTensor;
use crate::service::request::{self, Encoding, Rows};
use crate::tokenize::TextRow;

/// The input tensors of a request by their role.
#[derive(Debug, Default)]
struct Inputs {
    text: Option<Tensor>,
    text_pair: Option<Tensor>,
    input_ids: Option<Tensor>,
    attention_mask: Option<Tensor>,
    token_type_ids: Option<Tensor>,
}

const NAMES: &str = "TEXT, TEXT_PAIR, input_ids, attention_mask, token_type_ids";

/// Where the tokens that a client has sent are in its tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Padded {
    /// Tokens of each row of the tensor, padding included.
    pub(crate) columns: usize,
    /// The column of each row's first real token.
    pub(crate) firsts: Vec<usize>,
}

/// Decodes and checks the inputs of a request. Of token ids it says how they were padded.
pub(crate) fn rows<E: Inference>(
    context: &Context<E>,
    card: &ModelCard,
    inputs: Vec<(InferInputTensor, Option<Bytes>)>,
    parameters: &Parameters,
) -> Result<(Rows, Option<Padded>), Problem> {
    let inputs = Inputs::read(inputs)?;
    match inputs {
        Inputs { text: Some(text), text_pair, input_ids: None, attention_mask: None, token_type_ids: None } => {
            Ok((texts(context, card, text, text_pair, parameters)?, None))
        }
        Inputs { text: None, text_pair: None, input_ids: Some(ids), attention_mask, token_type_ids } => {
            let (rows, padded) = tokens(context, card, ids, attention_mask, token_type_ids)?;
            Ok((rows, Some(padded)))
        }
        Inputs { text: None, input_ids: None, .. } => {
            Err(Problem::invalid("inputs", "neither TEXT nor input_ids is there: send one of them"))
        }
        _ => Err(Problem::invalid("inputs", "texts and token ids are mixed: send TEXT, or input_ids with its masks")),
    }
}

/// Each input with the blob that belongs to it: they are in the same order, all of them or none.
pub(crate) fn with_blobs(
    inputs: Vec<InferInputTensor>,
    raw: Vec<Bytes>,
) -> Result<Vec<(InferInputTensor, Option<Bytes>)>, Problem> {
    if !raw.is_empty() && raw.len() != inputs.len() {
        let (blobs, count) = (raw.len(), inputs.len());
        let text = format!("it has {blobs} blobs for {count} inputs: send one for each, in order, or none at all");
        return Err(Problem::invalid("raw_input_contents", text));
    }
    let mut raw = raw.into_iter();
    Ok(inputs.into_iter().map(|input| (input, raw.next())).collect())
}

impl Inputs {
    fn read(inputs: Vec<(InferInputTensor, Option<Bytes>)>) -> Result<Inputs, Problem> {
        let mut found = Inputs::default();
        for (input, raw) in inputs {
            let tensor = Tensor::read(input, raw)?;
            let place = match tensor.name.as_str() {
                "TEXT" => &mut found.text,
                "TEXT_PAIR" => &mut found.text_pair,
                "input_ids" => &mut found.input_ids,
                "attention_mask" => &mut found.attention_mask,
                "token_type_ids" => &mut found.token_type_ids,
                _ => return Err(Problem::invalid(tensor.field, format!("there is no such input; there are: {NAMES}"))),
            };
            if place.is_some() {
                return Err(Problem::invalid(tensor.field, "it is there twice"));
            }
            *place = Some(tensor);
        }
        Ok(found)
    }
}

/// Rows of a tensor of single values: `[rows]`, or `[rows, 1]` as clients write it that keep a dimension of the value.
fn rows_of_texts(tensor: &Tensor) -> Result<usize, Problem> {
    match tensor.shape.as_slice() {
        [rows] | [rows, 1] => Ok(*rows),
        other => Err(Problem::invalid(tensor.field.clone(), format!("its shape is {other:?} and has to be [rows]"))),
    }
}

fn texts<E: Inference>(
    context: &Context<E>,
    card: &ModelCard,
    text: Tensor,
    pair: Option<Tensor>,
    parameters: &Parameters,
) -> Result<Rows, Problem> {
    let rows = rows_of_texts(&text)?;
    context.check_rows(&text.field, rows)?;
    if let Some(pair) = &pair {
        let other = rows_of_texts(pair)?;
        if other != rows {
            return Err(Problem::invalid(pair.field.clone(), format!("it has {other} rows and TEXT has {rows}")));
        }
    }
    let checked = |tensor: Tensor| {
        let field = tensor.field.clone();
        let texts = tensor.into_texts()?;
        for (row, text) in texts.iter().enumerate() {
            context.check_text(|| format!("{field}[{row}]"), text)?;
        }
        Ok::<_, Problem>(texts)
    };
    let prompt = match card.task {
        Task::Embed => request::prompt(card, "parameters['prompt_name']", &parameters.prompt_name)?,
        Task::Classify | Task::Rerank | Task::TokenClassify => String::new(),
    };
    let (texts, field): (Vec<TextRow>, _) = match (card.task, pair) {
        (Task::Rerank, Some(pair)) => {
            let pairs = checked(text)?.into_iter().zip(checked(pair)?);
            (pairs.map(|(text, pair)| TextRow { text, pair: Some(pair) }).collect(), "inputs['TEXT_PAIR']")
        }
        (Task::Rerank, None) => {
            return Err(Problem::invalid(
                "inputs['TEXT_PAIR']",
                "a reranker takes the query in TEXT and the text in it",
            ));
        }
        (Task::Embed | Task::Classify | Task::TokenClassify, None) => {
            let texts = checked(text)?.into_iter();
            (texts.map(|text| TextRow { text: format!("{prompt}{text}"), pair: None }).collect(), "inputs['TEXT']")
        }
        (Task::Embed | Task::Classify | Task::TokenClassify, Some(pair)) => {
            return Err(Problem::invalid(pair.field, format!("model '{}' takes single texts", card.name)));
        }
    };
    let placed = card.task == Task::TokenClassify;
    Ok(Rows::Texts(texts, Encoding { placed, ..Encoding::new(parameters.truncate.unwrap_or(card.truncate), field) }))
}

fn tokens<E: Inference>(
    context: &Context<E>,
    card: &ModelCard,
    ids: Tensor,
    mask: Option<Tensor>,
    types: Option<Tensor>,
) -> Result<(Rows, Padded), Problem> {
    let field = ids.field.clone();
    let &[rows, length] = ids.shape.as_slice() else {
        return Err(Problem::invalid(field, format!("its shape is {:?} and has to be [rows, tokens]", ids.shape)));
    };
    context.check_rows(&field, rows)?;
    if length == 0 {
        return Err(Problem::invalid(field, "its rows have no tokens"));
    }
    for other in [&mask, &types].into_iter().flatten() {
        if other.shape != ids.shape {
            let text = format!("its shape is {:?} and that of input_ids is {:?}", other.shape, ids.shape);
            return Err(Problem::invalid(other.field.clone(), text));
        }
    }
    let ids = ids.into_integers()?;
    let mask = mask.map(Tensor::into_integers).transpose()?;
    let types = types.map(Tensor::into_integers).transpose()?;
    let part = |values: &Option<Vec<i64>>, row: usize, range: std::ops::Range<usize>| {
        values.as_ref().map(|values| values[row * length..][range].to_vec())
    };
    let (mut made, mut firsts) = (Vec::with_capacity(rows), Vec::with_capacity(rows));
    for row in 0..rows {
        let real = match &mask {
            Some(mask) => real_tokens(row, &mask[row * length..][..length])?,
            None => 0..length,
        };
        firsts.push(real.start);
        let to_id = |id: &i64| {
            let text =
                || format!("token id {id}; the vocabulary has the ids 0 to {}", card.vocab_size.saturating_sub(1));
            u32::try_from(*id).map_err(|_| Problem::invalid(format!("{field}[{row}]"), text()))
        };
        let ids = ids[row * length..][real.clone()].iter().map(to_id).collect::<Result<Vec<u32>, _>>()?;
        let types = part(&types, row, real).unwrap_or_default();
        let to_type = |kind: i64| {
            let place = || format!("inputs['token_type_ids'][{row}]");
            u32::try_from(kind).map_err(|_| Problem::invalid(place(), format!("type id {kind} is not a type")))
        };
        let types = types.into_iter().map(to_type).collect::<Result<Vec<u32>, _>>()?;
        made.push(request::check_tokens(card, &field, row, TokenRow::new(ids, types))?);
    }
    Ok((Rows::Tokens(made), Padded { columns: length, firsts }))
}

/// Where the real tokens of a padded row are. Padding may be on either side, but not among them.
fn real_tokens(row: usize, mask: &[i64]) -> Result<std::ops::Range<usize>, Problem> {
    let invalid = |text: &str| Problem::invalid(format!("inputs['attention_mask'][{row}]"), text);
    if mask.iter().any(|value| !matches!(value, 0 | 1)) {
        return Err(invalid("a value is neither 0 nor 1"));
    }
    let Some(first) = mask.iter().position(|value| *value == 1) else {
        return Err(invalid("the row has no real token"));
    };
    let count = mask.iter().filter(|value| **value == 1).count();
    if mask[first..][..count].contains(&0) {
        return Err(invalid("the mask has a gap: padding may only stand before or after the real tokens"));
    }
    Ok(first..first + count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_cut_off_on_either_side() {
        let check = |mask: &[i64], expected| assert_eq!(real_tokens(0, mask).ok(), expected, "{mask:?}");
        check(&[1, 1, 1], Some(0..3));
        check(&[1, 1, 0], Some(0..2));
        check(&[0, 0, 1], Some(2..3));
        check(&[0, 1, 0], Some(1..2));
        check(&[1, 0, 1], None);
        check(&[0, 0, 0], None);
        check(&[1, 2, 0], None);
    }
}
