//! Asking the API server, and asking again where that may help.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use super::User;
use super::metrics::{AccessMetrics, Question};

/// Questions of one kind at a time.
pub(super) const AT_ONCE: usize = 8;
/// How often something is asked, as upstream does.
const TRIES: u32 = 5;
/// How long to wait after the first failure.
const FIRST_DELAY: Duration = Duration::from_millis(500);
/// By how much each wait is longer than the one before.
const FACTOR: f64 = 1.5;
/// How much longer a wait may be by chance.
const JITTER: f64 = 0.2;

/// May somebody do this to this node?
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessQuestion {
    /// Who.
    pub user: User,
    /// What: `get`, `create` and so on.
    pub verb: &'static str,
    /// With which part of the node.
    pub subresource: &'static str,
    /// The node.
    pub node: String,
}

impl AccessQuestion {
    /// All that tells it apart from others.
    pub(super) fn parts(&self) -> impl Iterator<Item = &str> {
        let Self { user, verb, subresource, node } = self;
        let groups = user.groups.iter().map(String::as_str);
        let extra = user.extra.iter().flat_map(|(key, values)| {
            // A key, its values, and how one knows where they end.
            let values = values.iter().flat_map(|value| ["value", value.as_str()]);
            ["key", key.as_str()].into_iter().chain(values)
        });
        [*verb, *subresource, node, &user.name, user.uid.as_deref().unwrap_or_default()]
            .into_iter()
            .chain(groups)
            .chain(["extra"])
            .chain(extra)
    }
}

/// The API server has not answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ReviewError {
    /// What went wrong.
    pub text: String,
    /// It may go right in a moment.
    pub is_passing: bool,
    /// The status of the answer, if there was one.
    pub code: Option<u16>,
}

/// The API server, as far as it says who somebody is and what he may do. Each call is one attempt.
pub trait AccessReviews: Send + Sync + 'static {
    /// Whose token that is (`TokenReview`); none if it is nobody's.
    fn user_of_token(&self, token: String)
    -> BoxFuture<'static, Result<Option<User>, ReviewError>>;

    /// Whether somebody may do something (`SubjectAccessReview`).
    fn is_allowed(&self, question: AccessQuestion)
    -> BoxFuture<'static, Result<bool, ReviewError>>;
}

/// The API server, asked about a few things at a time: whoever floods the kubelet with tokens waits
/// for himself, and neither those who have been let in nor the kubelet's own calls wait for him.
#[derive(Clone)]
pub(super) struct Limited {
    reviews: Arc<dyn AccessReviews>,
    tokens: Arc<Semaphore>,
    decisions: Arc<Semaphore>,
    metrics: Arc<AccessMetrics>,
}

impl Limited {
    pub(super) fn new(reviews: Arc<dyn AccessReviews>, metrics: Arc<AccessMetrics>) -> Self {
        let [tokens, decisions] = [AT_ONCE; 2].map(|places| Arc::new(Semaphore::new(places)));
        Self { reviews, tokens, decisions, metrics }
    }

    pub(super) fn user_of_token(
        self,
        token: String,
    ) -> BoxFuture<'static, Result<Option<Arc<User>>, ReviewError>> {
        async move {
            let ask = || self.counted(Question::Token, self.reviews.user_of_token(token.clone()));
            let user = retry(&self.tokens, ask).await?;
            Ok(user.filter(|user| !user.name.is_empty()).map(|user| Arc::new(user.authenticated())))
        }
        .boxed()
    }

    pub(super) fn decide(
        self,
        question: AccessQuestion,
    ) -> BoxFuture<'static, Result<bool, ReviewError>> {
        async move {
            let ask = || self.counted(Question::Right, self.reviews.is_allowed(question.clone()));
            retry(&self.decisions, ask).await
        }
        .boxed()
    }

    async fn counted<T>(
        &self,
        question: Question,
        asking: BoxFuture<'static, Result<T, ReviewError>>,
    ) -> Result<T, ReviewError> {
        let begun = Instant::now();
        let answer = asking.await;
        self.metrics.asked(question, &answer, begun.elapsed());
        answer
    }
}

/// Asks until there is an answer, a failure that does not pass, or nothing more to hope for.
async fn retry<T, F: Future<Output = Result<T, ReviewError>>>(
    places: &Semaphore,
    ask: impl Fn() -> F,
) -> Result<T, ReviewError> {
    let ask = async || {
        // It is never closed; without it, the answer is the same.
        let _place = places.acquire().await;
        ask().await
    };
    let mut delay = FIRST_DELAY;
    for _ in 1..TRIES {
        match ask().await {
            Err(error) if error.is_passing => {
                sleep(delay.mul_f64(1.0 + JITTER * rand::random::<f64>())).await;
                delay = delay.mul_f64(FACTOR);
            }
            answer => return answer,
        }
    }
    ask().await
}
