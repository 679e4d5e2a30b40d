//! The events that a standalone kubelet tells of in its log.

/// Starts the key of an event in a line of the log.
const MARK: &str = "\"Event occurred\"";

/// An event, as the log shows it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EventView {
    /// `namespace/name` of the pod, or the node.
    pub object: String,
    /// The container it is about, such as `spec.containers{app}`, or empty.
    pub field_path: String,
    /// `Normal` or `Warning`.
    pub event_type: String,
    /// The reason.
    pub reason: String,
    /// The text.
    pub message: String,
}

/// The events in a log of klog's text format, oldest first.
pub(crate) fn read(log: &str) -> Vec<EventView> {
    log.match_indices(MARK).map(|(at, _)| read_one(&log[at + MARK.len()..])).collect()
}

/// Reads ` key="value"` for as long as the line goes on.
fn read_one(mut rest: &str) -> EventView {
    let mut event = EventView::default();
    while let Some((key, value)) = rest.strip_prefix(' ').and_then(|rest| rest.split_once('=')) {
        let Some((value, after)) = take_value(value) else { break };
        match key {
            "object" => event.object = value,
            "fieldPath" => event.field_path = value,
            "type" => event.event_type = value,
            "reason" => event.reason = value,
            "message" => event.message = value,
            _ => {}
        }
        rest = after;
    }
    event
}

/// A value and what follows it. One of several lines stands between `<` and `>`, indented.
fn take_value(text: &str) -> Option<(String, &str)> {
    if let Some(lines) = text.strip_prefix("<\n") {
        let (lines, after) = lines.split_once("\n >")?;
        let lines: Vec<&str> =
            lines.lines().map(|line| line.strip_prefix('\t').unwrap_or(line)).collect();
        return Some((lines.join("\n"), after));
    }
    let Some(quoted) = text.strip_prefix('"') else {
        let end = text.find([' ', '\n']).unwrap_or(text.len());
        return Some((text[..end].to_owned(), &text[end..]));
    };
    let mut value = String::new();
    let mut characters = quoted.char_indices();
    while let Some((at, character)) = characters.next() {
        match character {
            '"' => return Some((value, &quoted[at + 1..])),
            '\\' => match characters.next()?.1 {
                'n' => value.push('\n'),
                't' => value.push('\t'),
                'r' => value.push('\r'),
                other => value.push(other),
            },
            other => value.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_found_among_other_lines_and_read_to_their_end() {
        let log = "I1130 08:00:00.0 1 x.rs:1] \"Other\" pod=\"default/a\" reason=\"No\"\n\
            I1130 08:00:00.0 1 x.rs:1] \"Event occurred\" object=\"default/a\" \
            fieldPath=\"spec.containers{c}\" kind=\"Pod\" type=\"Warning\" reason=\"Failed\" \
            message=\"image \\\"x\\\": no\" count=2\n\
            I1130 08:00:00.0 1 x.rs:1] \"Event occurred\" object=\"node\" message=<\n\
            \tone\n\ttwo = 2\n > reason=\"Many\"\n";
        let found = read(log);
        assert_eq!(found.len(), 2);
        assert_eq!(
            found[0],
            EventView {
                object: "default/a".to_owned(),
                field_path: "spec.containers{c}".to_owned(),
                event_type: "Warning".to_owned(),
                reason: "Failed".to_owned(),
                message: "image \"x\": no".to_owned(),
            }
        );
        assert_eq!((found[1].message.as_str(), found[1].reason.as_str()), ("one\ntwo = 2", "Many"));
    }

    #[test]
    fn a_line_that_is_still_being_written_is_no_panic() {
        assert_eq!(read("\"Event occurred\" object=\"defa"), [EventView::default()]);
    }
}
