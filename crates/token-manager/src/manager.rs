use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rubelet_types::{Clock, PodUid};
use tokio::sync::Mutex as AsyncMutex;

use crate::port::{TokenApi, TokenFailure};
use crate::token::{IssuedToken, WantedToken};

/// Tokens are renewed by up to so much earlier than they have to be.
const MAX_JITTER: Duration = Duration::from_secs(10);

/// There is no token. The text is what users read in events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// There is none to be had, as things are.
    #[error("failed to fetch token: {message}")]
    Gone {
        /// Why.
        message: String,
    },
    /// The API server gave none, and there is none of before.
    #[error("failed to fetch token: {message}")]
    Unavailable {
        /// Why.
        message: String,
    },
    /// The API server gave none, and the one of before does not hold any more.
    #[error("token {wanted} expired and refresh failed: {message}")]
    Expired {
        /// Which.
        wanted: WantedToken,
        /// Why.
        message: String,
    },
}

/// Gets tokens and keeps them. Cheap to clone; clones share everything.
pub struct TokenManager<A> {
    inner: Arc<Inner<A>>,
}

struct Inner<A> {
    api: A,
    clock: Clock,
    tokens: Mutex<HashMap<WantedToken, Arc<Slot>>>,
}

/// A token, once there is one. Whoever asks for it holds the lock.
type Slot = AsyncMutex<Option<IssuedToken>>;

impl<A> Clone for TokenManager<A> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<A> fmt::Debug for TokenManager<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = self.inner.tokens.lock().unwrap_or_else(PoisonError::into_inner).len();
        f.debug_struct("TokenManager").field("tokens", &tokens).finish_non_exhaustive()
    }
}

impl<A: TokenApi> TokenManager<A> {
    /// Gets tokens from `api`.
    pub fn new(api: A, clock: Clock) -> Self {
        Self { inner: Arc::new(Inner { api, clock, tokens: Mutex::default() }) }
    }

    /// A token that holds: the one of before if it is not time for a new one, or if there is no new
    /// one to be had at present.
    ///
    /// # Errors
    /// When there is none that holds.
    pub async fn token(&self, wanted: &WantedToken) -> Result<IssuedToken, TokenError> {
        let slot = self.slot(wanted);
        let mut kept = slot.lock().await;
        let jitter = MAX_JITTER.mul_f64(rand::random());
        if let Some(token) = &*kept
            && !token.is_due(self.inner.clock.now(), jitter)
        {
            return Ok(token.clone());
        }
        match self.inner.api.request_token(wanted).await {
            Ok(token) => {
                *kept = Some(token.clone());
                Ok(token)
            }
            Err(TokenFailure::Gone(message)) => {
                *kept = None;
                Err(TokenError::Gone { message })
            }
            Err(TokenFailure::Unavailable(message)) => match &*kept {
                None => Err(TokenError::Unavailable { message }),
                Some(token) if token.is_expired(self.inner.clock.now()) => {
                    Err(TokenError::Expired { wanted: wanted.clone(), message })
                }
                Some(token) => {
                    tracing::warn!(token = %wanted, error = message, "Could not renew a token");
                    Ok(token.clone())
                }
            },
        }
    }

    /// The pod is gone, and its tokens with it. Never blocks.
    pub fn forget_pod(&self, uid: &PodUid) {
        self.tokens().retain(|wanted, _| wanted.pod.uid != *uid);
    }

    fn slot(&self, wanted: &WantedToken) -> Arc<Slot> {
        let mut tokens = self.tokens();
        if let Some(slot) = tokens.get(wanted) {
            return slot.clone();
        }
        let now = self.inner.clock.now();
        // What is in use, or holds, stays.
        tokens.retain(|_, slot| {
            let holds = |kept: &Option<IssuedToken>| {
                kept.as_ref().is_some_and(|token| !token.is_expired(now))
            };
            Arc::strong_count(slot) > 1 || slot.try_lock().is_ok_and(|kept| holds(&kept))
        });
        tokens.entry(wanted.clone()).or_default().clone()
    }

    fn tokens(&self) -> MutexGuard<'_, HashMap<WantedToken, Arc<Slot>>> {
        self.inner.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use jiff::{SignedDuration, Timestamp};
    use rubelet_types::PodRef;
    use tokio::sync::Semaphore;

    use super::*;

    /// Issues numbered tokens of an hour, or fails as it is told to.
    #[derive(Clone)]
    struct FakeApi(Arc<FakeState>);

    struct FakeState {
        now: Mutex<Timestamp>,
        issued: Mutex<u32>,
        failures: Mutex<VecDeque<TokenFailure>>,
        permits: Semaphore,
    }

    impl FakeApi {
        fn new() -> Self {
            Self(Arc::new(FakeState {
                now: Mutex::new("2026-01-01T00:00:00Z".parse().unwrap()),
                issued: Mutex::default(),
                failures: Mutex::default(),
                permits: Semaphore::new(1000),
            }))
        }

        fn advance(&self, seconds: i64) {
            *self.0.now.lock().unwrap() += SignedDuration::from_secs(seconds);
        }

        fn issued(&self) -> u32 {
            *self.0.issued.lock().unwrap()
        }

        fn fail(&self, failure: TokenFailure) {
            self.0.failures.lock().unwrap().push_back(failure);
        }

        fn manager(&self) -> TokenManager<Self> {
            let state = self.0.clone();
            TokenManager::new(self.clone(), Clock::from_fn(move || *state.now.lock().unwrap()))
        }
    }

    impl TokenApi for FakeApi {
        async fn request_token(&self, wanted: &WantedToken) -> Result<IssuedToken, TokenFailure> {
            let _permit = self.0.permits.acquire().await.unwrap();
            if let Some(failure) = self.0.failures.lock().unwrap().pop_front() {
                return Err(failure);
            }
            let mut issued = self.0.issued.lock().unwrap();
            *issued += 1;
            let expires_at =
                *self.0.now.lock().unwrap() + SignedDuration::from_secs(wanted.expiration_seconds);
            Ok(IssuedToken {
                token: format!("t{issued}").into(),
                expires_at,
                lives_seconds: Some(wanted.expiration_seconds),
            })
        }
    }

    fn wanted(uid: &str) -> WantedToken {
        WantedToken {
            pod: PodRef::new(uid, "ns", "web"),
            service_account: "sa".to_owned(),
            service_account_uid: None,
            audiences: Vec::new(),
            expiration_seconds: 3600,
        }
    }

    async fn token(manager: &TokenManager<FakeApi>, wanted: &WantedToken) -> String {
        match manager.token(wanted).await {
            Ok(token) => token.token.to_string(),
            Err(error) => error.to_string(),
        }
    }

    fn away() -> TokenFailure {
        TokenFailure::Unavailable("connection refused".to_owned())
    }

    #[tokio::test]
    async fn a_token_is_kept_until_it_is_time_for_the_next() {
        let api = FakeApi::new();
        let manager = api.manager();
        assert_eq!(token(&manager, &wanted("u1")).await, "t1");
        api.advance(2860);
        assert_eq!(token(&manager, &wanted("u1")).await, "t1");
        api.advance(30);
        assert_eq!(token(&manager, &wanted("u1")).await, "t2");
        // Whatever is wanted otherwise is another token.
        assert_eq!(token(&manager, &wanted("u2")).await, "t3");
        let vault = WantedToken { audiences: vec!["vault".to_owned()], ..wanted("u1") };
        assert_eq!(token(&manager, &vault).await, "t4");
        let shorter = WantedToken { expiration_seconds: 600, ..wanted("u1") };
        assert_eq!(token(&manager, &shorter).await, "t5");
        assert_eq!(token(&manager, &wanted("u1")).await, "t2");
        let new = WantedToken { service_account_uid: Some("a2".to_owned()), ..wanted("u1") };
        assert_eq!(token(&manager, &new).await, "t6");
    }

    #[tokio::test]
    async fn a_token_that_holds_is_given_while_there_is_no_new_one() {
        let api = FakeApi::new();
        let manager = api.manager();
        api.fail(away());
        assert_eq!(
            token(&manager, &wanted("u1")).await,
            "failed to fetch token: connection refused"
        );
        assert_eq!(token(&manager, &wanted("u1")).await, "t1");
        api.advance(3000);
        api.fail(away());
        assert_eq!(token(&manager, &wanted("u1")).await, "t1");
        api.advance(601);
        api.fail(away());
        assert_eq!(
            token(&manager, &wanted("u1")).await,
            "token \"sa\"/\"ns\"/[]/3600/web_ns(u1) expired and refresh failed: connection refused"
        );
        assert_eq!(token(&manager, &wanted("u1")).await, "t2");
    }

    #[tokio::test]
    async fn what_is_gone_takes_its_tokens_with_it() {
        let api = FakeApi::new();
        let manager = api.manager();
        assert_eq!(token(&manager, &wanted("u1")).await, "t1");
        manager.forget_pod(&PodUid::new("other"));
        assert_eq!(token(&manager, &wanted("u1")).await, "t1");
        manager.forget_pod(&PodUid::new("u1"));
        assert_eq!(token(&manager, &wanted("u1")).await, "t2");
        api.advance(3000);
        let gone = "serviceaccounts \"sa\" not found";
        api.fail(TokenFailure::Gone(gone.to_owned()));
        api.fail(away());
        let text = format!("failed to fetch token: {gone}");
        assert_eq!(token(&manager, &wanted("u1")).await, text);
        assert_eq!(
            token(&manager, &wanted("u1")).await,
            "failed to fetch token: connection refused",
            "the one of before is worth nothing"
        );
    }

    #[tokio::test]
    async fn who_asks_together_gets_one_token() {
        let api = FakeApi::new();
        let manager = api.manager();
        let held = api.0.permits.acquire_many(1000).await.unwrap();
        let asking: Vec<_> = (0..8)
            .map(|_| {
                let manager = manager.clone();
                tokio::spawn(async move { manager.token(&wanted("u1")).await })
            })
            .collect();
        let other = tokio::spawn({
            let manager = manager.clone();
            async move { manager.token(&wanted("u2")).await }
        });
        tokio::task::yield_now().await;
        drop(held);
        for asking in asking {
            asking.await.unwrap().unwrap();
        }
        other.await.unwrap().unwrap();
        assert_eq!(api.issued(), 2);
    }

    #[tokio::test]
    async fn expired_tokens_are_not_kept() {
        let api = FakeApi::new();
        let manager = api.manager();
        for pod in 0..100 {
            token(&manager, &wanted(&format!("u{pod}"))).await;
            api.advance(3601);
        }
        assert_eq!(manager.tokens().len(), 1);
    }
}
