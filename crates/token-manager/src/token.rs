use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use rubelet_types::PodRef;

/// A token is renewed at this age at the latest.
const MAX_AGE: SignedDuration = SignedDuration::from_hours(24);
/// And when this part of its life is left, in percent.
const LAST_PART: i64 = 20;

/// What token is wanted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WantedToken {
    /// The pod that it is bound to: it is worth nothing any more when that is gone.
    pub pod: PodRef,
    /// The service account, in the pod's namespace.
    pub service_account: String,
    /// Which one of that name, if no other will do.
    pub service_account_uid: Option<String>,
    /// Whom it is for; empty for the API server itself.
    pub audiences: Vec<String>,
    /// How long it should live. The server may decide otherwise.
    pub expiration_seconds: i64,
}

/// Names what is wanted. Nothing in it is secret.
impl fmt::Display for WantedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pod, service_account, audiences, expiration_seconds, .. } = self;
        let namespace = &pod.namespace;
        write!(f, "{service_account:?}/{namespace:?}/{audiences:?}/{expiration_seconds}/{pod}")
    }
}

/// A token as the API server gave it.
#[derive(Clone, PartialEq, Eq)]
pub struct IssuedToken {
    /// The token itself.
    pub token: Arc<str>,
    /// When it ends.
    pub expires_at: Timestamp,
    /// How long it lives in all, as the server said; none if it did not say.
    pub lives_seconds: Option<i64>,
}

/// Without the token.
impl fmt::Debug for IssuedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuedToken")
            .field("expires_at", &self.expires_at)
            .field("lives_seconds", &self.lives_seconds)
            .finish_non_exhaustive()
    }
}

impl IssuedToken {
    /// It does not hold any more.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        now > self.expires_at
    }

    /// It is time for a new one: it is older than a day, only a fifth of its life is left (either by
    /// `jitter` earlier, so that not all tokens are renewed together), or it was made in what is
    /// now the future, because the clock was set back.
    pub fn is_due(&self, now: Timestamp, jitter: Duration) -> bool {
        let Some(lives) = self.lives_seconds else { return false };
        let jitter = SignedDuration::try_from(jitter).unwrap_or(SignedDuration::ZERO);
        let left = self.expires_at.duration_since(now);
        let age = SignedDuration::from_secs(lives) - left;
        let last_part = SignedDuration::from_secs(lives.saturating_mul(LAST_PART) / 100);
        age > MAX_AGE - jitter || left < last_part + jitter || age < SignedDuration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_renewed_in_good_time() {
        let issued: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let (hour, day) = (3600, 86_400);
        for (case, lives, age, jitter, due) in [
            ("new", hour, 0, 0, false),
            ("before four fifths", hour, 2880, 0, false),
            ("after four fifths", hour, 2881, 0, true),
            ("earlier by the jitter", hour, 2876, 5, true),
            ("not earlier than that", hour, 2875, 5, false),
            ("expired", hour, 4000, 0, true),
            ("long, within a day", 365 * day, day, 0, false),
            ("long, older than a day", 365 * day, day + 1, 0, true),
            ("long, earlier by the jitter", 365 * day, day - 9, 10, true),
            ("made in the future", hour, -1, 0, true),
        ] {
            let expires_at = issued + SignedDuration::from_secs(lives);
            let token = IssuedToken { token: "t".into(), expires_at, lives_seconds: Some(lives) };
            let now = issued + SignedDuration::from_secs(age);
            assert_eq!(token.is_due(now, Duration::from_secs(jitter)), due, "{case}");
            assert_eq!(token.is_expired(now), age > lives, "{case}");
        }
    }

    #[test]
    fn tokens_stay_out_of_logs() {
        let expires_at = Timestamp::UNIX_EPOCH;
        let token = IssuedToken { token: "t0ken".into(), expires_at, lives_seconds: None };
        assert!(!format!("{token:?}").contains("t0ken"));
        assert!(!token.is_due(Timestamp::MAX, Duration::ZERO), "nobody said how long it lives");
    }
}
