//! JSON text to a tree of nodes.

use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::node::{Node, Value};
use super::{DecodeError, ManifestWarning, WarningSink};

/// Parses `text`, which must hold exactly one value. Nesting is bounded by the parser.
pub(super) fn parse(text: &str, warnings: &WarningSink) -> Result<Rc<Node>, DecodeError> {
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let seed = NodeSeed { warnings };
    let node = seed.deserialize(&mut deserializer).and_then(|node| {
        deserializer.end()?;
        Ok(node)
    });
    node.map_err(|error| DecodeError::Syntax {
        line: error.line(),
        column: error.column(),
        message: without_position(&error),
    })
}

fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(at) => text[..at].to_owned(),
        None => text,
    }
}

#[derive(Clone, Copy)]
struct NodeSeed<'a> {
    warnings: &'a WarningSink,
}

fn node(value: Value) -> Rc<Node> {
    Rc::new(Node::new(value, 0))
}

impl<'de> DeserializeSeed<'de> for NodeSeed<'_> {
    type Value = Rc<Node>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Rc<Node>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for NodeSeed<'_> {
    type Value = Rc<Node>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Rc<Node>, E> {
        Ok(node(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Rc<Node>, E> {
        Ok(node(Value::Bool(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Rc<Node>, E> {
        Ok(node(Value::Int(value)))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Rc<Node>, E> {
        Ok(node(i64::try_from(value).map_or(Value::BigInt(value), Value::Int)))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Rc<Node>, E> {
        Ok(node(Value::Float(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Rc<Node>, E> {
        Ok(node(Value::String(value.into())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Rc<Node>, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = access.next_element_seed(self)? {
            items.push(item);
        }
        Ok(node(Value::Sequence(items)))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Rc<Node>, A::Error> {
        let mut entries: Vec<(Box<str>, Rc<Node>)> = Vec::new();
        let mut index: HashMap<Box<str>, usize> = HashMap::new();
        while let Some(JsonKey(key)) = access.next_key()? {
            let value = access.next_value_seed(self)?;
            match index.get(&key) {
                Some(at) => {
                    self.warnings
                        .add(ManifestWarning::DuplicateKey { key: key.to_string(), line: 0 });
                    entries[*at].1 = value;
                }
                None => {
                    index.insert(key.clone(), entries.len());
                    entries.push((key, value));
                }
            }
        }
        let node = Node::new(Value::Mapping(entries), 0);
        if node.height > super::MAX_DEPTH {
            return Err(A::Error::custom("nested too deeply"));
        }
        Ok(Rc::new(node))
    }
}

struct JsonKey(Box<str>);

impl<'de> Deserialize<'de> for JsonKey {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer).map(|text| Self(text.into()))
    }
}
