use rubelet_cri::Rpc;
use rubelet_fake_cri::{ExecAnswer, Script, ScriptMatch};
use rubelet_metrics::{Format, Registry};
use rubelet_types::ContainerId;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep, timeout};

use super::*;

/// A node with a running container that has this preStop hook, and commands `slow` (a day) and
/// `broken`.
async fn with_pre_stop(hook: serde_json::Value) -> (Node, Pod, ContainerId) {
    let node = Node::new();
    let script = Script::run_forever()
        .exec(&["slow"], ExecAnswer { after: seconds(86_400), ..ExecAnswer::default() })
        .exec(&["broken"], ExecAnswer { exit_code: 1, ..ExecAnswer::default() });
    node.fake.add_script(ScriptMatch::Container("c".to_owned()), script);
    let pod = pod(serde_json::json!({"lifecycle": {"preStop": hook}}));
    let (_, container) = node.run(&pod).await;
    node.events();
    (node, pod, container.id)
}

#[tokio::test(start_paused = true)]
async fn a_pre_stop_hook_gets_its_budget_and_no_more() {
    let exec = |command: &str| serde_json::json!({"exec": {"command": [command]}});
    let sleep = |seconds: i64| serde_json::json!({"sleep": {"seconds": seconds}});
    let failed = "W spec.containers{c} FailedPreStopHook: PreStopHook failed";
    for (hook, budget, took, calls, events) in [
        (exec("slow"), 10, 10, 1, vec![]),
        (exec("slow"), 0, 0, 0, vec![]),
        (exec("true"), 10, 0, 1, vec![]),
        (exec("broken"), 10, 0, 1, vec![failed]),
        (sleep(4), 10, 4, 0, vec![]),
        (sleep(15), 10, 10, 0, vec![]),
        (sleep(0), 10, 0, 0, vec![]),
        (serde_json::json!({"tcpSocket": {"port": 1}}), 10, 0, 0, vec![failed]),
        (
            serde_json::json!({"httpGet": {"port": "none", "host": "127.0.0.1"}}),
            10,
            0,
            0,
            vec![failed],
        ),
    ] {
        let (node, pod, id) = with_pre_stop(hook.clone()).await;
        let begun = Instant::now();
        let cancel = CancellationToken::new();
        node.runtime.run_pre_stop(&pod, "", &id, "c", seconds(budget), &cancel).await;
        assert_eq!(begun.elapsed().as_secs(), took, "{hook}");
        assert_eq!(node.fake.calls(Rpc::ExecSync), calls, "{hook}");
        assert_eq!(node.events(), events, "{hook}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_shorter_grace_interrupts_a_pre_stop_hook() {
    let (node, pod, id) = with_pre_stop(serde_json::json!({"exec": {"command": ["slow"]}})).await;
    let cancel = CancellationToken::new();
    let begun = Instant::now();
    let hook = node.runtime.run_pre_stop(&pod, "", &id, "c", seconds(600), &cancel);
    let ((), ()) = tokio::join!(hook, async {
        sleep(seconds(3)).await;
        cancel.cancel();
    });
    assert_eq!(begun.elapsed().as_secs(), 3);
    assert_eq!(node.events(), Vec::<String>::new());
}

/// A server that takes one request, answers it or not, and tells when its connection is closed.
async fn serve(listener: TcpListener, answer: Option<&str>) -> String {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut request = vec![0; 4096];
    let read = stream.read(&mut request).await.unwrap();
    if let Some(answer) = answer {
        stream.write_all(answer.as_bytes()).await.unwrap();
    } else {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).await.unwrap();
    }
    String::from_utf8_lossy(&request[..read]).into_owned()
}

#[tokio::test]
async fn a_hook_that_never_answers_is_hung_up_on() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (node, pod, id) = with_pre_stop(serde_json::json!({"httpGet": {"port": port}})).await;
    let cancel = CancellationToken::new();
    let budget = Duration::from_millis(200);
    let hook = node.runtime.run_pre_stop(&pod, "127.0.0.1", &id, "c", budget, &cancel);
    let (_, closed) = tokio::join!(hook, timeout(seconds(10), serve(listener, None)));
    closed.expect("the connection is closed when the budget is used up");
    assert_eq!(node.events(), Vec::<String>::new());
}

#[tokio::test]
async fn any_answer_satisfies_an_http_hook() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let hook = serde_json::json!({"httpGet": {"port": port, "path": "/bye"}});
    let (node, pod, id) = with_pre_stop(hook).await;
    let cancel = CancellationToken::new();
    let answer = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n";
    let hook = node.runtime.run_pre_stop(&pod, "127.0.0.1", &id, "c", seconds(10), &cancel);
    let ((), request) = tokio::join!(hook, serve(listener, Some(answer)));
    assert!(request.starts_with("GET /bye HTTP/1.1\r\n"), "{request}");
    assert_eq!(node.events(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn stopping_tells_why_and_what_is_gone_is_stopped() {
    let (node, pod, id) = with_pre_stop(serde_json::json!({"sleep": {"seconds": 1}})).await;
    node.runtime.announce_stop(&pod, "c", "Stopping container c".to_owned());
    node.runtime.announce_stop(&pod, "nobody", "Stopping container nobody".to_owned());
    assert_eq!(node.events(), ["N spec.containers{c} Killing: Stopping container c"]);
    assert!(node.fake.lose_container(id.as_str()));
    node.runtime.stop_container(&id, seconds(30)).await.unwrap();
    node.runtime.stop_sandbox(&"no-such-sandbox".into()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_container_never_gets_less_time_than_promised() {
    let node = Node::new();
    let deaf = Script::of([rubelet_fake_cri::Step::RunForever]);
    node.fake.add_script(ScriptMatch::Container("c".to_owned()), deaf);
    let (_, container) = node.run(&pod(serde_json::json!({}))).await;
    let begun = Instant::now();
    node.runtime.stop_container(&container.id, Duration::from_millis(2500)).await.unwrap();
    assert_eq!(begun.elapsed().as_secs(), 3);
}

#[tokio::test]
async fn a_hook_that_asks_for_tls_takes_an_answer_without_and_says_so() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let hook = serde_json::json!({"httpGet": {"port": port, "scheme": "HTTPS"}});
    let (node, pod, id) = with_pre_stop(hook).await;
    let cancel = CancellationToken::new();
    let hook = node.runtime.run_pre_stop(&pod, "127.0.0.1", &id, "c", seconds(10), &cancel);
    // Who speaks HTTP alone takes the client's hello for a bad request.
    let server = async {
        let mut requests = Vec::new();
        for answer in ["HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n"] {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let read = stream.read(&mut request).await.unwrap();
            stream.write_all(answer.as_bytes()).await.unwrap();
            requests.push(String::from_utf8_lossy(&request[..read]).into_owned());
        }
        requests
    };
    let ((), requests) = tokio::join!(hook, timeout(seconds(10), server));
    assert!(requests.unwrap()[1].starts_with("GET / HTTP/1.1\r\n"));
    assert_eq!(
        node.events(),
        [format!(
            "W web_ns(u1) LifecycleHTTPFallback: request to HTTPS lifecycle hook 127.0.0.1:{port} \
             got HTTP response, retry with HTTP succeeded"
        )]
    );
    let text = Registry::new().with(node.runtime.hook_metrics()).expose(Format::Prometheus);
    assert!(text.contains("\nkubelet_lifecycle_handler_http_fallbacks_total 1\n"), "{text}");
}
