//! From kubectl into containers and back, and who may go that way.
//!
//! Each is done twice: by WebSocket, as kubectl does by itself, and by SPDY, as older clients do.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use rubelet_e2e::manifest::busybox;
use rubelet_e2e::wait_for;
use rubelet_test_bed::trials::Trial;
use serde_json::json;

use crate::stage::{Stage, each_second, pod};
use crate::{Ground, WAIT, on_one_node};

pub(crate) const TRIALS: &[Trial<Ground>] = on_one_node![
    commands_run_in_containers_with_input_output_exit_code_and_terminal,
    a_container_is_attached_to_and_files_are_copied,
    ports_are_forwarded,
    who_may_use_the_api_of_the_node_is_for_the_api_server_to_say,
];

/// How kubectl is told to speak SPDY.
const SPDY: [(&str, &str); 2] =
    [("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "false"), ("KUBECTL_PORT_FORWARD_WEBSOCKETS", "false")];

/// What kubectl is told, and what that is called.
const TRANSPORTS: [(&str, &[(&str, &str)]); 2] = [("WebSocket", &[]), ("SPDY", &SPDY)];

/// Input of more than any buffer holds.
const MUCH: usize = 3 << 20;

fn start(command: &mut Command) -> anyhow::Result<Child> {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().with_context(|| format!("cannot run {command:?}"))
}

/// Runs a command with `input` to its end.
fn feed(command: &mut Command, input: &[u8]) -> anyhow::Result<Output> {
    let mut child = start(command)?;
    let mut stdin = child.stdin.take().context("no stdin")?;
    let output = std::thread::scope(|scope| {
        scope.spawn(move || {
            // Who does not want all of it closes.
            let _ = stdin.write_all(input);
        });
        child.wait_with_output()
    });
    Ok(output?)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn says(output: &Output) -> String {
    format!("{}: {} {}", output.status, text(&output.stdout), text(&output.stderr))
}

fn commands_run_in_containers_with_input_output_exit_code_and_terminal(
    stage: &mut Stage,
) -> anyhow::Result<()> {
    let spec = json!({
        "terminationGracePeriodSeconds": 0,
        "containers": [busybox("app", "exec sleep 3600")],
    });
    stage.create_pod(&pod("web", spec))?;
    stage.wait_until_ready("web")?;
    for (transport, environment) in TRANSPORTS {
        let kubectl = |args: &[&str]| {
            let mut command = stage.kubectl_command(args);
            command.envs(environment.iter().copied());
            command
        };
        let script = "echo to output; echo to error >&2; exit 3";
        let output = feed(&mut kubectl(&["exec", "web", "--", "sh", "-c", script]), b"")?;
        ensure!(output.status.code() == Some(3), "{transport}: {}", says(&output));
        ensure!(output.stdout == b"to output\n", "{transport}: {}", says(&output));
        let stderr = text(&output.stderr);
        ensure!(stderr.contains("to error\n"), "{transport}: {}", says(&output));
        ensure!(stderr.contains("command terminated with exit code 3"), "{transport}: {stderr}");

        // The command sees the end of its input, and its output comes to the last byte.
        let much: Vec<u8> = (0..=255).cycle().take(MUCH).collect();
        let output = feed(&mut kubectl(&["exec", "-i", "web", "--", "cat"]), &much)?;
        ensure!(output.status.success(), "{transport}: {}", text(&output.stderr));
        ensure!(output.stdout == much, "{transport}: {} bytes came back", output.stdout.len());

        // A terminal here makes one there, which is soon of the same size.
        let line = "for n in $(seq 100); do case $(stty size) in \"41 137\") break;; esac; \
                    sleep 0.1; done; stty size; tty; exit 4";
        let inner = kubectl(&["exec", "-it", "web", "--", "sh", "-c"]);
        let words = std::iter::once(inner.get_program()).chain(inner.get_args());
        let words: Vec<String> = words.map(|word| format!("'{}'", word.display())).collect();
        let mut script = Command::new("script");
        script
            .args(["--quiet", "--return", "--command"])
            .arg(format!("stty rows 41 cols 137; {} '{line}'", words.join(" ")))
            .arg("/dev/null");
        for (name, value) in inner.get_envs() {
            script.env(name, value.unwrap_or_default());
        }
        let output = feed(&mut script, b"")?;
        ensure!(output.status.code() == Some(4), "{transport}: {}", says(&output));
        let said = text(&output.stdout);
        ensure!(said.contains("41 137"), "{transport}: {said}");
        ensure!(said.contains("/dev/pts/"), "{transport}: {said}");

        let output = feed(&mut kubectl(&["exec", "web", "--", "no-such-command"]), b"")?;
        ensure!(!output.status.success(), "{transport}: {}", says(&output));
        ensure!(text(&output.stderr).contains("no-such-command"), "{transport}: {}", says(&output));
    }
    Ok(())
}

fn a_container_is_attached_to_and_files_are_copied(stage: &mut Stage) -> anyhow::Result<()> {
    for (index, (transport, environment)) in TRANSPORTS.into_iter().enumerate() {
        let name = format!("attached-{index}");
        let mut app = busybox("app", "read -r line; echo \"got $line\"; exec sleep 1");
        app["stdin"] = json!(true);
        app["stdinOnce"] = json!(true);
        let spec = json!({ "restartPolicy": "Never", "containers": [app] });
        stage.create_pod(&pod(&name, spec))?;
        stage.wait_until_ready(&name)?;
        let mut attach = stage.kubectl_command(&["attach", "-i", &name]);
        attach.envs(environment.iter().copied());
        let output = feed(&mut attach, b"a line\n")?;
        ensure!(text(&output.stdout).contains("got a line"), "{transport}: {}", says(&output));
        ensure!(output.status.success(), "{transport}: {}", says(&output));
        stage.wait_for_pod(&name, "over", |pod| pod.phase == "Succeeded")?;
    }

    let spec = json!({
        "terminationGracePeriodSeconds": 0,
        "containers": [busybox("app", "exec sleep 3600")],
    });
    stage.create_pod(&pod("files", spec))?;
    stage.wait_until_ready("files")?;
    let dir = stage.kubelet().runtime().dir().join("copies");
    std::fs::create_dir_all(&dir)?;
    let (here, again) = (dir.join("here"), dir.join("again"));
    let bytes: Vec<u8> = (0..=255).rev().cycle().take(MUCH).collect();
    std::fs::write(&here, &bytes)?;
    for (transport, environment) in TRANSPORTS {
        let there = "files:/tmp/there";
        for (from, to) in [
            (here.display().to_string(), there.to_owned()),
            (there.to_owned(), again.display().to_string()),
        ] {
            let mut copy = stage.kubectl_command(&["cp", &from, &to]);
            copy.envs(environment.iter().copied());
            let output = feed(&mut copy, b"")?;
            ensure!(output.status.success(), "{transport}: {}", says(&output));
        }
        ensure!(std::fs::read(&again)? == bytes, "{transport}: it came back otherwise");
        std::fs::remove_file(&again)?;
    }
    Ok(())
}

/// A `kubectl port-forward` that ends with this value.
struct Forwarding {
    child: Child,
    /// Kept open: kubectl goes on to write.
    _stdout: BufReader<ChildStdout>,
    address: SocketAddr,
}

impl Forwarding {
    fn start(mut command: Command) -> anyhow::Result<Self> {
        let mut child = start(&mut command)?;
        let mut stdout = BufReader::new(child.stdout.take().context("no stdout")?);
        let mut line = String::new();
        stdout.read_line(&mut line)?;
        // Forwarding from 127.0.0.1:40000 -> 8080
        let address = line.split_whitespace().nth(2).and_then(|word| word.parse().ok());
        let Some(address) = address else {
            let _ = child.kill();
            let output = child.wait_with_output()?;
            anyhow::bail!("{line} {}", says(&output));
        };
        Ok(Self { child, _stdout: stdout, address })
    }

    /// The content of a file of the pod's server.
    fn get(&self, file: &str) -> anyhow::Result<String> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(WAIT))?;
        write!(stream, "GET /{file} HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (_, body) = answer.split_once("\r\n\r\n").with_context(|| answer.clone())?;
        Ok(body.to_owned())
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn ports_are_forwarded(stage: &mut Stage) -> anyhow::Result<()> {
    let serve = "mkdir /www; for n in 0 1 2 3 4 5 6 7; do echo file $n > /www/$n; done; \
                 exec httpd -f -p 8080 -h /www";
    let mut app = busybox("app", serve);
    app["readinessProbe"] = each_second(json!({ "httpGet": { "path": "/0", "port": 8080 } }));
    let spec = json!({ "terminationGracePeriodSeconds": 0, "containers": [app] });
    stage.create_pod(&pod("served", spec))?;
    stage.wait_until_ready("served")?;
    for (transport, environment) in TRANSPORTS {
        let mut command =
            stage.kubectl_command(&["port-forward", "--address=127.0.0.1", "pod/served", ":8080"]);
        command.envs(environment.iter().copied());
        let forwarding = Forwarding::start(command).context(transport)?;
        // Some at once, on one connection to the node.
        std::thread::scope(|scope| {
            let ask = |number: usize| {
                let forwarding = &forwarding;
                move || forwarding.get(&number.to_string())
            };
            let asked: Vec<_> = (0..8).map(|number| scope.spawn(ask(number))).collect();
            for (number, asked) in asked.into_iter().enumerate() {
                let answer = asked.join().map_err(|_| anyhow::anyhow!("it panicked"))?;
                let answer = answer.context(transport)?;
                ensure!(answer == format!("file {number}\n"), "{transport}: {answer}");
            }
            Ok(())
        })?;
    }
    Ok(())
}

fn who_may_use_the_api_of_the_node_is_for_the_api_server_to_say(
    stage: &mut Stage,
) -> anyhow::Result<()> {
    let node = format!("https://{}:10250", stage.kubelet().runtime().node_address());
    let ask = |identity: &[&str], path: &str| {
        let server = format!("--server={node}");
        let args = ["--insecure-skip-tls-verify=true", &server, "get", "--raw", path];
        stage.kubectl(&[identity, &args].concat())
    };
    // Whom the API server knows by his certificate, the kubelet knows, too.
    let pods = ask(&[], "/pods")?;
    ensure!(pods.contains("\"PodList\""), "{pods}");

    let nobody = ["--kubeconfig=/dev/null"];
    // Without a word of its own kubectl asks the terminal; this one counts for nothing.
    let word = [nobody[0], "--username=nobody", "--password=nothing"];
    let refused = ask(&word, "/pods").err().context("anybody may list pods")?.to_string();
    ensure!(refused.contains("must be logged in") || refused.contains("Unauthorized"), "{refused}");
    let forged = ask(&[nobody[0], "--token=forged"], "/pods").err().context("any token will do")?;
    ensure!(!forged.to_string().contains("orbidden"), "{forged}");

    let namespace = stage.namespace().to_owned();
    let token = |name: &str| -> anyhow::Result<String> {
        stage.kubectl(&["create", "serviceaccount", name])?;
        Ok(format!("--token={}", stage.kubectl(&["create", "token", name])?.trim()))
    };
    let grant = |name: &str, verb: &str, resource: &str| -> anyhow::Result<()> {
        let role = format!("{namespace}-{name}");
        let (verb, resource) = (format!("--verb={verb}"), format!("--resource={resource}"));
        stage.kubectl(&["create", "clusterrole", &role, &verb, &resource])?;
        let to = [format!("--clusterrole={role}"), format!("--serviceaccount={namespace}:{name}")];
        stage.kubectl(&["create", "clusterrolebinding", &role, &to[0], &to[1]])?;
        Ok(())
    };
    let (reader, proxy, none) = (token("reader")?, token("proxy")?, token("none")?);
    grant("reader", "get", "nodes/configz")?;
    grant("proxy", "get", "nodes/proxy")?;
    for (token, name, path, subresources) in [
        (&none, "none", "/configz", Some("configz proxy")),
        (&none, "none", "/pods", Some("pods proxy")),
        (&none, "none", "/nowhere", Some("proxy")),
        (&reader, "reader", "/configz", None),
        (&reader, "reader", "/pods", Some("pods proxy")),
        (&reader, "reader", "/runningpods/", Some("pods proxy")),
        (&proxy, "proxy", "/configz", None),
        (&proxy, "proxy", "/pods", None),
        (&proxy, "proxy", "/runningpods/", None),
        (&proxy, "proxy", "/healthz", None),
    ] {
        let answer = ask(&[nobody[0], token], path);
        let Some(subresources) = subresources else {
            answer.with_context(|| format!("{name} {path}"))?;
            continue;
        };
        let refused = answer.err().with_context(|| format!("{name} may {path}"))?.to_string();
        let said = format!(
            "Forbidden (user=system:serviceaccount:{namespace}:{name}, verb=get, resource=nodes, \
             subresource(s)=[{subresources}])"
        );
        ensure!(refused.contains(&said), "{name} {path}: {refused}");
    }
    for name in ["reader", "proxy"] {
        for kind in ["clusterrolebinding", "clusterrole"] {
            stage.kubectl(&["delete", kind, &format!("{namespace}-{name}")])?;
        }
    }
    // What was kept in mind for a no is asked again soon enough that nobody waits for long.
    let patience = Duration::from_secs(60);
    grant("none", "get", "nodes/pods")?;
    wait_for("a new right to count", patience, || {
        ask(&[nobody[0], &none], "/pods").map(drop).map_err(|error| format!("{error:#}"))
    })?;
    for kind in ["clusterrolebinding", "clusterrole"] {
        stage.kubectl(&["delete", kind, &format!("{namespace}-none")])?;
    }
    Ok(())
}
