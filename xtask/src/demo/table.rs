//! The table of pods and containers.

use jiff::Timestamp;
use rubelet_e2e::{ContainerView, PodView};

const HEAD: [&str; 6] = ["POD / container", "STATE", "READY", "RESTARTS", "AGE", "IP"];

/// Renders the table: one line for each pod, and one for each of its containers below it.
pub(super) fn render(pods: &[PodView], now: Timestamp) -> Vec<String> {
    let mut rows = vec![HEAD.map(str::to_owned)];
    for pod in pods {
        let apps = pod.containers.iter().filter(|container| !container.is_init);
        let (ready, all) = apps.fold((0, 0), |(ready, all), container| {
            (ready + usize::from(container.ready), all + 1)
        });
        rows.push([
            pod.name.clone(),
            pod.state(),
            format!("{ready}/{all}"),
            pod.restarts().to_string(),
            age(&pod.start_time, now),
            if pod.ip.is_empty() { "-".to_owned() } else { pod.ip.clone() },
        ]);
        rows.extend(pod.containers.iter().map(container_row));
    }
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
    };
    let widths: [usize; 6] = std::array::from_fn(width);
    rows.iter()
        .map(|row| {
            let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}"));
            cells.collect::<Vec<String>>().join("  ").trim_end().to_owned()
        })
        .collect()
}

fn container_row(container: &ContainerView) -> [String; 6] {
    let state = match (container.state.as_str(), container.reason.as_str()) {
        ("terminated", reason) => {
            let code = container.exit_code.map_or("?".to_owned(), |code| code.to_string());
            format!("{reason} ({code})")
        }
        (state, "") => state.to_owned(),
        (_, reason) => reason.to_owned(),
    };
    let ready = if container.ready { "yes" } else { "no" };
    [
        format!("  {}", container.name),
        format!("  {state}"),
        format!("  {ready}"),
        format!("  {}", container.restarts),
        String::new(),
        String::new(),
    ]
}

/// Seconds up to two minutes, then minutes, then hours.
fn age(start_time: &str, now: Timestamp) -> String {
    let Ok(start) = start_time.parse::<Timestamp>() else { return "-".to_owned() };
    match now.duration_since(start).as_secs().max(0) {
        seconds @ ..120 => format!("{seconds}s"),
        seconds @ 120..7200 => format!("{}m", seconds / 60),
        seconds => format!("{}h", seconds / 3600),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn pods_and_their_containers_stand_in_columns() {
        let pods = PodView::from_list(&json!({ "items": [{
            "metadata": { "name": "web-demo", "namespace": "default", "uid": "u" },
            "status": {
                "phase": "Running",
                "podIP": "10.244.0.2",
                "startTime": "2026-01-01T00:00:00Z",
                "conditions": [{ "type": "Ready", "status": "True" }],
                "initContainerStatuses": [{
                    "name": "prepare", "restartCount": 0, "ready": true,
                    "state": { "terminated": { "exitCode": 0, "reason": "Completed" } }
                }],
                "containerStatuses": [{
                    "name": "httpd", "restartCount": 1, "ready": true,
                    "state": { "running": { "startedAt": "2026-01-01T00:00:01Z" } }
                }]
            }
        }]}));
        let now = "2026-01-01T00:05:00Z".parse().expect("a time");
        let expected = [
            "POD / container  STATE            READY  RESTARTS  AGE  IP",
            "web-demo         Running          1/1    1         5m   10.244.0.2",
            "  prepare          Completed (0)    yes    0",
            "  httpd            running          yes    1",
        ];
        assert_eq!(render(&pods, now), expected);
    }

    #[test]
    fn a_pod_that_has_not_started_has_no_age() {
        assert_eq!(age("", "2026-01-01T00:00:00Z".parse().expect("a time")), "-");
    }
}
