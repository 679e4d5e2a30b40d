//! Who makes room for a critical pod.

use std::fmt;
use std::sync::Arc;

use k8s_openapi::api::core::v1::Pod;
use rubelet_node_resources::InsufficientResource;
use rubelet_types::{QosClass, Quantity, is_critical_pod, pod_qos_class, pod_requests};

/// How much of a resource has to be freed: thousandths for cpu, else whole units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shortfall {
    pub(super) resource: String,
    pub(super) amount: i64,
}

impl Shortfall {
    pub(super) fn of(lacking: &InsufficientResource) -> Self {
        Self { resource: lacking.resource.clone(), amount: lacking.shortfall() }
    }
}

/// Nobody can make the room that is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CannotPreempt(Vec<Shortfall>);

impl fmt::Display for CannotPreempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(
            "preemption: error finding a set of pods to preempt: no set of running pods found to \
             reclaim resources: [",
        )?;
        for Shortfall { resource, amount } in &self.0 {
            write!(f, "(res: {resource}, q: {amount}), ")?;
        }
        f.write_str("]")
    }
}

/// A pod that may be preempted, with what it would free.
#[derive(Clone, Debug)]
struct Candidate {
    pod: Arc<Pod>,
    /// In the order of the shortfalls.
    frees: Vec<i64>,
    memory: i64,
    cpu: i64,
}

/// The pods of `active` whose end frees what is lacking for the critical pod `preemptor`: as few
/// guaranteed pods as can be, then as few burstable ones, then as few that asked for nothing. Inside
/// a class the pod that comes nearest to what is still lacking is taken, until nothing is; of two
/// that come as near, the smaller one.
pub(super) fn plan_preemption(
    preemptor: &Pod,
    active: &[Arc<Pod>],
    shortfalls: &[Shortfall],
) -> Result<Vec<Arc<Pod>>, CannotPreempt> {
    let of_class = |class: QosClass| -> Vec<Candidate> {
        let pods = active.iter().filter(|pod| is_preemptable(preemptor, pod));
        pods.filter(|pod| pod_qos_class(pod) == class)
            .map(|pod| candidate(pod, shortfalls))
            .collect()
    };
    let best_effort = of_class(QosClass::BestEffort);
    let burstable = of_class(QosClass::Burstable);
    let guaranteed = of_class(QosClass::Guaranteed);

    let needed: Vec<i64> = shortfalls.iter().map(|shortfall| shortfall.amount.max(0)).collect();
    let left = without(&needed, [&best_effort, &burstable, &guaranteed]);
    if left.iter().any(|amount| *amount > 0) {
        let lacking = shortfalls.iter().zip(left).filter(|(_, left)| *left > 0);
        return Err(CannotPreempt(
            lacking.map(|(of, amount)| Shortfall { amount, ..of.clone() }).collect(),
        ));
    }
    // Each class gives what those below it cannot, even if all of them went.
    let guaranteed = nearest(guaranteed, without(&needed, [&best_effort, &burstable]));
    let burstable = nearest(burstable, without(&needed, [&best_effort, &guaranteed]));
    let best_effort = nearest(best_effort, without(&needed, [&burstable, &guaranteed]));
    let in_order = best_effort.into_iter().chain(burstable).chain(guaranteed);
    Ok(in_order.map(|candidate| candidate.pod).collect())
}

/// A pod that is not critical makes room, and one of lower priority.
fn is_preemptable(preemptor: &Pod, pod: &Pod) -> bool {
    let priority = |pod: &Pod| pod.spec.as_ref().and_then(|spec| spec.priority);
    let is_lower =
        priority(preemptor).zip(priority(pod)).is_some_and(|(wants, holds)| wants > holds);
    is_lower || (is_critical_pod(preemptor) && !is_critical_pod(pod))
}

fn candidate(pod: &Arc<Pod>, shortfalls: &[Shortfall]) -> Candidate {
    let requests = pod_requests(pod);
    let frees = |shortfall: &Shortfall| match shortfall.resource.as_str() {
        "pods" => 1,
        "cpu" => requests.cpu_milli(),
        resource => requests.get(resource).unwrap_or(Quantity::ZERO).value(),
    };
    Candidate {
        pod: pod.clone(),
        frees: shortfalls.iter().map(frees).collect(),
        memory: requests.memory_bytes(),
        cpu: requests.cpu_milli(),
    }
}

/// What is still lacking once all these are gone.
fn without<'a>(needed: &[i64], gone: impl IntoIterator<Item = &'a Vec<Candidate>>) -> Vec<i64> {
    let mut left = needed.to_vec();
    for candidate in gone.into_iter().flatten() {
        free(&mut left, candidate);
    }
    left
}

fn free(needed: &mut [i64], candidate: &Candidate) {
    for (needed, frees) in needed.iter_mut().zip(&candidate.frees) {
        *needed = needed.saturating_sub(*frees).max(0);
    }
}

/// Takes candidates until nothing is lacking, or none is left.
fn nearest(mut candidates: Vec<Candidate>, mut needed: Vec<i64>) -> Vec<Candidate> {
    let mut taken = Vec::new();
    while needed.iter().any(|amount| *amount > 0) {
        let rank =
            |candidate: &Candidate| (distance(&needed, candidate), candidate.memory, candidate.cpu);
        let best = (0..candidates.len()).min_by(|a, b| {
            let (a, b) = (rank(&candidates[*a]), rank(&candidates[*b]));
            a.0.total_cmp(&b.0).then((a.1, a.2).cmp(&(b.1, b.2)))
        });
        let Some(best) = best else { break };
        let candidate = candidates.remove(best);
        free(&mut needed, &candidate);
        taken.push(candidate);
    }
    taken
}

/// The sum of the squares of what would still be lacking of each resource, as a part of what is
/// lacking now.
#[allow(clippy::cast_precision_loss)] // It only ranks pods.
fn distance(needed: &[i64], candidate: &Candidate) -> f64 {
    let part = |(needed, frees): (&i64, &i64)| {
        let left = needed.saturating_sub(*frees).max(0);
        if left == 0 { 0.0 } else { (left as f64 / *needed as f64).powi(2) }
    };
    needed.iter().zip(&candidate.frees).map(part).sum()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `name cpu/memory` asks for so much, `name cpu/memory!` is guaranteed it, `name` alone asks for
    /// nothing; `@priority` may follow.
    fn pod(line: &str) -> Arc<Pod> {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap();
        let (mut resources, mut priority) = (json!({}), None);
        for word in words {
            if let Some(number) = word.strip_prefix('@') {
                priority = Some(number.parse::<i32>().unwrap());
                continue;
            }
            let is_guaranteed = word.ends_with('!');
            let (cpu, memory) = word.trim_end_matches('!').split_once('/').unwrap();
            let amounts = json!({"cpu": cpu, "memory": memory});
            resources["requests"] = amounts.clone();
            if is_guaranteed {
                resources["limits"] = amounts;
            }
        }
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name, "uid": name},
            "spec": {"priority": priority, "containers": [{"name": "c", "resources": resources}]},
        }))
        .unwrap();
        Arc::new(pod)
    }

    fn plan(critical: &str, active: &[&str], lacking: &[(&str, i64)]) -> String {
        let active: Vec<Arc<Pod>> = active.iter().map(|line| pod(line)).collect();
        let shortfalls: Vec<Shortfall> = lacking
            .iter()
            .map(|(resource, amount)| Shortfall {
                resource: (*resource).to_owned(),
                amount: *amount,
            })
            .collect();
        match plan_preemption(&pod(critical), &active, &shortfalls) {
            Ok(victims) => {
                let names = victims.iter().map(|pod| pod.metadata.name.as_deref().unwrap());
                names.collect::<Vec<_>>().join(" ")
            }
            Err(impossible) => impossible.to_string(),
        }
    }

    const CRITICAL: &str = "critical @2000000000";

    #[test]
    fn classes_are_spared_in_their_order() {
        let mixed = ["g 500m/1Gi!", "b 500m/1Gi", "e"];
        for (lacking, victims) in [
            // Who asked for nothing frees nothing but his place.
            (&[("pods", 1)][..], "e"),
            (&[("cpu", 100)], "b"),
            (&[("cpu", 500)], "b"),
            (&[("cpu", 501)], "b g"),
            (&[("pods", 2)], "e b"),
            (&[("pods", 3)], "e b g"),
            (&[("cpu", 600), ("pods", 1)], "b g"),
        ] {
            assert_eq!(plan(CRITICAL, &mixed, lacking), victims, "{lacking:?}");
        }
    }

    #[test]
    fn inside_a_class_the_nearest_goes_first() {
        let sizes = ["small 100m/100Mi", "middle 300m/300Mi", "large 1/1Gi"];
        for (lacking, victims) in [
            // All that free enough are as near: the smallest of them.
            (&[("cpu", 50)][..], "small"),
            (&[("cpu", 200)], "middle"),
            (&[("cpu", 301)], "large"),
            // Largest first, then what is left by the same rule.
            (&[("cpu", 1050)], "large small"),
            (&[("cpu", 1200)], "large middle"),
            (&[("cpu", 1400)], "large middle small"),
            // Each resource weighs the same, however large its unit.
            (&[("cpu", 300), ("memory", 100 << 20)], "middle"),
            (&[("cpu", 100), ("memory", 1 << 30)], "large"),
        ] {
            assert_eq!(plan(CRITICAL, &sizes, lacking), victims, "{lacking:?}");
        }
    }

    #[test]
    fn of_two_as_near_the_smaller_goes() {
        let twins = ["a 500m/2Gi", "b 600m/1Gi", "c 500m/1Gi", "d 500m/1Gi"];
        assert_eq!(plan(CRITICAL, &twins, &[("cpu", 500)]), "c");
        assert_eq!(plan(CRITICAL, &twins, &[("cpu", 550)]), "b");
    }

    #[test]
    fn critical_pods_stay_unless_they_are_of_lower_priority() {
        let active = ["node @2000001000 1/1Gi", "user @10 1/1Gi", "cluster @2000000000 1/1Gi"];
        assert_eq!(plan(CRITICAL, &active, &[("cpu", 100)]), "user");
        assert_eq!(plan("node @2000001000", &active, &[("cpu", 2000)]), "user cluster");
        assert_eq!(
            plan(CRITICAL, &active, &[("cpu", 1500), ("memory", 1)]),
            "preemption: error finding a set of pods to preempt: no set of running pods found to \
             reclaim resources: [(res: cpu, q: 500), ]"
        );
    }

    #[test]
    fn without_a_shortfall_nobody_goes() {
        assert_eq!(plan(CRITICAL, &["a 1/1Gi", "e"], &[]), "");
    }

    #[test]
    fn overhead_is_freed_with_the_pod() {
        let mut with_overhead = (*pod("a 100m/1Mi")).clone();
        let overhead = serde_json::from_value(json!({"cpu": "400m"})).unwrap();
        with_overhead.spec.as_mut().unwrap().overhead = Some(overhead);
        let active = [Arc::new(with_overhead)];
        let lacking = [Shortfall { resource: "cpu".to_owned(), amount: 500 }];
        assert_eq!(plan_preemption(&pod(CRITICAL), &active, &lacking).unwrap().len(), 1);
    }
}
