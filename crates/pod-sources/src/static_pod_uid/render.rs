use std::fmt::Write as _;

use serde::Deserialize as _;
use serde_json::Value;

use super::layout::{Field, Layout, Shape, TypeId};
use super::quantity::GoQuantity;

/// Seconds from the year 1 to 1970, since Go counts from there.
const UNIX_EPOCH_SECONDS: i64 = 62_135_596_800;

/// The time zone of a process on a node that keeps UTC, which Go shows with every time.
const LOCATION: &str = "{name:(string)Local \
    zone:([]time.zone)[{name:(string)UTC offset:(int)0 isDST:(bool)false}] \
    tx:([]time.zoneTrans)[{when:(int64)-9223372036854775808 index:(uint8)0 isstd:(bool)false \
    isutc:(bool)false}] extend:(string)UTC0 cacheStart:(int64)-9223372036854775808 \
    cacheEnd:(int64)9223372036854775807 \
    cacheZone:(*time.zone){name:(string)UTC offset:(int)0 isDST:(bool)false}}";

/// What go-spew's `%#v` makes of a pod in its internal form: every value behind its type's name.
pub(super) fn render_pod(pod: &Value) -> String {
    let layout = Layout::get();
    let mut printer = Printer { layout, out: String::new(), depth: 0, location: None };
    printer.typed(layout.pod(), Some(pod));
    printer.out
}

struct Printer<'a> {
    layout: &'a Layout,
    out: String,
    depth: usize,
    /// Depth at which the process's time zone was shown. All times point to it, and go-spew shows
    /// nothing twice that it believes itself to be inside of.
    location: Option<usize>,
}

impl Printer<'_> {
    fn typed(&mut self, id: TypeId, value: Option<&Value>) {
        let (name, _) = self.layout.of(id);
        self.push(&["(", name, ")"]);
        self.bare(id, value);
    }

    fn push(&mut self, parts: &[&str]) {
        self.out.extend(parts.iter().copied());
    }

    /// go-spew forgets what it has shown at this depth or further in.
    fn meet_pointer(&mut self, depth: usize) {
        self.location = self.location.filter(|shown| *shown < depth);
    }

    fn bare(&mut self, id: TypeId, value: Option<&Value>) {
        let value = value.filter(|value| !value.is_null());
        match self.layout.of(id).1 {
            Shape::Pointer(of) => {
                self.meet_pointer(self.depth);
                match value {
                    Some(_) => self.bare(*of, value),
                    None => self.out.push_str("<nil>"),
                }
            }
            Shape::Bool => {
                let value = value.and_then(Value::as_bool).unwrap_or_default();
                self.push(&[if value { "true" } else { "false" }]);
            }
            Shape::Int => {
                self.push(&[&value.and_then(Value::as_i64).unwrap_or_default().to_string()]);
            }
            Shape::Text => self.push(&[value.and_then(Value::as_str).unwrap_or_default()]),
            Shape::Time => self.time(value),
            Shape::Quantity => self.quantity(value),
            Shape::IntOrString => self.int_or_string(value),
            Shape::FieldsV1 => self.fields_v1(value),
            Shape::List(of) => self.list(*of, value),
            Shape::Map(of) => self.map(*of, value),
            Shape::Struct(fields) => self.structure(fields, value),
        }
    }

    fn structure(&mut self, fields: &[Field], value: Option<&Value>) {
        self.depth += 1;
        let mut before = "{";
        for field in fields {
            self.push(&[before, field.name, ":"]);
            let inner = match field.key {
                Some(key) => value.and_then(|value| value.get(key)),
                None => value,
            };
            self.typed(field.type_id, inner);
            before = " ";
        }
        self.out.push('}');
        self.depth -= 1;
    }

    fn list(&mut self, of: TypeId, value: Option<&Value>) {
        let Some(items) = value.and_then(Value::as_array) else { return self.push(&["<nil>"]) };
        self.depth += 1;
        self.out.push('[');
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.out.push(' ');
            }
            self.bare(of, Some(item));
        }
        self.out.push(']');
        self.depth -= 1;
    }

    fn map(&mut self, of: TypeId, value: Option<&Value>) {
        let Some(entries) = value.and_then(Value::as_object) else { return self.push(&["<nil>"]) };
        let mut entries: Vec<(&String, &Value)> = entries.iter().collect();
        entries.sort_by_key(|(key, _)| *key);
        self.depth += 1;
        self.out.push_str("map[");
        for (index, (key, item)) in entries.into_iter().enumerate() {
            if index > 0 {
                self.out.push(' ');
            }
            self.push(&[key, ":"]);
            self.bare(of, Some(item));
        }
        self.out.push(']');
        self.depth -= 1;
    }

    fn quantity(&mut self, value: Option<&Value>) {
        // The two structs around the pointer to its decimal form.
        self.meet_pointer(self.depth + 2);
        let quantity = match value {
            Some(Value::String(text)) => GoQuantity::of_text(text),
            Some(worked_out) => {
                GoQuantity::deserialize(worked_out).unwrap_or_else(|_| GoQuantity::unset())
            }
            None => GoQuantity::unset(),
        };
        self.out.push_str(&quantity.render());
    }

    fn int_or_string(&mut self, value: Option<&Value>) {
        let number = value.and_then(Value::as_i64).unwrap_or_default();
        let text = value.and_then(Value::as_str);
        let tag = u8::from(text.is_some());
        let text = text.unwrap_or_default();
        // Writing to a String cannot fail.
        let _ = write!(
            self.out,
            "{{Type:(intstr.Type){tag} IntVal:(int32){number} StrVal:(string){text}}}"
        );
    }

    fn time(&mut self, value: Option<&Value>) {
        let time = value.and_then(Value::as_str).and_then(|text| text.parse().ok());
        let seconds = time.map(|time: jiff::Timestamp| time.as_second() + UNIX_EPOCH_SECONDS);
        let _ = write!(
            self.out,
            "{{Time:(time.Time){{wall:(uint64)0 ext:(int64){} loc:(*time.Location)",
            seconds.unwrap_or_default()
        );
        let depth = self.depth + 2;
        self.meet_pointer(depth);
        self.out.push_str(match (seconds, self.location) {
            (None, _) => "<nil>",
            (Some(_), Some(_)) => "<shown>",
            (Some(_), None) => LOCATION,
        });
        if seconds.is_some() {
            self.location.get_or_insert(depth);
        }
        self.out.push_str("}}");
    }

    /// Kept as the bytes of its JSON.
    fn fields_v1(&mut self, value: Option<&Value>) {
        let text = value.map(go_json).unwrap_or_default();
        let bytes: Vec<String> = text.bytes().map(|byte| byte.to_string()).collect();
        self.push(&["{Raw:([]uint8)[", &bytes.join(" "), "]}"]);
    }
}

/// Compact JSON as Go writes it: sorted, and safe to stand in HTML.
fn go_json(value: &Value) -> String {
    match value {
        Value::Object(object) => {
            let mut entries: Vec<(&String, &Value)> = object.iter().collect();
            entries.sort_by_key(|(key, _)| *key);
            let entries: Vec<String> = entries
                .into_iter()
                .map(|(key, value)| {
                    format!("{}:{}", go_json(&Value::from(key.as_str())), go_json(value))
                })
                .collect();
            format!("{{{}}}", entries.join(","))
        }
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(go_json).collect();
            format!("[{}]", items.join(","))
        }
        scalar => {
            let text = scalar.to_string();
            ['<', '>', '&', '\u{2028}', '\u{2029}'].into_iter().fold(text, |text, special| {
                text.replace(special, &format!("\\u{:04x}", u32::from(special)))
            })
        }
    }
}
