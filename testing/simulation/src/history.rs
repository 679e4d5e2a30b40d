//! A history: what is done to the node, drawn from a seed, and what must be true in the end.

use std::time::Duration;

use jiff::SignedDuration;
use rand::Rng;
use rubelet_cri::Rpc;
use rubelet_fake_cri::{Fault, FaultAction};
use tonic::Code;

use crate::end;
use crate::pods::{LIVENESS, Origin, READINESS};
use crate::world::World;

/// How a history went.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Everything that happened, line by line.
    pub lines: Vec<String>,
    /// What must never be, and was.
    pub violations: Vec<String>,
}

/// Calls that faults may strike.
const TARGETS: [Rpc; 17] = [
    Rpc::RunPodSandbox,
    Rpc::StopPodSandbox,
    Rpc::RemovePodSandbox,
    Rpc::CreateContainer,
    Rpc::StartContainer,
    Rpc::StopContainer,
    Rpc::RemoveContainer,
    Rpc::ListPodSandbox,
    Rpc::ListContainers,
    Rpc::PodSandboxStatus,
    Rpc::ContainerStatus,
    Rpc::ExecSync,
    Rpc::PullImage,
    Rpc::ImageStatus,
    Rpc::Status,
    Rpc::Version,
    Rpc::GetContainerEvents,
];

/// Lives through the history of `seed`.
pub(crate) async fn live(seed: u64, is_verbose: bool) -> anyhow::Result<Outcome> {
    let mut world = World::new(seed, is_verbose)?;
    crate::log::into_book(&world.book);
    if world.random.random_bool(0.7) {
        world.offer_remote_image();
    }
    for _ in 0..world.random.random_range(1..5) {
        add(&mut world)?;
    }
    world.start_kubelet();
    let steps = world.random.random_range(10..50);
    // Some histories are calm: what goes wrong without any fault is the easiest to understand.
    let has_faults = world.random.random_bool(0.75);
    for _ in 0..steps {
        if world.has_failed() {
            break;
        }
        step(&mut world, has_faults).await?;
        let turns = world.random.random_range(0..60);
        world.take_turns(turns).await;
        let pause = pause(&mut world);
        world.pass(pause).await;
    }
    if !world.has_failed() {
        end::settle(&mut world).await;
    }
    let is_over = world.has_failed();
    if is_over {
        end::report(&world);
    }
    world.crash_kubelet().await;
    let mut book = world.book.open();
    Ok(Outcome {
        lines: std::mem::take(&mut book.lines),
        violations: std::mem::take(&mut book.violations),
    })
}

fn add(world: &mut World) -> anyhow::Result<()> {
    let origin = if world.random.random_bool(0.5) { Origin::Static } else { Origin::Api };
    world.add_pod(origin)
}

/// From a millisecond to minutes, short ones more often.
fn pause(world: &mut World) -> Duration {
    let magnitude = world.random.random_range(0.0..5.0f64);
    let ms = 10f64.powf(magnitude);
    Duration::from_secs_f64(ms / 1000.0)
}

async fn step(world: &mut World, has_faults: bool) -> anyhow::Result<()> {
    match world.random.random_range(0..100) {
        0..=17 => add(world)?,
        18..=29 => world.delete_pod(),
        30..=37 => world.change_pod()?,
        38..=45 => world.kill_process(),
        46..=49 => world.kill_sandbox(),
        50..=51 => world.lose_container(),
        52..=55 => {
            world.crash_runtime();
            let pause = Duration::from_millis(world.random.random_range(0..30_000));
            world.pass(pause).await;
            world.restart_runtime();
        }
        56..=57 => world.reboot().await,
        58..=64 => {
            world.crash_kubelet().await;
            let pause = Duration::from_millis(world.random.random_range(0..60_000));
            world.pass(pause).await;
            world.start_kubelet();
        }
        65..=69 => {
            let calls = world.random.random_range(1..40);
            world.book.open().crash_in = Some(calls);
        }
        70..=71 => {
            world.stop_kubelet().await;
            let pause = Duration::from_millis(world.random.random_range(0..10_000));
            world.pass(pause).await;
            world.start_kubelet();
        }
        72..=73 => {
            let seconds = world.random.random_range(-300..3600);
            world.jump_clock(SignedDuration::from_secs(seconds));
        }
        74..=79 => {
            if let Some((_, name)) = world.some_running() {
                let command = if world.random.random_bool(0.5) { LIVENESS } else { READINESS };
                world.fail(&name, command);
            }
        }
        80..=82 => world.heal_commands(),
        83..=84 => {
            let ready = world.random.random_bool(0.5);
            world.set_network_ready(ready);
        }
        85..=86 => {
            let lost = world.random.random_bool(0.5);
            world.book.note(format!("* events are lost: {lost}"));
            world.runtime.set_events_lost(lost);
        }
        87 => world.offer_remote_image(),
        88 => world.restore_pod(),
        89 => {
            let is_away = world.random.random_bool(0.5);
            world.set_api_away(is_away);
        }
        _ if has_faults && world.random.random_bool(0.4) => world.trouble_api(),
        _ if has_faults => inject(world),
        _ => {}
    }
    Ok(())
}

fn inject(world: &mut World) {
    if world.random.random_bool(0.2) {
        world.book.note("* no more faults wait");
        world.runtime.clear_faults();
        return;
    }
    let rpc = TARGETS[world.random.random_range(0..TARGETS.len())];
    let action = match world.random.random_range(0..10) {
        0..=4 => {
            let code = [Code::Unknown, Code::Unavailable, Code::DeadlineExceeded, Code::Internal]
                [world.random.random_range(0..4)];
            FaultAction::Error(code, "made up".to_owned())
        }
        5..=6 => FaultAction::Delay(Duration::from_millis(world.random.random_range(1..200_000))),
        7..=8 => FaultAction::Hang,
        _ => {
            let back = Duration::from_millis(world.random.random_range(0..20_000));
            FaultAction::Crash { back_after: Some(back) }
        }
    };
    let mut fault = Fault::on(rpc, action.clone());
    let mut text = format!("* fault on {rpc}: {action:?}");
    if world.random.random_bool(0.4) {
        fault = fault.after_effect();
        text += ", after its effect";
    }
    if world.random.random_bool(0.3)
        && let Some((uid, _)) = world.some_pod(None)
    {
        text += &format!(", about {uid}");
        fault = fault.about(uid);
    }
    let times = world.random.random_range(1..6);
    fault = fault.times(times);
    text += &format!(", {times} times");
    if world.random.random_bool(0.3) {
        fault = fault.with_probability(0.3);
        text += ", sometimes";
    }
    world.book.note(text);
    world.runtime.inject(fault);
}
