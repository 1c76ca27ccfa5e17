//! What `proto/` says of the calls that are served here and of the messages that come with them, read once from the
//! descriptors that reflection shows.

use std::collections::HashMap;
use std::sync::LazyLock;

use prost::Message;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, FieldDescriptorProto, FileDescriptorSet};

use super::proto::DESCRIPTORS;

/// What a field holds that takes more memory than it has bytes in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holds {
    /// A message, by its number.
    Message(usize),
    /// Numbers end to end, each of as few bytes as it needs.
    Numbers,
}

/// Such fields of a message by their tags.
pub(super) type Layout = HashMap<u32, Holds>;

/// The calls and their messages.
#[derive(Debug, Default)]
pub(super) struct Schema {
    layouts: Vec<Layout>,
    /// Messages that are sent to us, by their full names.
    sent: HashMap<String, usize>,
    /// Paths of calls, and whether a client may send many messages in one.
    calls: HashMap<String, bool>,
}

/// That of this program.
pub(super) static SCHEMA: LazyLock<Schema> = LazyLock::new(|| match FileDescriptorSet::decode(DESCRIPTORS) {
    Ok(descriptors) => Schema::of(&descriptors),
    // They are part of the program, and a test reads them.
    Err(_) => Schema::default(),
});

impl Schema {
    fn of(descriptors: &FileDescriptorSet) -> Schema {
        let mut messages = Vec::new();
        for file in &descriptors.file {
            collect(&format!(".{}", file.package()), &file.message_type, &mut messages);
        }
        let numbers: HashMap<&str, usize> =
            messages.iter().enumerate().map(|(number, (name, _))| (name.as_str(), number)).collect();
        let layout = |message: &DescriptorProto| -> Layout {
            let held = message.field.iter().map(|field| Some((field.number() as u32, holds(field, &numbers)?)));
            held.flatten().collect()
        };
        let layouts = messages.iter().map(|(_, message)| layout(message)).collect();
        let (mut sent, mut calls) = (HashMap::new(), HashMap::new());
        for file in &descriptors.file {
            for service in &file.service {
                for method in &service.method {
                    let path = format!("/{}.{}/{}", file.package(), service.name(), method.name());
                    calls.insert(path, method.client_streaming());
                    if let Some(number) = numbers.get(method.input_type()) {
                        sent.insert(method.input_type().trim_start_matches('.').to_owned(), *number);
                    }
                }
            }
        }
        Schema { layouts, sent, calls }
    }

    /// The layout of the message of this name, if it is one that clients send.
    pub(super) fn sent(&self, name: &str) -> Option<&Layout> {
        self.layouts.get(*self.sent.get(name)?)
    }

    /// That of the message of this number.
    pub(super) fn layout(&self, number: usize) -> Option<&Layout> {
        self.layouts.get(number)
    }

    /// Whether the path is that of a call that is served here.
    pub(super) fn knows(&self, path: &str) -> bool {
        self.calls.contains_key(path)
    }

    /// Whether it is one in which a client may send many messages.
    pub(super) fn is_stream(&self, path: &str) -> bool {
        self.calls.get(path).copied().unwrap_or(false)
    }
}

/// Messages with their full names, those inside of others behind them.
fn collect<'a>(place: &str, found: &'a [DescriptorProto], messages: &mut Vec<(String, &'a DescriptorProto)>) {
    for message in found {
        let name = format!("{place}.{}", message.name());
        messages.push((name.clone(), message));
        collect(&name, &message.nested_type, messages);
    }
}

fn holds(field: &FieldDescriptorProto, numbers: &HashMap<&str, usize>) -> Option<Holds> {
    match field.r#type() {
        Type::Message => numbers.get(field.type_name()).copied().map(Holds::Message),
        Type::Int32 | Type::Int64 | Type::Uint32 | Type::Uint64 | Type::Sint32 | Type::Sint64 | Type::Enum
            if field.label() == Label::Repeated =>
        {
            Some(Holds::Numbers)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_known_with_those_inside() {
        let request = SCHEMA.sent("inference.ModelInferRequest").unwrap();
        let Some(Holds::Message(input)) = request.get(&5) else { panic!("{request:?}") };
        let input = SCHEMA.layout(*input).unwrap();
        assert_eq!(input.get(&3), Some(&Holds::Numbers), "the shape");
        let Some(Holds::Message(contents)) = input.get(&5) else { panic!("{input:?}") };
        let contents = SCHEMA.layout(*contents).unwrap();
        assert_eq!((contents.get(&3), contents.get(&8)), (Some(&Holds::Numbers), None));
        assert_eq!(SCHEMA.sent("inference.ModelInferResponse"), None, "nobody sends us that");
        assert!(SCHEMA.sent("plimsoll.v1.EmbedRequest").is_some() && SCHEMA.sent("tei.v1.EmbedRequest").is_some());
    }

    #[test]
    fn calls_are_known() {
        let check = |path, known, stream| assert_eq!((SCHEMA.knows(path), SCHEMA.is_stream(path)), (known, stream));
        check("/inference.GRPCInferenceService/ModelInfer", true, false);
        check("/inference.GRPCInferenceService/ModelStreamInfer", true, true);
        check("/tei.v1.Rerank/RerankStream", true, true);
        check("/plimsoll.v1.Embed/Embed", true, false);
        check("/plimsoll.v1.Embed/Other", false, false);
        check("", false, false);
    }
}
