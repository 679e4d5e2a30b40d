use std::fmt;
use std::marker::PhantomData;

use bytes::Bytes;
use http::HeaderValue;
use http::header::CONTENT_TYPE;
use kube::core::params::{
    DeleteParams, GetParams, ListParams, PatchParams, PostParams, Preconditions,
};
use kube::core::{Resource, request};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::client::ApiServer;
use crate::connection::Request;
use crate::decode::{FullSet, Page, decode_object};
use crate::error::{ApiError, ApiErrorKind, Target, Verb};
use crate::store::{Store, keep};
use crate::watch::Watch;

/// A kind of the Kubernetes API: all that `k8s-openapi` has.
pub trait ApiObject:
    Resource<DynamicType = ()> + Serialize + DeserializeOwned + fmt::Debug + Send + Sync + 'static
{
}

impl<K> ApiObject for K where
    K: Resource<DynamicType = ()>
        + Serialize
        + DeserializeOwned
        + fmt::Debug
        + Send
        + Sync
        + 'static
{
}

/// Which objects of a kind. The default is all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    pub(crate) fields: Option<String>,
    pub(crate) labels: Option<String>,
}

impl Selector {
    /// All there are.
    pub fn all() -> Self {
        Self::default()
    }

    /// The one with this name.
    pub fn name(name: &str) -> Self {
        Self::fields(format!("metadata.name={name}"))
    }

    /// By a field selector: `spec.nodeName=a`.
    pub fn fields(selector: impl Into<String>) -> Self {
        Self { fields: Some(selector.into()), labels: None }
    }

    /// By a label selector: `app=web,tier!=db`.
    pub fn labels(selector: impl Into<String>) -> Self {
        Self { fields: None, labels: Some(selector.into()) }
    }

    /// Narrowed by a label selector.
    pub fn and_labels(self, selector: impl Into<String>) -> Self {
        Self { labels: Some(selector.into()), ..self }
    }
}

/// A change to a part of an object.
#[derive(Clone, Debug, PartialEq)]
pub enum Patch {
    /// Lists are merged by their keys, as the type of the object defines: conditions by `type`.
    Strategic(Value),
    /// Lists are replaced (RFC 7396).
    Merge(Value),
}

/// How to delete. The default is the server's own way, whatever the object's identity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delete {
    /// Seconds until a pod is gone; 0 removes the object at once.
    pub grace_period_seconds: Option<u32>,
    /// Only the object with this uid.
    pub uid: Option<String>,
    /// Only the object as it is at this version.
    pub resource_version: Option<String>,
}

impl Delete {
    /// Removes at once the object with this uid, and no later one of the same name.
    pub fn now(uid: impl Into<String>) -> Self {
        Self { grace_period_seconds: Some(0), uid: Some(uid.into()), resource_version: None }
    }
}

/// The objects of one kind, in one namespace or all.
pub struct Objects<K> {
    api: ApiServer,
    namespace: Option<String>,
    kind: PhantomData<fn() -> K>,
}

impl<K> Clone for Objects<K> {
    fn clone(&self) -> Self {
        Self { api: self.api.clone(), namespace: self.namespace.clone(), kind: PhantomData }
    }
}

impl<K> fmt::Debug for Objects<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Objects")
            .field("kind", &std::any::type_name::<K>())
            .field("namespace", &self.namespace)
            .finish_non_exhaustive()
    }
}

impl<K: ApiObject> Objects<K> {
    pub(crate) fn new(api: ApiServer, namespace: Option<String>) -> Self {
        Self { api, namespace, kind: PhantomData }
    }

    /// Reads the object as it is now.
    pub async fn get(&self, name: &str) -> Result<K, ApiError> {
        self.get_with(name, GetParams::default()).await
    }

    /// Reads the object as the server's cache has it, which costs the server less, and may be a
    /// little older.
    pub async fn get_cached(&self, name: &str) -> Result<K, ApiError> {
        self.get_with(name, GetParams::any()).await
    }

    async fn get_with(&self, name: &str, params: GetParams) -> Result<K, ApiError> {
        let target = self.target(Verb::Get, None, Some(name));
        let request = self.request().get(name, &params);
        self.call(target, request).await
    }

    /// Reads all objects that match, in pages, as of one moment.
    pub async fn list(&self, selector: &Selector) -> Result<FullSet<K>, ApiError> {
        let mut pages = Pages::default();
        loop {
            let page = match self.page(selector, &pages).await {
                Ok(page) => page,
                Err(error) => {
                    pages.go_on_after(error)?;
                    continue;
                }
            };
            if let Some(whole) = pages.add(page) {
                return Ok(whole);
            }
        }
    }

    async fn page(&self, selector: &Selector, pages: &Pages<K>) -> Result<Page<K>, ApiError> {
        let params = ListParams {
            field_selector: selector.fields.clone(),
            label_selector: selector.labels.clone(),
            limit: pages.limit,
            continue_token: pages.continue_token.clone(),
            ..ListParams::default()
        };
        let target = self.target(Verb::List, None, None);
        let request = self.to_request(&target, self.request().list(&params))?;
        let body = self.api.call(target.clone(), request).await?;
        Page::decode(&body)
            .map_err(|error| ApiError::caused_by(target, ApiErrorKind::Decode, error))
    }

    /// Makes a new object, and gives it as the server keeps it.
    pub async fn create(&self, object: &K) -> Result<K, ApiError> {
        let name = object.meta().name.as_deref();
        let target = self.target(Verb::Create, None, name);
        let body = self.encode(&target, object)?;
        let request = self.request().create(&PostParams::default(), body);
        self.call(target, request).await
    }

    /// Replaces the object. With a `resourceVersion` in it, only that version.
    pub async fn update(&self, name: &str, object: &K) -> Result<K, ApiError> {
        let target = self.target(Verb::Update, None, Some(name));
        let body = self.encode(&target, object)?;
        let request = self.request().replace(name, &PostParams::default(), body);
        self.call(target, request).await
    }

    /// Replaces a subresource: `status`, `approval`.
    pub async fn update_subresource(
        &self,
        name: &str,
        subresource: &str,
        object: &K,
    ) -> Result<K, ApiError> {
        let target = self.target(Verb::Update, Some(subresource), Some(name));
        let body = self.encode(&target, object)?;
        let params = PostParams::default();
        let request = self.request().replace_subresource(subresource, name, &params, body);
        self.call(target, request).await
    }

    /// Changes a part of the object.
    pub async fn patch(&self, name: &str, patch: &Patch) -> Result<K, ApiError> {
        let target = self.target(Verb::Patch, None, Some(name));
        let params = PatchParams::default();
        let request = self.request().patch(name, &params, &patch.as_kubes());
        self.call(target, request).await
    }

    /// Changes a part of the object's status, and nothing else of it.
    pub async fn patch_status(&self, name: &str, patch: &Patch) -> Result<K, ApiError> {
        let target = self.target(Verb::Patch, Some("status"), Some(name));
        let params = PatchParams::default();
        let request = self.request().patch_subresource("status", name, &params, &patch.as_kubes());
        self.call(target, request).await
    }

    /// Deletes the object, or begins to: a pod stays until its grace period is over.
    pub async fn delete(&self, name: &str, how: &Delete) -> Result<(), ApiError> {
        let target = self.target(Verb::Delete, None, Some(name));
        let is_conditional = how.uid.is_some() || how.resource_version.is_some();
        let params = DeleteParams {
            grace_period_seconds: how.grace_period_seconds,
            preconditions: is_conditional.then(|| Preconditions {
                uid: how.uid.clone(),
                resource_version: how.resource_version.clone(),
            }),
            ..DeleteParams::default()
        };
        let request = self.to_request(&target, self.request().delete(name, &params))?;
        self.api.call(target, request).await.map(drop)
    }

    /// Follows the objects that match, for ever: first all of them, then each change.
    pub fn watch(&self, selector: &Selector) -> Watch<K> {
        Watch::new(self.clone(), selector.clone())
    }

    /// Keeps the objects that match at hand. The store fills, and stays current, while the future
    /// is driven; that never ends.
    pub fn informer(
        &self,
        selector: &Selector,
    ) -> (Store<K>, impl Future<Output = ()> + Send + use<K>) {
        let store = Store::new();
        let keeping = keep(store.clone(), self.watch(selector));
        (store, keeping)
    }

    /// Creates a subresource of a kind of its own.
    pub(crate) async fn create_subresource<B: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        subresource: &str,
        body: &B,
    ) -> Result<B, ApiError> {
        let target = self.target(Verb::Create, Some(subresource), Some(name));
        let encoded = serde_json::to_vec(body).map_err(|error| {
            ApiError::caused_by(target.clone(), ApiErrorKind::BadRequest, error)
        })?;
        let params = PostParams::default();
        let request = self.request().create_subresource(subresource, name, &params, encoded);
        let request = self.to_request(&target, request)?;
        let answer = self.api.call(target.clone(), request).await?;
        serde_json::from_slice(&answer)
            .map_err(|error| ApiError::caused_by(target, ApiErrorKind::Decode, error))
    }

    pub(crate) fn api(&self) -> &ApiServer {
        &self.api
    }

    pub(crate) fn target(
        &self,
        verb: Verb,
        subresource: Option<&str>,
        name: Option<&str>,
    ) -> Target {
        let plural = K::plural(&());
        let resource = match subresource {
            Some(subresource) => format!("{plural}/{subresource}"),
            None => plural.into_owned(),
        };
        Target { verb, resource, namespace: self.namespace.clone(), name: name.map(str::to_owned) }
    }

    pub(crate) fn request(&self) -> kube::core::Request {
        kube::core::Request::new(K::url_path(&(), self.namespace.as_deref()))
    }

    pub(crate) fn to_request(
        &self,
        target: &Target,
        request: Result<http::Request<Vec<u8>>, request::Error>,
    ) -> Result<Request, ApiError> {
        let request = request.map_err(|error| {
            ApiError::caused_by(target.clone(), ApiErrorKind::BadRequest, error)
        })?;
        let names = target.name.iter().chain(&target.namespace);
        if let Some(name) = names.into_iter().find(|name| !is_path_segment(name)) {
            let message = format!("cannot {}: {name:?} is no name", target.verb);
            return Err(ApiError::new(target.clone(), ApiErrorKind::BadRequest, message));
        }
        let (head, body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let content_type: Option<HeaderValue> = head.headers.get(CONTENT_TYPE).cloned();
        Ok(Request { method: head.method, path, content_type, body: Bytes::from(body) })
    }

    fn encode(&self, target: &Target, object: &K) -> Result<Vec<u8>, ApiError> {
        serde_json::to_vec(object)
            .map_err(|error| ApiError::caused_by(target.clone(), ApiErrorKind::BadRequest, error))
    }

    async fn call(
        &self,
        target: Target,
        request: Result<http::Request<Vec<u8>>, request::Error>,
    ) -> Result<K, ApiError> {
        let request = self.to_request(&target, request)?;
        let body = self.api.call(target.clone(), request).await?;
        decode_object(&body)
            .map_err(|error| ApiError::caused_by(target, ApiErrorKind::Decode, error))
    }
}

/// Whether a name stays one part of a path. Names come from whoever may write a pod.
fn is_path_segment(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:@+,=".contains(&byte);
    !matches!(name, "" | "." | "..") && name.bytes().all(is_plain)
}

impl Patch {
    fn as_kubes(&self) -> kube::core::params::Patch<&Value> {
        match self {
            Self::Strategic(value) => kube::core::params::Patch::Strategic(value),
            Self::Merge(value) => kube::core::params::Patch::Merge(value),
        }
    }
}

/// Objects per page.
const PAGE: u32 = 500;
/// A page of objects of ordinary size is far beneath the limit of an answer; smaller ones are asked
/// for if not, down to this.
const SMALLEST_PAGE: u32 = 8;

/// A list that is read page by page.
struct Pages<K> {
    limit: Option<u32>,
    continue_token: Option<String>,
    so_far: FullSet<K>,
}

impl<K> Default for Pages<K> {
    fn default() -> Self {
        Self { limit: Some(PAGE), continue_token: None, so_far: FullSet::default() }
    }
}

impl<K> Pages<K> {
    /// The whole set, if this was its last page.
    fn add(&mut self, page: Page<K>) -> Option<FullSet<K>> {
        self.so_far.objects.extend(page.set.objects);
        self.so_far.undecodable.extend(page.set.undecodable);
        self.so_far.resource_version = page.set.resource_version;
        self.continue_token = page.continue_token;
        self.continue_token.is_none().then(|| std::mem::take(&mut self.so_far))
    }

    /// Prepares another way to the list, if there is one that the error does not stand in.
    fn go_on_after(&mut self, error: ApiError) -> Result<(), ApiError> {
        let is_later_page = self.continue_token.is_some();
        let limit = match (error.kind, self.limit) {
            // The server has forgotten the moment of the first page: all of it at once.
            (ApiErrorKind::Expired, Some(_)) if is_later_page => None,
            (ApiErrorKind::TooLong, Some(limit)) if limit > SMALLEST_PAGE => Some(limit / 4),
            _ => return Err(error),
        };
        *self = Self { limit, ..Self::default() };
        Ok(())
    }
}
