//! The same for a terminal.

use std::fmt::{self, Display, Formatter};

use rubelet_types::{ContainerState, SandboxState};

use super::view::{Container, Observed, PodView, Status, Volume, Worker};

/// A [`PodView`] as text: the answer first, then what it rests on, the newest decision at the top.
pub(super) struct Text<'a>(pub(super) &'a PodView);

impl Display for Text<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let view = self.0;
        let pod = &view.pod;
        writeln!(f, "Pod {}/{}, uid {}", pod.namespace, pod.name, pod.uid)?;
        writeln!(f, "At {:.3}", view.asked_at)?;
        writeln!(f, "\nWhy:")?;
        for why in &view.why {
            writeln!(f, "  {why}")?;
        }
        if view.why.is_empty() {
            writeln!(f, "  Nothing is wrong: it is as it should be")?;
        }
        writeln!(f, "\nSource: {}", view.source.as_deref().unwrap_or("none"))?;
        match view.admission {
            Some(standing) => writeln!(f, "Admission: {standing:?}")?,
            None => writeln!(f, "Admission: none")?,
        }
        match &view.status {
            Some(status) => write_status(f, status)?,
            None => writeln!(f, "Status: none yet")?,
        }
        match &view.worker {
            Some(worker) => write_worker(f, worker)?,
            None => writeln!(f, "\nWorker: none")?,
        }
        writeln!(f, "\nContainers:")?;
        view.containers.iter().try_for_each(|container| write_container(f, container))?;
        if !view.volumes.is_empty() {
            writeln!(f, "\nVolumes:")?;
            view.volumes.iter().try_for_each(|volume| write_volume(f, volume))?;
        }
        write_observed(f, &view.observed)
    }
}

fn write_status(f: &mut Formatter<'_>, status: &Status) -> fmt::Result {
    write!(f, "Status: {}", status.phase)?;
    for text in [&status.reason, &status.message] {
        if !text.is_empty() {
            write!(f, ", {text}")?;
        }
    }
    write!(f, ", version {}", status.version)?;
    match status.reached_api_server {
        Some(true) => writeln!(f, ", known to the API server")?,
        Some(false) => writeln!(f, ", not known to the API server yet")?,
        None => writeln!(f)?,
    }
    status.unmet_conditions.iter().try_for_each(|condition| writeln!(f, "  {condition}"))
}

fn write_worker(f: &mut Formatter<'_>, worker: &Worker) -> fmt::Result {
    writeln!(f, "\nWorker: {:?}", worker.stage)?;
    for action in &worker.actions {
        writeln!(f, "  since {:.3}: {}", action.since, action.action)?;
    }
    if let Some(wakes_at) = worker.wakes_at {
        writeln!(f, "  looks again at {wakes_at:.3}")?;
    }
    writeln!(f, "\nDecisions, the last one first:")?;
    for decision in worker.decisions.iter().rev() {
        let because = match decision.because.is_empty() {
            true => "nothing is due".to_owned(),
            false => decision.because.join("; "),
        };
        writeln!(f, "  {:.3}  {because}", decision.at)?;
        if !decision.actions.is_empty() {
            writeln!(f, "      began {}", decision.actions.join(", "))?;
        }
    }
    Ok(())
}

fn write_container(f: &mut Formatter<'_>, container: &Container) -> fmt::Result {
    write!(f, "  {}: {}", container.name, container.state)?;
    for text in [&container.reason, &container.message] {
        if !text.is_empty() {
            write!(f, ", {text}")?;
        }
    }
    if let Some(code) = container.exit_code {
        write!(f, ", exit code {code}")?;
    }
    let ready = if container.ready { "ready" } else { "not ready" };
    writeln!(f, ", {ready}, {} restarts", container.restart_count)?;
    writeln!(f, "      {}, image {}", container.kind, container.image)?;
    if let Some(pull) = &container.image_pull {
        if pull.in_flight {
            writeln!(f, "      its image is being pulled")?;
        }
        if let Some(error) = &pull.last_error {
            writeln!(f, "      last pull: {error}")?;
        }
        if let Some(at) = pull.retry_at {
            writeln!(f, "      next pull at {at:.3}")?;
        }
    }
    if let Some(last) = &container.last_end {
        writeln!(f, "      last {last}")?;
    }
    for probe in &container.probes {
        writeln!(f, "      {} probe: {}", probe.kind, probe.result)?;
    }
    Ok(())
}

fn write_volume(f: &mut Formatter<'_>, volume: &Volume) -> fmt::Result {
    match (&volume.last_error, volume.is_ready) {
        (Some(error), _) => writeln!(f, "  {}: failed: {error}", volume.name)?,
        (None, true) => writeln!(f, "  {}: ready", volume.name)?,
        (None, false) => writeln!(f, "  {}: waited for", volume.name)?,
    }
    if let Some(at) = volume.retry_at {
        writeln!(f, "      next try at {at:.3}")?;
    }
    match &volume.host_path {
        Some(path) => writeln!(f, "      {path}"),
        None => Ok(()),
    }
}

fn write_observed(f: &mut Formatter<'_>, observed: &Observed) -> fmt::Result {
    let snapshot = match observed {
        Observed::Error(error) => return writeln!(f, "\nIn the runtime: {error}"),
        Observed::Snapshot(snapshot) => snapshot,
    };
    writeln!(f, "\nIn the runtime:")?;
    if snapshot.is_empty() {
        return writeln!(f, "  nothing");
    }
    for sandbox in &snapshot.sandboxes {
        let state = match sandbox.state {
            SandboxState::Ready => "ready",
            SandboxState::NotReady => "not ready",
        };
        let ips = sandbox.ips.join(", ");
        writeln!(f, "  sandbox {}: {state}, attempt {} {ips}", sandbox.id, sandbox.attempt)?;
    }
    for container in &snapshot.containers {
        let state = match &container.state {
            ContainerState::Created => "created".to_owned(),
            ContainerState::Running { started_at } => format!("running since {started_at:.3}"),
            ContainerState::Exited { finished_at, exit_code, reason, .. } => {
                format!("exited at {finished_at:.3}, exit code {exit_code}, {reason}")
            }
            ContainerState::Unknown => "unknown".to_owned(),
        };
        writeln!(f, "  container {} {}: {state}", container.name, container.id)?;
    }
    Ok(())
}
