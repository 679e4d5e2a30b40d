//! YAML text to a tree of nodes, in time and memory proportional to the text.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use serde_saphyr::granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, Tag, options};

use super::node::{Node, Value};
use super::scalar::{from_float, resolve_plain};
use super::{DecodeError, MAX_DEPTH, MAX_EXPANDED_SIZE, MAX_NODES, ManifestWarning, WarningSink};

/// Parses `text`, which must hold exactly one document that is not empty.
pub(super) fn parse(text: &str, warnings: &WarningSink) -> Result<Rc<Node>, DecodeError> {
    let options = options! {
        emit_comments: false,
        // A long quoted key of an annotation is no attack.
        simple_key_max_lookahead: 4096,
        flow_nesting_limit: MAX_DEPTH,
        block_nesting_limit: MAX_DEPTH,
    };
    let mut builder = Builder::new(warnings);
    let mut document: Option<Rc<Node>> = None;
    let mut document_line = 0;
    for event in Parser::new_from_str_with_options(text, options) {
        let (event, span) = event.map_err(|error| syntax(&error))?;
        match event {
            Event::DocumentStart(..) => {
                builder.anchors.clear();
                document_line = span.start.line();
            }
            Event::DocumentEnd => {
                let Some(root) = builder.root.take() else { continue };
                if matches!(root.value, Value::Null) {
                    continue;
                }
                if document.is_some() {
                    return Err(DecodeError::SeveralDocuments { line: document_line });
                }
                document = Some(root);
            }
            event => builder.take(event, &span)?,
        }
    }
    document.ok_or(DecodeError::Empty)
}

fn syntax(error: &ScanError) -> DecodeError {
    let marker = error.marker();
    DecodeError::Syntax {
        line: marker.line(),
        column: marker.col() + 1,
        message: error.kind().to_string(),
    }
}

/// A collection whose end has not been seen.
enum Open {
    Sequence {
        items: Vec<Rc<Node>>,
        anchor: usize,
        line: usize,
    },
    Mapping {
        entries: Vec<(Box<str>, Rc<Node>)>,
        index: HashMap<Box<str>, usize>,
        merges: Vec<(Rc<Node>, usize)>,
        key: Option<Key>,
        anchor: usize,
        line: usize,
    },
}

enum Key {
    Name(Box<str>, usize),
    Merge,
}

struct Builder<'a> {
    open: Vec<Open>,
    root: Option<Rc<Node>>,
    /// `None` while the anchored collection is still open: an alias to it would hold itself.
    anchors: HashMap<usize, Option<Rc<Node>>>,
    nodes: usize,
    warnings: &'a WarningSink,
}

impl<'a> Builder<'a> {
    fn new(warnings: &'a WarningSink) -> Self {
        Self { open: Vec::new(), root: None, anchors: HashMap::new(), nodes: 0, warnings }
    }

    fn count(&mut self, nodes: usize) -> Result<(), DecodeError> {
        self.nodes = self.nodes.saturating_add(nodes);
        if self.nodes > MAX_NODES { Err(DecodeError::TooManyNodes) } else { Ok(()) }
    }

    fn take(&mut self, event: Event<'_>, span: &Span) -> Result<(), DecodeError> {
        let line = span.start.line();
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                self.count(1)?;
                if self.expects_key()
                    && style == ScalarStyle::Plain
                    && text == "<<"
                    && tag.is_none()
                {
                    self.set_key(Key::Merge);
                    return Ok(());
                }
                let value = resolve(&text, style, tag.as_deref(), line)?;
                self.put(Rc::new(Node::new(value, line)), anchor, line)
            }
            Event::Alias(id) => {
                self.count(1)?;
                let node = match self.anchors.get(&id) {
                    Some(Some(node)) => Rc::clone(node),
                    _ => return Err(DecodeError::RecursiveAlias { line }),
                };
                self.put(node, 0, line)
            }
            Event::SequenceStart(_, anchor, _) => {
                self.count(1)?;
                self.open_collection(anchor, line)?;
                self.open.push(Open::Sequence { items: Vec::new(), anchor, line });
                Ok(())
            }
            Event::MappingStart(_, anchor, _) => {
                self.count(1)?;
                self.open_collection(anchor, line)?;
                self.open.push(Open::Mapping {
                    entries: Vec::new(),
                    index: HashMap::new(),
                    merges: Vec::new(),
                    key: None,
                    anchor,
                    line,
                });
                Ok(())
            }
            Event::SequenceEnd | Event::MappingEnd => self.close(),
            _ => Ok(()),
        }
    }

    fn open_collection(&mut self, anchor: usize, line: usize) -> Result<(), DecodeError> {
        if self.expects_key() {
            return Err(DecodeError::KeyIsNoScalar { line });
        }
        if self.open.len() >= MAX_DEPTH {
            return Err(DecodeError::TooDeep);
        }
        if anchor != 0 {
            self.anchors.insert(anchor, None);
        }
        Ok(())
    }

    fn expects_key(&self) -> bool {
        matches!(self.open.last(), Some(Open::Mapping { key: None, .. }))
    }

    fn set_key(&mut self, new: Key) {
        if let Some(Open::Mapping { key, .. }) = self.open.last_mut() {
            *key = Some(new);
        }
    }

    /// A finished node goes to where the document is.
    fn put(&mut self, node: Rc<Node>, anchor: usize, line: usize) -> Result<(), DecodeError> {
        if node.height > MAX_DEPTH {
            return Err(DecodeError::TooDeep);
        }
        if node.size > MAX_EXPANDED_SIZE {
            return Err(DecodeError::AliasBomb { line });
        }
        if anchor != 0 {
            self.anchors.insert(anchor, Some(Rc::clone(&node)));
        }
        match self.open.last_mut() {
            None => self.root = Some(node),
            Some(Open::Sequence { items, .. }) => items.push(node),
            Some(Open::Mapping { key: key @ None, .. }) => {
                *key = Some(Key::Name(key_text(&node, line)?, line));
            }
            Some(Open::Mapping { entries, index, merges, key, .. }) => match key.take() {
                Some(Key::Merge) => merges.push((node, line)),
                Some(Key::Name(name, key_line)) => match index.get(&name) {
                    // The last one counts, as in the Go kubelet.
                    Some(at) => {
                        self.warnings.add(ManifestWarning::DuplicateKey {
                            key: name.to_string(),
                            line: key_line,
                        });
                        entries[*at].1 = node;
                    }
                    None => {
                        index.insert(name.clone(), entries.len());
                        entries.push((name, node));
                    }
                },
                None => {}
            },
        }
        Ok(())
    }

    fn close(&mut self) -> Result<(), DecodeError> {
        let (value, anchor, line) = match self.open.pop() {
            Some(Open::Sequence { items, anchor, line }) => (Value::Sequence(items), anchor, line),
            Some(Open::Mapping { mut entries, merges, anchor, line, .. }) => {
                for (node, merge_line) in merges {
                    self.merge(&mut entries, &node, merge_line)?;
                }
                (Value::Mapping(entries), anchor, line)
            }
            None => return Ok(()),
        };
        self.put(Rc::new(Node::new(value, line)), anchor, line)
    }

    /// `<<: *defaults`: what stands in the mapping itself wins, then the earlier source.
    fn merge(
        &mut self,
        entries: &mut Vec<(Box<str>, Rc<Node>)>,
        from: &Node,
        line: usize,
    ) -> Result<(), DecodeError> {
        match &from.value {
            Value::Mapping(more) => {
                // Both are walked, and there may be many merges.
                self.count(more.len() + entries.len())?;
                let present: HashSet<Box<str>> =
                    entries.iter().map(|(name, _)| name.clone()).collect();
                entries.extend(more.iter().filter(|(name, _)| !present.contains(name)).cloned());
                Ok(())
            }
            Value::Sequence(sources) => {
                for source in sources {
                    if !matches!(source.value, Value::Mapping(_)) {
                        return Err(DecodeError::MergeOfNoMapping { line });
                    }
                    self.merge(entries, source, line)?;
                }
                Ok(())
            }
            _ => Err(DecodeError::MergeOfNoMapping { line }),
        }
    }
}

fn key_text(node: &Node, line: usize) -> Result<Box<str>, DecodeError> {
    match &node.value {
        Value::String(text) => Ok(text.clone()),
        Value::Bool(value) => Ok(value.to_string().into()),
        Value::Int(value) => Ok(value.to_string().into()),
        Value::BigInt(value) => Ok(value.to_string().into()),
        Value::Float(value) => Ok(value.to_string().into()),
        _ => Err(DecodeError::KeyIsNoScalar { line }),
    }
}

fn resolve(
    text: &str,
    style: ScalarStyle,
    tag: Option<&Tag>,
    line: usize,
) -> Result<Value, DecodeError> {
    let Some(tag) = tag else {
        return Ok(if style == ScalarStyle::Plain {
            resolve_plain(text)
        } else {
            Value::String(text.into())
        });
    };
    let mismatch = || DecodeError::Syntax {
        line,
        column: 1,
        message: format!("{text:?} does not fit its tag {}", tag.original()),
    };
    match tag.core_suffix() {
        Some("str") => Ok(Value::String(text.into())),
        Some("null") => match resolve_plain(text) {
            Value::Null => Ok(Value::Null),
            _ => Err(mismatch()),
        },
        Some("bool") => match resolve_plain(text) {
            value @ Value::Bool(_) => Ok(value),
            _ => Err(mismatch()),
        },
        Some("int") => match resolve_plain(text) {
            value @ (Value::Int(_) | Value::BigInt(_)) => Ok(value),
            _ => Err(mismatch()),
        },
        Some("float") => match resolve_plain(text) {
            value @ (Value::Int(_) | Value::BigInt(_) | Value::Float(_)) => Ok(value),
            _ => text.parse().map(from_float).map_err(|_| mismatch()),
        },
        // Tags that mean nothing to a pod leave the text alone.
        _ => Ok(Value::String(text.into())),
    }
}
