use std::rc::Rc;

/// What a node takes beside its text.
const NODE_SIZE: u64 = 32;

/// A value of a manifest, before anybody knows what it should be.
#[derive(Debug, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    /// Above the range of `i64`.
    BigInt(u64),
    Float(f64),
    String(Box<str>),
    Sequence(Vec<Rc<Node>>),
    /// In the order of the file; keys are unique.
    Mapping(Vec<(Box<str>, Rc<Node>)>),
}

/// A value and where it stands. Aliases share one node, so a document's tree is never larger than
/// its text; `size` and `height` say what it would be if every alias were written out.
#[derive(Debug, PartialEq)]
pub(super) struct Node {
    pub(super) value: Value,
    /// Counted from 1; 0 when unknown.
    pub(super) line: usize,
    /// Roughly the bytes it takes, aliases written out.
    pub(super) size: u64,
    /// Levels beneath and including this one, aliases written out.
    pub(super) height: usize,
}

impl Node {
    pub(super) fn new(value: Value, line: usize) -> Self {
        let (size, height) = match &value {
            Value::String(text) => (NODE_SIZE + text.len() as u64, 1),
            Value::Sequence(items) => measure(items.iter()),
            Value::Mapping(entries) => {
                let (size, height) = measure(entries.iter().map(|(_, node)| node));
                let keys: u64 = entries.iter().map(|(key, _)| key.len() as u64).sum();
                (size.saturating_add(keys), height)
            }
            _ => (NODE_SIZE, 1),
        };
        Self { value, line, size, height }
    }

    pub(super) fn get(&self, name: &str) -> Option<&Rc<Self>> {
        match &self.value {
            Value::Mapping(entries) => {
                entries.iter().find(|(key, _)| &**key == name).map(|(_, node)| node)
            }
            _ => None,
        }
    }

    pub(super) fn as_str(&self) -> Option<&str> {
        match &self.value {
            Value::String(text) => Some(text),
            _ => None,
        }
    }
}

fn measure<'a>(children: impl Iterator<Item = &'a Rc<Node>>) -> (u64, usize) {
    let (size, height) = children.fold((NODE_SIZE, 0), |(size, height), node| {
        (size.saturating_add(node.size), height.max(node.height))
    });
    (size, height + 1)
}

impl Value {
    /// What a person would call it.
    pub(super) fn describe(&self) -> String {
        match self {
            Self::Null => "nothing".to_owned(),
            Self::Bool(value) => format!("the boolean {value}"),
            Self::Int(value) => format!("the number {value}"),
            Self::BigInt(value) => format!("the number {value}"),
            Self::Float(value) => format!("the number {value}"),
            Self::String(value) => {
                let start: String = value.chars().take(40).collect();
                format!("the text {start:?}")
            }
            Self::Sequence(_) => "a list".to_owned(),
            Self::Mapping(_) => "a mapping".to_owned(),
        }
    }
}
