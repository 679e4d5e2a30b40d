//! From a tree of nodes to API types, remembering where every value stands.
//!
//! The API types skip fields they do not know; this deserializer notices and reports them.

use std::fmt;
use std::rc::Rc;

use serde::de::{
    DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor,
    value::StrDeserializer,
};
use serde::forward_to_deserialize_any;

use super::node::{Node, Value};
use super::scalar::json_number;
use super::{ManifestWarning, WarningSink};

/// A value that is not what its field takes.
#[derive(Debug)]
pub(super) struct TypeError {
    /// `None` until the place is known.
    pub(super) place: Option<(String, usize)>,
    pub(super) message: String,
}

impl TypeError {
    fn at(self, path: &Path<'_>, line: usize) -> Self {
        match self.place {
            Some(_) => self,
            None => Self { place: Some((path.to_string(), line)), message: self.message },
        }
    }
}

impl fmt::Display for TypeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for TypeError {}

impl serde::de::Error for TypeError {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { place: None, message: message.to_string() }
    }
}

/// `spec.containers[0].image`, kept on the stack.
#[derive(Clone, Copy)]
pub(super) enum Path<'a> {
    Root,
    Field(&'a Path<'a>, &'a str),
    Item(&'a Path<'a>, usize),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => Ok(()),
            Self::Field(Path::Root, name) => f.write_str(name),
            Self::Field(parent, name) => write!(f, "{parent}.{name}"),
            Self::Item(parent, index) => write!(f, "{parent}[{index}]"),
        }
    }
}

/// Reads one node. Like Go, it takes `null` in a list or a map for the type's zero value.
pub(super) struct NodeDeserializer<'a, 'p> {
    pub(super) node: &'a Node,
    pub(super) path: Path<'p>,
    pub(super) warnings: &'p WarningSink,
}

impl<'a> NodeDeserializer<'a, '_> {
    fn no_items(&self) -> Items<'a, '_> {
        Items { path: &self.path, warnings: self.warnings, items: &[], next: 0 }
    }

    fn no_entries(&self) -> Entries<'a, '_> {
        Entries { path: &self.path, warnings: self.warnings, entries: &[], next: 0 }
    }

    fn mismatch(&self, expected: &str) -> TypeError {
        let hint = match (&self.node.value, expected) {
            (Value::Bool(_) | Value::Int(_) | Value::BigInt(_) | Value::Float(_), "text") => {
                " (quote it)"
            }
            _ => "",
        };
        TypeError {
            place: Some((self.path.to_string(), self.node.line)),
            message: format!("expected {expected}, found {}{hint}", self.node.value.describe()),
        }
    }
}

macro_rules! expect_number {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, TypeError> {
            match &self.node.value {
                Value::Int(_) | Value::BigInt(_) => self.deserialize_any(visitor),
                Value::Null => visitor.visit_i64(0),
                Value::Float(value) => Err(self.mismatch(&format!("a whole number instead of {value}"))),
                _ => Err(self.mismatch("a number")),
            }
        }
    )*};
}

impl<'a> Deserializer<'a> for NodeDeserializer<'a, '_> {
    type Error = TypeError;

    fn deserialize_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, TypeError> {
        let (path, line) = (self.path, self.node.line);
        match &self.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Int(value) => visitor.visit_i64(*value),
            Value::BigInt(value) => visitor.visit_u64(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::String(text) => visitor.visit_borrowed_str(text),
            Value::Sequence(items) => visitor.visit_seq(Items { items, ..self.no_items() }),
            Value::Mapping(entries) => visitor.visit_map(Entries { entries, ..self.no_entries() }),
        }
        .map_err(|error| error.at(&path, line))
    }

    fn deserialize_option<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, TypeError> {
        match &self.node.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'a>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, TypeError> {
        if name == "Quantity" {
            // The API takes bare numbers as quantities too: `cpu: 1`, `memory: 1.5`.
            let number = match &self.node.value {
                Value::Null => Some("0".to_owned()),
                Value::Int(value) => Some(value.to_string()),
                Value::BigInt(value) => Some(value.to_string()),
                Value::Float(value) if value.is_finite() => Some(json_number(*value)),
                Value::String(_) => None,
                _ => return Err(self.mismatch("a quantity")),
            };
            if let Some(number) = number {
                let (path, line) = (self.path, self.node.line);
                let text: StrDeserializer<'_, TypeError> = number.as_str().into_deserializer();
                return visitor.visit_newtype_struct(text).map_err(|error| error.at(&path, line));
            }
        }
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_str<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, TypeError> {
        match &self.node.value {
            Value::String(_) => self.deserialize_any(visitor),
            Value::Null => visitor.visit_borrowed_str(""),
            _ => Err(self.mismatch("text")),
        }
    }

    fn deserialize_string<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, TypeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bool<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, TypeError> {
        match &self.node.value {
            Value::Bool(_) => self.deserialize_any(visitor),
            Value::Null => visitor.visit_bool(false),
            _ => Err(self.mismatch("true or false")),
        }
    }

    expect_number! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64
    }

    fn deserialize_seq<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, TypeError> {
        match &self.node.value {
            Value::Sequence(_) => self.deserialize_any(visitor),
            Value::Null => visitor.visit_seq(self.no_items()),
            _ => Err(self.mismatch("a list")),
        }
    }

    fn deserialize_map<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, TypeError> {
        match &self.node.value {
            Value::Mapping(_) => self.deserialize_any(visitor),
            Value::Null => visitor.visit_map(self.no_entries()),
            _ => Err(self.mismatch("a mapping")),
        }
    }

    fn deserialize_struct<V: Visitor<'a>>(
        self,
        _name: &'static str,
        _fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, TypeError> {
        self.deserialize_map(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'a>>(self, visitor: V) -> Result<V::Value, TypeError> {
        self.warnings.add(ManifestWarning::UnknownField {
            path: self.path.to_string(),
            line: self.node.line,
        });
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        <V: Visitor<'a>>
        i128 u128 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct enum identifier
    }
}

struct Items<'a, 'p> {
    path: &'p Path<'p>,
    warnings: &'p WarningSink,
    items: &'a [Rc<Node>],
    next: usize,
}

impl<'a> SeqAccess<'a> for Items<'a, '_> {
    type Error = TypeError;

    fn next_element_seed<T: DeserializeSeed<'a>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, TypeError> {
        let Some(node) = self.items.get(self.next) else { return Ok(None) };
        let index = self.next;
        self.next += 1;
        deserialize_child(node, Path::Item(self.path, index), self.warnings, seed).map(Some)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.items.len() - self.next)
    }
}

struct Entries<'a, 'p> {
    path: &'p Path<'p>,
    warnings: &'p WarningSink,
    entries: &'a [(Box<str>, Rc<Node>)],
    next: usize,
}

impl<'a> MapAccess<'a> for Entries<'a, '_> {
    type Error = TypeError;

    fn next_key_seed<K: DeserializeSeed<'a>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, TypeError> {
        let Some((name, _)) = self.entries.get(self.next) else { return Ok(None) };
        let key: serde::de::value::BorrowedStrDeserializer<'a, TypeError> =
            serde::de::value::BorrowedStrDeserializer::new(name);
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'a>>(&mut self, seed: V) -> Result<V::Value, TypeError> {
        let (name, node) = &self.entries[self.next];
        self.next += 1;
        deserialize_child(node, Path::Field(self.path, name), self.warnings, seed)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.entries.len() - self.next)
    }
}

fn deserialize_child<'a, S: DeserializeSeed<'a>>(
    node: &'a Node,
    path: Path<'_>,
    warnings: &WarningSink,
    seed: S,
) -> Result<S::Value, TypeError> {
    seed.deserialize(NodeDeserializer { node, path, warnings })
        .map_err(|error| error.at(&path, node.line))
}
