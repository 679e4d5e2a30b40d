use futures_util::stream::{BoxStream, StreamExt};
use rubelet_apiserver::{ApiServer, Event, Selector};
use rubelet_types::error_chain;

use crate::kind::ReferredObject;
use crate::port::{Freshness, ObjectApi, Observation, ReadFailure};

impl ObjectApi for ApiServer {
    async fn read<K: ReferredObject>(
        &self,
        namespace: &str,
        name: &str,
        freshness: Freshness,
    ) -> Result<K, ReadFailure> {
        let objects = self.namespaced::<K>(namespace);
        let read = match freshness {
            Freshness::Consistent => objects.get(name).await,
            Freshness::Cached => objects.get_cached(name).await,
        };
        read.map_err(|error| {
            if error.is_not_found() {
                ReadFailure::NotFound
            } else {
                ReadFailure::Unavailable(error_chain(&error))
            }
        })
    }

    fn follow<K: ReferredObject>(
        &self,
        namespace: &str,
        name: &str,
    ) -> BoxStream<'static, Observation<K>> {
        // The authoriser of nodes lets one object be watched by its name.
        let watch = self.namespaced::<K>(namespace).watch(&Selector::name(name));
        watch.map(observation).boxed()
    }
}

fn observation<K: ReferredObject>(event: Event<K>) -> Observation<K> {
    match event {
        Event::Applied(object) => Observation::Present(object),
        Event::Replaced(mut set) => match (set.objects.pop(), set.undecodable.pop()) {
            (Some(object), _) => Observation::Present(object),
            (None, Some(bad)) => Observation::Undecodable(bad.error),
            (None, None) => Observation::Absent,
        },
        Event::Deleted(_) => Observation::Absent,
        Event::Undecodable(bad) => Observation::Undecodable(bad.error),
        Event::Interrupted(error) => Observation::Interrupted(error_chain(&error)),
    }
}
