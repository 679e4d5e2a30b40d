use rubelet_types::{Event, EventObject, EventType, PodRef};

use super::*;
use crate::api_event::api_event;

/// Lets events happen, and says in a line what became of each.
struct Bed {
    correlator: Correlator,
    /// Every event has a moment of its own, as the recorder sees to.
    nanos: i64,
}

impl Bed {
    fn new() -> Self {
        Self { correlator: Correlator::new(), nanos: 0 }
    }

    fn happens(
        &mut self,
        second: i64,
        object: EventObject,
        reason: &'static str,
        message: &str,
    ) -> String {
        self.nanos += 1;
        let at = Timestamp::new(second, 0).unwrap();
        let named = Timestamp::from_nanosecond(i128::from(self.nanos)).unwrap();
        let event = Event::new(object, EventType::Warning, reason, message);
        let mut event = api_event(event, "n1", named);
        event.first_timestamp = Some(api_time(at));
        event.last_timestamp = Some(api_time(at));
        let seconds = |time: &Option<Time>| time.as_ref().unwrap().0.as_second();
        match self.correlator.correlate(event, at) {
            Correlated::Skip => "skip".to_owned(),
            Correlated::Create(event) => format!(
                "create {} {}: {}",
                event.metadata.name.unwrap(),
                event.count.unwrap(),
                event.message.unwrap()
            ),
            Correlated::Patch { event, patch } => {
                assert_eq!(patch["count"], event.count.unwrap());
                assert_eq!(patch["message"], *event.message.as_ref().unwrap());
                assert_eq!(patch["lastTimestamp"], json!(event.last_timestamp));
                format!(
                    "patch {} {}: {} [{}..{}]",
                    event.metadata.name.unwrap(),
                    event.count.unwrap(),
                    event.message.unwrap(),
                    seconds(&event.first_timestamp),
                    seconds(&event.last_timestamp),
                )
            }
        }
    }
}

fn pod(name: &str) -> EventObject {
    EventObject::Pod(PodRef::new(format!("uid-{name}").as_str(), "default", name))
}

fn container(name: &str, container: &str) -> EventObject {
    EventObject::Container {
        pod: PodRef::new(format!("uid-{name}").as_str(), "default", name),
        field_path: format!("spec.containers{{{container}}}"),
    }
}

#[test]
fn identical_events_are_counted_on_one_object() {
    let mut bed = Bed::new();
    for (second, object, reason, message, expected) in [
        (10, pod("a"), "Failed", "no", "create a.1 1: no"),
        (20, pod("a"), "Failed", "no", "patch a.1 2: no [10..20]"),
        (5000, pod("a"), "Failed", "no", "patch a.1 3: no [10..5000]"),
        // Whatever else differs makes another object.
        (5001, pod("a"), "Failed", "never", "create a.4 1: never"),
        (5002, pod("a"), "BackOff", "no", "create a.5 1: no"),
        (5003, pod("b"), "Failed", "no", "create b.6 1: no"),
        (5004, container("a", "c"), "Failed", "no", "create a.7 1: no"),
        (5005, container("a", "d"), "Failed", "no", "create a.8 1: no"),
        (5006, container("a", "c"), "Failed", "no", "patch a.7 2: no [5004..5006]"),
        (5007, EventObject::Node, "Failed", "no", "create n1.a 1: no"),
    ] {
        assert_eq!(bed.happens(second, object, reason, message), expected, "at {second}");
    }
}

#[test]
fn the_tenth_different_message_within_ten_minutes_is_combined() {
    let mut bed = Bed::new();
    for number in 1..10 {
        let line = bed.happens(number * 600, pod("a"), "Failed", &format!("m{number}"));
        assert_eq!(line, format!("create a.{number:x} 1: m{number}"));
    }
    let at = Timestamp::new(6000, 0).unwrap().as_nanosecond();
    let combined = format!("a.{at:x}");
    for (second, message, expected) in [
        (6000, "m10", format!("create {combined} 1: (combined from similar events): m10")),
        (
            6600,
            "m11",
            format!("patch {combined} 2: (combined from similar events): m11 [6000..6600]"),
        ),
        // One that was said just now is still itself.
        (6601, "m11", "create a.c 1: m11".to_owned()),
        (
            6602,
            "m12",
            format!("patch {combined} 3: (combined from similar events): m12 [6000..6602]"),
        ),
        // After more than ten minutes of rest the counting starts anew.
        (7203, "m13", "create a.e 1: m13".to_owned()),
    ] {
        assert_eq!(bed.happens(second, pod("a"), "Failed", message), expected, "at {second}");
    }
    // Other reasons and other pods are not similar.
    assert_eq!(bed.happens(7204, pod("b"), "Failed", "m14"), "create b.f 1: m14");
    assert_eq!(bed.happens(7204, pod("a"), "BackOff", "m15"), "create a.10 1: m15");
}

#[test]
fn an_object_in_endless_trouble_is_held_to_one_event_in_five_minutes() {
    let mut bed = Bed::new();
    let told = |line: &str| line != "skip";
    let burst = (0..40).filter(|_| told(&bed.happens(0, pod("a"), "Failed", "no"))).count();
    assert_eq!(burst, 25);
    // Other objects, and other types of events, have their own measure; reasons have not.
    assert!(told(&bed.happens(0, pod("b"), "Failed", "no")));
    assert!(told(&bed.happens(0, EventObject::Node, "Failed", "no")));
    assert!(!told(&bed.happens(0, pod("a"), "BackOff", "no")));
    assert!(!told(&bed.happens(0, container("a", "c"), "Failed", "no")));
    let later: Vec<i64> =
        (1..1000).filter(|second| told(&bed.happens(*second, pod("a"), "Failed", "no"))).collect();
    assert_eq!(later, [300, 600, 900]);
    // Those that were not told are counted all the same.
    assert_eq!(bed.happens(1200, pod("a"), "Failed", "no"), "patch a.1 1040: no [0..1200]");
}

#[test]
fn no_more_is_remembered_than_4096_of_each() {
    let mut bed = Bed::new();
    let first = bed.happens(0, pod("first"), "Failed", "no");
    for number in 0..4095 {
        bed.happens(0, pod(&format!("p{number}")), "Failed", "no");
    }
    assert_eq!(first, "create first.1 1: no");
    assert_eq!(bed.happens(1, pod("first"), "Failed", "no"), "patch first.1 2: no [0..1]");
    for number in 0..4096 {
        bed.happens(2, pod(&format!("q{number}")), "Failed", "no");
    }
    assert_eq!(bed.happens(3, pod("first"), "Failed", "no"), "create first.2002 1: no");
}

#[test]
fn a_clock_that_is_set_back_breaks_nothing() {
    let mut bed = Bed::new();
    assert_eq!(bed.happens(10_000, pod("a"), "Failed", "no"), "create a.1 1: no");
    assert_eq!(bed.happens(10, pod("a"), "Failed", "no"), "patch a.1 2: no [10000..10]");
}
