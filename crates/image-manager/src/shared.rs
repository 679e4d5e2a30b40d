//! Overlapping pulls of the same image with the same credentials are one pull.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::pull::{PullOutcome, PullRequest, Puller};
use crate::service::ImageService;

/// Annotations of the kubelet's own that differ between pods that are otherwise alike.
const OWN_ANNOTATIONS: &str = "kubernetes.io/config.";

/// The pulls that run, or wait for their turn.
#[derive(Debug, Default)]
pub(crate) struct SharedPulls(Mutex<Flights>);

#[derive(Debug, Default)]
struct Flights {
    next_id: u64,
    running: Vec<Flight>,
}

/// A pull on its way.
///
/// It runs in a task of its own, so that it outlives the pod that asked first while others wait,
/// and ends when the last one has lost interest.
#[derive(Debug)]
struct Flight {
    id: u64,
    request: PullRequest,
    waiting: usize,
    cancel: CancellationToken,
    outcome: watch::Receiver<Option<Arc<PullOutcome>>>,
}

impl SharedPulls {
    /// Joins the pull that `request` describes, or starts it. Dropping the future leaves it.
    pub(crate) async fn pull<S: ImageService>(
        self: &Arc<Self>,
        puller: &Arc<Puller<S>>,
        request: PullRequest,
    ) -> Arc<PullOutcome> {
        let mut seat = self.join(puller, request);
        match seat.outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or_else(lost),
            Err(_) => lost(),
        }
    }

    fn join<S: ImageService>(
        self: &Arc<Self>,
        puller: &Arc<Puller<S>>,
        request: PullRequest,
    ) -> Seat {
        let mut flights = self.lock();
        let running = flights.running.iter_mut();
        if let Some(flight) = running.into_iter().find(|f| is_same(&f.request, &request)) {
            flight.waiting += 1;
            return Seat { id: flight.id, outcome: flight.outcome.clone(), pulls: self.clone() };
        }
        let id = flights.next_id;
        flights.next_id += 1;
        let cancel = CancellationToken::new();
        let (publish, outcome) = watch::channel(None);
        flights.running.push(Flight {
            id,
            request: request.clone(),
            waiting: 1,
            cancel: cancel.clone(),
            outcome: outcome.clone(),
        });
        drop(flights);
        let (pulls, puller) = (self.clone(), puller.clone());
        tokio::spawn(async move {
            // None when nobody waits any more, and it is forgotten already.
            if let Some(outcome) = puller.pull(request, &cancel).await {
                // Whoever asks from here on wants a new pull: this one may be outdated.
                pulls.forget(id);
                publish.send_replace(Some(Arc::new(outcome)));
            }
        });
        Seat { id, outcome, pulls: self.clone() }
    }

    /// A pull of `image`, as pods' specs say, is under way or waits for its turn.
    pub(crate) fn is_pulling(&self, image: &str) -> bool {
        let flights = self.lock();
        flights.running.iter().any(|flight| flight.request.image.user_specified_image == image)
    }

    fn forget(&self, id: u64) {
        self.lock().running.retain(|flight| flight.id != id);
    }

    fn leave(&self, id: u64) {
        let mut flights = self.lock();
        let running = &mut flights.running;
        let Some(index) = running.iter().position(|flight| flight.id == id) else { return };
        running[index].waiting -= 1;
        if running[index].waiting == 0 {
            running.swap_remove(index).cancel.cancel();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Flights> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody's interest in a flight.
struct Seat {
    id: u64,
    outcome: watch::Receiver<Option<Arc<PullOutcome>>>,
    pulls: Arc<SharedPulls>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.pulls.leave(self.id);
    }
}

fn lost() -> Arc<PullOutcome> {
    Arc::new(Err("the pull ended without a result".to_owned()))
}

fn is_same(one: &PullRequest, other: &PullRequest) -> bool {
    let foreign = |request: &PullRequest| {
        let mut image = request.image.clone();
        image.annotations.retain(|key, _| !key.starts_with(OWN_ANNOTATIONS));
        image
    };
    one.image.image == other.image.image
        && one.credentials == other.credentials
        && foreign(one) == foreign(other)
}
