use std::error::Error;
use std::fmt;

use rubelet_types::error_chain;
use tracing::field::{Field, Visit};

/// The value of a field, in the kinds that the two formats write differently.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum FieldValue {
    /// Written without quotes.
    Number(String),
    /// Written without quotes.
    Bool(bool),
    /// Written in quotes.
    Text(String),
}

/// What an event or a span says: the message, and fields in the order in which they were named.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Fields {
    pub(super) message: String,
    /// The field of an error, under the name that klog gives it.
    pub(super) error: Option<String>,
    pub(super) others: Vec<(&'static str, FieldValue)>,
}

impl Fields {
    /// Takes over from a span around what is not said yet.
    pub(super) fn add_missing(&mut self, outer: &Self) {
        for (name, value) in &outer.others {
            if !self.others.iter().any(|(known, _)| known == name) {
                self.others.push((name, value.clone()));
            }
        }
    }

    fn set(&mut self, field: &Field, value: FieldValue) {
        match (field.name(), value) {
            // The message comes first. A field of that name after it is one of klog's own, as the
            // text of an event is.
            ("message", FieldValue::Text(text)) if self.message.is_empty() => self.message = text,
            ("error" | "err", FieldValue::Text(text)) => self.error = Some(text),
            (name, value) => match self.others.iter_mut().find(|(known, _)| *known == name) {
                Some((_, known)) => *known = value,
                None => self.others.push((name, value)),
            },
        }
    }
}

impl Visit for Fields {
    fn record_i64(&mut self, field: &Field, value: i64) {
        self.set(field, FieldValue::Number(value.to_string()));
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.set(field, FieldValue::Number(value.to_string()));
    }

    fn record_i128(&mut self, field: &Field, value: i128) {
        self.set(field, FieldValue::Number(value.to_string()));
    }

    fn record_u128(&mut self, field: &Field, value: u128) {
        self.set(field, FieldValue::Number(value.to_string()));
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        // JSON has no word for these.
        let text = value.to_string();
        let value =
            if value.is_finite() { FieldValue::Number(text) } else { FieldValue::Text(text) };
        self.set(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        self.set(field, FieldValue::Bool(value));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.set(field, FieldValue::Text(value.to_owned()));
    }

    /// An error with all that caused it.
    fn record_error(&mut self, field: &Field, value: &(dyn Error + 'static)) {
        self.set(field, FieldValue::Text(error_chain(value)));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.set(field, FieldValue::Text(format!("{value:?}")));
    }
}
