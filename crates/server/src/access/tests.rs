use std::sync::Mutex;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rubelet_metrics::{Format, Registry};

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

/// An API server that knows one token and lets one user do one thing.
#[derive(Default)]
struct Reviews {
    /// What it was asked, in order.
    asked: Mutex<Vec<String>>,
    /// How often it fails first, and whether it may go right later.
    fails: Mutex<(u32, bool)>,
}

impl Reviews {
    fn answer<T: Send + 'static>(
        &self,
        question: String,
        answer: T,
    ) -> BoxFuture<'static, Result<T, ReviewError>> {
        self.asked.lock().unwrap().push(question);
        let mut fails = self.fails.lock().unwrap();
        let answer = if fails.0 > 0 {
            fails.0 -= 1;
            Err(ReviewError { text: "no".to_owned(), is_passing: fails.1, code: Some(503) })
        } else {
            Ok(answer)
        };
        async move { answer }.boxed()
    }

    fn take_asked(&self) -> Vec<String> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl AccessReviews for Reviews {
    fn user_of_token(
        &self,
        token: String,
    ) -> BoxFuture<'static, Result<Option<User>, ReviewError>> {
        let user =
            User { name: "robot".to_owned(), groups: vec!["robots".to_owned()], ..User::default() };
        let user = (token == "good").then_some(user);
        self.answer(format!("token {token}"), user)
    }

    fn is_allowed(
        &self,
        question: AccessQuestion,
    ) -> BoxFuture<'static, Result<bool, ReviewError>> {
        let AccessQuestion { user, verb, subresource, node } = question;
        let question = format!("{} {verb} {node}/{subresource}", user.name);
        let allowed = question == "robot get node/proxy";
        self.answer(question, allowed)
    }
}

fn settings(anonymous: bool, tokens: bool, webhook: bool) -> AccessSettings {
    AccessSettings {
        anonymous,
        client_certificates: true,
        tokens: tokens.then_some(2 * MINUTE),
        authorization: if webhook {
            Authorization::Webhook { authorized_ttl: 5 * MINUTE, unauthorized_ttl: MINUTE / 2 }
        } else {
            Authorization::AlwaysAllow
        },
    }
}

fn access(settings: AccessSettings) -> (Access, Arc<Reviews>) {
    let reviews = Arc::new(Reviews::default());
    let access = Access::new(settings, "node", Some(reviews.clone() as _)).unwrap();
    (access, reviews)
}

fn bearer(token: &str) -> HeaderMap {
    HeaderMap::from_iter([(
        header::AUTHORIZATION,
        HeaderValue::from_str(&format!("Bearer {token}")).unwrap(),
    )])
}

async fn ask(access: &Access, mut headers: HeaderMap) -> Result<String, Refusal> {
    let decision = access.decide(None, &Method::GET, &["pods", "proxy"], &mut headers).await;
    assert!(!headers.contains_key(header::AUTHORIZATION) || access.settings.tokens.is_none());
    decision.map(|user| user.name.clone())
}

fn forbidden(user: &str) -> Refusal {
    Refusal::Forbidden(format!(
        "Forbidden (user={user}, verb=get, resource=nodes, subresource(s)=[pods proxy])\n"
    ))
}

#[tokio::test]
async fn who_one_is_counts_as_configured() {
    let none = HeaderMap::new;
    for (settings, headers, expected) in [
        (settings(false, true, false), none(), Err(Refusal::Unauthorized)),
        (settings(true, true, false), none(), Ok("system:anonymous")),
        (settings(false, true, false), bearer("good"), Ok("robot")),
        // A bad token is not as good as none.
        (settings(true, true, false), bearer("bad"), Err(Refusal::Unauthorized)),
        (settings(false, false, false), bearer("good"), Err(Refusal::Unauthorized)),
        (settings(true, false, false), bearer("good"), Ok("system:anonymous")),
        (settings(false, true, true), bearer("good"), Ok("robot")),
        (settings(true, true, true), none(), Err(forbidden("system:anonymous"))),
    ] {
        let (access, _) = access(settings);
        let decision = ask(&access, headers.clone()).await;
        assert_eq!(decision, expected.map(str::to_owned), "{settings:?} {headers:?}");
    }
    let (access, reviews) = access(settings(false, true, false));
    let alice = User { name: "alice".to_owned(), ..User::default() };
    let decision =
        access.decide(Some(alice.clone()), &Method::GET, &["proxy"], &mut bearer("bad")).await;
    assert_eq!(decision, Ok(Arc::new(alice)), "a certificate comes before a token");
    assert_eq!(reviews.take_asked(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn subresources_are_tried_in_order_and_answers_kept_in_mind() {
    let (access, reviews) = access(settings(true, true, true));
    let in_order = ["token good", "robot get node/pods", "robot get node/proxy"];
    for _ in 0..3 {
        assert_eq!(ask(&access, bearer("good")).await, Ok("robot".to_owned()));
    }
    assert_eq!(reviews.take_asked(), in_order);
    tokio::time::advance(MINUTE / 2).await;
    ask(&access, bearer("good")).await.unwrap();
    assert_eq!(reviews.take_asked(), ["robot get node/pods"], "a no is forgotten sooner");
    let post = access.decide(None, &Method::POST, &["proxy"], &mut bearer("good")).await;
    let said = "Forbidden (user=robot, verb=create, resource=nodes, subresource(s)=[proxy])\n";
    assert_eq!(post, Err(Refusal::Forbidden(said.to_owned())));
    assert_eq!(reviews.take_asked(), ["robot create node/proxy"]);
    tokio::time::advance(2 * MINUTE).await;
    ask(&access, bearer("good")).await.unwrap();
    assert_eq!(reviews.take_asked(), ["token good", "robot get node/pods"]);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_is_asked_again_for_a_while() {
    for (fails, passing, expected, times) in
        [(4, true, Ok("robot"), 5), (5, true, Err(()), 5), (1, false, Err(()), 1)]
    {
        let (access, reviews) = access(settings(false, true, false));
        *reviews.fails.lock().unwrap() = (fails, passing);
        let started = tokio::time::Instant::now();
        let decision = ask(&access, bearer("good")).await;
        let expected = expected.map(str::to_owned).map_err(|()| Refusal::Unauthorized);
        assert_eq!((decision, reviews.take_asked().len()), (expected, times));
        if times == 5 {
            // 0.5, 0.75, 1.125 and 1.6875 s, each up to a fifth longer.
            let took = started.elapsed().as_secs_f64();
            assert!((4.06..4.9).contains(&took), "{took}");
        }
    }
    let (access, reviews) = access(settings(true, false, true));
    *reviews.fails.lock().unwrap() = (1, false);
    let said = "Authorization error (user=system:anonymous, verb=get, resource=nodes, \
                subresource=pods)";
    assert_eq!(ask(&access, HeaderMap::new()).await, Err(Refusal::Unknown(said.to_owned())));
    assert_eq!(ask(&access, HeaderMap::new()).await, Err(forbidden("system:anonymous")));
}

#[test]
fn a_kubelet_alone_cannot_ask_anybody() {
    let nobody = |anonymous, client_certificates, tokens, webhook| {
        AccessSettings { client_certificates, ..settings(anonymous, tokens, webhook) }.check(false)
    };
    assert_eq!(nobody(true, true, true, false), Err(AccessError::NobodyKnowsTokens));
    assert_eq!(nobody(true, true, false, true), Err(AccessError::NobodyDecides));
    assert_eq!(nobody(false, false, false, false), Err(AccessError::NoMethod));
    assert_eq!(nobody(false, true, false, false), Ok(()));
    assert_eq!(settings(false, true, true).check(true), Ok(()));
}

#[test]
fn a_browsers_token_is_a_sub_protocol() {
    let protocols = |value: &str| {
        HeaderMap::from_iter([(
            header::SEC_WEBSOCKET_PROTOCOL,
            HeaderValue::from_str(value).unwrap(),
        )])
    };
    let token = format!("{TOKEN_PROTOCOL}{}", URL_SAFE_NO_PAD.encode("good"));
    let mut headers = protocols(&format!("v5.channel.k8s.io, {token}"));
    assert_eq!(take_token(&mut headers).unwrap().as_deref(), Some("good"));
    assert_eq!(headers[header::SEC_WEBSOCKET_PROTOCOL], "v5.channel.k8s.io");
    for bad in [token.clone(), format!("a, {token}, {token}"), format!("a, {TOKEN_PROTOCOL}=")] {
        assert!(take_token(&mut protocols(&bad)).is_err(), "{bad}");
    }
    assert!(matches!(take_token(&mut protocols("v4.channel.k8s.io")), Ok(None)));
}

/// An API server that takes a second for each answer.
#[derive(Default)]
struct Slow {
    /// How many it is asked for, and the most there were.
    asked: Arc<Mutex<(usize, usize)>>,
}

impl AccessReviews for Slow {
    fn user_of_token(&self, _: String) -> BoxFuture<'static, Result<Option<User>, ReviewError>> {
        let asked = self.asked.clone();
        async move {
            {
                let mut asked = asked.lock().unwrap();
                asked.0 += 1;
                asked.1 = asked.1.max(asked.0);
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            asked.lock().unwrap().0 -= 1;
            Ok(None)
        }
        .boxed()
    }

    fn is_allowed(&self, _: AccessQuestion) -> BoxFuture<'static, Result<bool, ReviewError>> {
        async { Ok(true) }.boxed()
    }
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_tokens_holds_up_nobody_who_is_known() {
    let slow = Arc::new(Slow::default());
    let access = Access::new(settings(false, true, true), "node", Some(slow.clone() as _)).unwrap();
    let flood = async {
        let ask = |number: usize| ask(&access, bearer(&number.to_string()));
        futures_util::future::join_all((0..64).map(ask)).await
    };
    let known = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let started = tokio::time::Instant::now();
        let alice = User { name: "alice".to_owned(), ..User::default() };
        let mut none = HeaderMap::new();
        access.decide(Some(alice.clone()), &Method::GET, &["proxy"], &mut none).await.unwrap();
        started.elapsed()
    };
    let (refused, waited) = tokio::join!(flood, known);
    assert!(refused.iter().all(|answer| *answer == Err(Refusal::Unauthorized)));
    assert_eq!(waited, Duration::ZERO);
    assert_eq!(slow.asked.lock().unwrap().1, review::AT_ONCE);
}

#[tokio::test(start_paused = true)]
async fn what_the_api_server_answers_is_counted() {
    let (access, _) = access(settings(true, true, true));
    for _ in 0..2 {
        assert_eq!(ask(&access, bearer("good")).await, Ok("robot".to_owned()));
    }
    let text = Registry::new().with(access.metrics()).expose(Format::Prometheus);
    for line in [
        "apiserver_delegated_authn_request_total{code=\"201\"} 1",
        "apiserver_delegated_authn_request_duration_seconds_count{code=\"201\"} 1",
        // Two parts of the node, of which the second may be asked.
        "apiserver_delegated_authz_request_total{code=\"201\"} 2",
        "apiserver_delegated_authz_request_duration_seconds_bucket{code=\"201\",le=\"0.25\"} 2",
    ] {
        assert!(text.lines().any(|it| it == line), "{line}\n{text}");
    }
}
