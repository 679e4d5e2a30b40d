//! When things are due. All times come in as arguments, and so does chance.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::certificate::LeafCertificate;
use crate::request::RequestTemplate;

/// How long a request may wait for its certificate before a new one is made.
pub const REQUEST_LIMIT: Duration = Duration::from_secs(15 * 60);
/// The kubelet ends after so long without a valid client certificate.
pub const LOSS_LIMIT: Duration = Duration::from_secs(5 * 60);

/// Waits between the first tries, before chance is added.
const FIRST_RETRIES: [Duration; 4] = [
    Duration::from_secs(2),
    Duration::from_secs(4),
    Duration::from_secs(8),
    Duration::from_secs(16),
];
/// The wait between all that follow.
const LATER_RETRIES: Duration = Duration::from_secs(32);

/// When a certificate is to be replaced: after 70 to 90 % of its life, which of it says `random`
/// (0 up to 1), so that not all nodes of a cluster come at once.
///
/// `received` is when it was received from its signer, if that was in this process. A signer dates
/// certificates back; for one that is made for minutes this moment may lie before it was even
/// received. It then gets the same part of what is left of its life, and no flood of requests
/// follows.
pub fn rotation_deadline(
    leaf: &LeafCertificate,
    received: Option<Timestamp>,
    random: f64,
) -> Timestamp {
    let part = 0.7 + 0.2 * random.clamp(0.0, 1.0);
    let after_part_since = |start: Timestamp| {
        let life = start.duration_until(leaf.not_after).max(SignedDuration::ZERO);
        let waited = life.unsigned_abs().mul_f64(part);
        let waited = SignedDuration::try_from(waited).unwrap_or(SignedDuration::MAX);
        start.checked_add(waited).unwrap_or(Timestamp::MAX)
    };
    let deadline = after_part_since(leaf.not_before);
    match received {
        Some(received) if deadline <= received => after_part_since(received),
        _ => deadline,
    }
}

/// What is to be done for a certificate.
#[derive(Clone, Debug, PartialEq)]
pub enum Due {
    /// Nothing until this moment.
    At(Timestamp),
    /// Ask for a new one.
    Now(&'static str),
    /// Ask for one, as soon as there is something to ask for.
    WithTemplate,
}

/// Whether a new certificate is due.
///
/// `current` is the one in use with its [`rotation_deadline`], `template` what it should say,
/// `requested` what was asked for when the current one was made, if that was in this process: it is
/// not asked for again if the signer left some of it out. `force` wants a new one in any case.
pub fn decide_due(
    current: Option<(&LeafCertificate, Timestamp)>,
    template: Option<&RequestTemplate>,
    requested: Option<&RequestTemplate>,
    force: bool,
    now: Timestamp,
) -> Due {
    let because = match (current, template) {
        (None, _) => "there is none",
        (Some((leaf, _)), _) if !leaf.is_valid(now) => "it has expired",
        _ if force => "the one in use was made for another purpose",
        (Some((leaf, _)), Some(template))
            if requested != Some(template) && template.missing_in(leaf).is_some() =>
        {
            "the names of the node have changed"
        }
        (Some((_, deadline)), _) if deadline > now => return Due::At(deadline),
        _ => "it is about to expire",
    };
    if template.is_some() { Due::Now(because) } else { Due::WithTemplate }
}

/// How long to wait after a number of failed tries (the first is 0): 2, 4, 8 and 16 s, each up to a
/// tenth longer, then 32 s.
pub fn retry_delay(failures: u32, random: f64) -> Duration {
    let first = usize::try_from(failures).ok().and_then(|failures| FIRST_RETRIES.get(failures));
    match first {
        Some(delay) => delay.mul_f64(1.0 + 0.1 * random.clamp(0.0, 1.0)),
        None => LATER_RETRIES,
    }
}

/// What the API server said when it was last asked for a certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ServerAnswer {
    /// Nothing, or that it is in trouble; or nobody has asked.
    #[default]
    None,
    /// It is well, and refuses: the credentials are not, or no longer, good for this.
    Refused,
    /// It has the request, or has answered it.
    Accepted,
}

/// What becomes of a kubelet with respect to its client certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outlook {
    /// It goes on: there is a valid certificate, or it has not been missing for long.
    GoOn,
    /// It has been missing for too long, and a restart would not help: a request waits for its
    /// approval, or the API server does not answer.
    Stranded,
    /// It ends, so that a restart can bootstrap anew.
    Exit,
}

/// Whether to end the process, when there has been no valid client certificate for so long.
pub fn decide_outlook(missing_for: Duration, answer: ServerAnswer) -> Outlook {
    match answer {
        _ if missing_for <= LOSS_LIMIT => Outlook::GoOn,
        ServerAnswer::Refused => Outlook::Exit,
        ServerAnswer::None | ServerAnswer::Accepted => Outlook::Stranded,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::CertificatePair;
    use crate::testing::{at, certificate};

    fn leaf(not_before: i64, not_after: i64) -> LeafCertificate {
        let pem = certificate("n", at(not_before), at(not_after), &[]).pem();
        CertificatePair::from_pem(pem.as_bytes(), pem.as_bytes()).unwrap().leaf().clone()
    }

    #[test]
    fn a_certificate_is_replaced_after_seven_to_nine_tenths_of_its_life() {
        let year = leaf(0, 1_000_000);
        for (random, deadline) in [(0.0, 700_000), (0.5, 800_000), (1.0, 900_000)] {
            let found = rotation_deadline(&year, None, random);
            assert!((found - at(deadline)).get_seconds().abs() <= 1, "{random}: {found}");
            assert_eq!(rotation_deadline(&year, Some(at(300)), random), found);
        }
    }

    #[test]
    fn one_made_for_a_minute_and_dated_back_is_not_replaced_at_once() {
        let minute = leaf(-300, 60);
        assert!(rotation_deadline(&minute, None, 0.0) < at(0));
        let deadline = rotation_deadline(&minute, Some(at(0)), 0.0);
        assert_eq!(deadline, at(42));
        // After a restart nobody knows when it came: now, that is.
        assert!(rotation_deadline(&minute, None, 0.5) <= at(0));
    }

    #[test]
    fn one_that_ends_before_it_begins_is_due() {
        let odd = leaf(100, 50);
        assert_eq!(rotation_deadline(&odd, None, 0.3), at(100));
    }

    proptest! {
        #[test]
        fn the_deadline_lies_within_the_life(
            start in 0i64..1_000_000, life in 10i64..100_000_000, random in 0.0f64..1.0,
            age in 0i64..200_000_000,
        ) {
            let mut leaf = leaf(0, 1);
            (leaf.not_before, leaf.not_after) = (at(start), at(start + life));
            let deadline = rotation_deadline(&leaf, None, random);
            prop_assert!(deadline >= leaf.not_before && deadline < leaf.not_after);
            // One that was just received and is good for something is not due yet.
            let received = at(start + age.min(life - 1));
            prop_assert!(rotation_deadline(&leaf, Some(received), random) > received);
        }
    }

    #[test]
    fn a_new_one_is_due_when_the_old_one_will_not_do() {
        let leaf = leaf(0, 1_000);
        let fits = RequestTemplate { common_name: "n".to_owned(), ..RequestTemplate::node("") };
        let other = RequestTemplate::node("other");
        let current = Some((&leaf, at(800)));
        let now = |because| Due::Now(because);
        let expired = now("it has expired");
        let changed = now("the names of the node have changed");
        let forced = now("the one in use was made for another purpose");
        for (current, template, requested, force, second, due) in [
            (None, Some(&fits), None, false, 0, now("there is none")),
            (None, None, None, false, 0, Due::WithTemplate),
            (current, Some(&fits), None, false, 0, Due::At(at(800))),
            (current, None, None, false, 0, Due::At(at(800))),
            (current, Some(&fits), None, false, 799, Due::At(at(800))),
            (current, Some(&fits), None, false, 800, now("it is about to expire")),
            (current, None, None, false, 800, Due::WithTemplate),
            (current, Some(&fits), None, false, 1_001, expired),
            (current, Some(&other), None, false, 0, changed.clone()),
            (current, Some(&other), Some(&fits), false, 0, changed),
            // The signer gave something else than was asked for: that has to do until it ends.
            (current, Some(&other), Some(&other), false, 0, Due::At(at(800))),
            (current, Some(&other), Some(&other), false, 800, now("it is about to expire")),
            (current, Some(&fits), None, true, 0, forced),
            (current, None, None, true, 0, Due::WithTemplate),
        ] {
            let found = decide_due(current, template, requested, force, at(second));
            assert_eq!(found, due, "{template:?} {requested:?} {force} {second}");
        }
    }

    #[test]
    fn tries_become_rarer() {
        let seconds = |failures, random| retry_delay(failures, random).as_secs_f64();
        let plain: Vec<f64> = (0..7).map(|failures| seconds(failures, 0.0)).collect();
        assert_eq!(plain, [2.0, 4.0, 8.0, 16.0, 32.0, 32.0, 32.0]);
        assert!((seconds(0, 1.0) - 2.2).abs() < 1e-9);
        assert!((seconds(u32::MAX, 1.0) - 32.0).abs() < 1e-9);
    }

    #[test]
    fn the_kubelet_ends_only_if_that_may_help() {
        let minutes = |minutes: u64| Duration::from_secs(minutes * 60);
        for (missing, answer, outlook) in [
            (minutes(0), ServerAnswer::Refused, Outlook::GoOn),
            (minutes(5), ServerAnswer::Refused, Outlook::GoOn),
            (minutes(6), ServerAnswer::Refused, Outlook::Exit),
            (minutes(6), ServerAnswer::None, Outlook::Stranded),
            (minutes(6), ServerAnswer::Accepted, Outlook::Stranded),
            (minutes(5), ServerAnswer::None, Outlook::GoOn),
        ] {
            assert_eq!(decide_outlook(missing, answer), outlook, "{missing:?} {answer:?}");
        }
    }
}
