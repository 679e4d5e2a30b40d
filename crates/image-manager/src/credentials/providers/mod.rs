//! Credential provider plugins: programs that give credentials for images, and for some clouds are
//! the only ones who can.

mod cache;
mod exec;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use std::{fs, io};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared, WeakShared, join_all};
use rubelet_config::{CredentialProvider, TokenAttributes, TokenCacheType};
use secrecy::{ExposeSecret, SecretString};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use self::cache::{AccountKey, CacheKey, CacheScope, CredentialCache};
use self::exec::{CacheKeyType, PluginError, PluginProgram, PluginRequest, PluginResponse};
use super::credential::{CredentialOrigin, ObjectCoordinates, PullCredential};
use super::docker_config::DockerConfig;
use super::keyring::Keyring;
use super::location::RegistryLocation;
use super::sources::CredentialObjects;
use crate::metrics::CredentialProviderMetrics;
use crate::service::CredentialLookup;

/// What a provider is told of a service account.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceAccountFacts {
    /// Its uid.
    pub uid: String,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
}

/// The providers cannot be used as they are configured.
#[derive(Debug, thiserror::Error)]
pub enum CredentialProvidersError {
    /// The directory cannot be looked at.
    #[error("error inspecting binary directory {}", .dir.display())]
    Directory {
        /// `--image-credential-provider-bin-dir`.
        dir: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// A provider's program is not there, or cannot be run.
    #[error("plugin binary executable {}: {problem}", .program.display())]
    Program {
        /// Its path.
        program: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A provider's images are no places of registries.
    #[error("providers.matchImages: Invalid value: {pattern:?}: match image is invalid: {problem}")]
    MatchImage {
        /// The pattern.
        pattern: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// All providers of a node.
#[derive(Debug, Default)]
pub struct CredentialProviders {
    providers: Vec<Provider>,
    metrics: Arc<CredentialProviderMetrics>,
}

struct Provider {
    program: PluginProgram,
    match_images: Vec<RegistryLocation>,
    default_cache_duration: Duration,
    token: Option<TokenAttributes>,
    cache: Mutex<CredentialCache>,
    flights: Mutex<HashMap<FlightKey, WeakShared<Asking>>>,
    metrics: Arc<CredentialProviderMetrics>,
}

type Answer = Result<Arc<PluginResponse>, PluginError>;
type Asking = BoxFuture<'static, Answer>;

/// Whoever asks the same at the same time gets one answer.
#[derive(Clone, PartialEq, Eq, Hash)]
struct FlightKey {
    repository: String,
    account: Option<AccountKey>,
    token: Option<[u8; 32]>,
}

impl fmt::Debug for Provider {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Provider").field("program", &self.program).finish_non_exhaustive()
    }
}

/// The pod's service account, as far as a provider gets to know it.
struct Account {
    coordinates: ObjectCoordinates,
    annotations: BTreeMap<String, String>,
    token: SecretString,
}

impl CredentialProviders {
    /// The programs of `dir` that are configured. Blocking.
    ///
    /// # Errors
    /// When one of them is not there; a kubelet does not start then.
    pub fn open(
        configured: Vec<CredentialProvider>,
        dir: &Path,
    ) -> Result<Self, CredentialProvidersError> {
        fs::metadata(dir).map_err(|source| CredentialProvidersError::Directory {
            dir: dir.to_owned(),
            source,
        })?;
        let metrics = Arc::<CredentialProviderMetrics>::default();
        let opened = configured.into_iter().map(|one| Provider::open(one, dir, metrics.clone()));
        Ok(Self { providers: opened.collect::<Result<_, _>>()?, metrics })
    }

    /// What is counted of them.
    pub fn metrics(&self) -> Arc<CredentialProviderMetrics> {
        self.metrics.clone()
    }

    /// The credentials that they have for an image. What one of them cannot do is said in the log,
    /// and holds up none of the others.
    pub(crate) async fn credentials(
        &self,
        lookup: CredentialLookup<'_>,
        objects: Option<&dyn CredentialObjects>,
    ) -> Vec<PullCredential> {
        let asked = self.providers.iter().map(|provider| provider.provide(lookup, objects));
        let mut keyring = Keyring::default();
        for (provider, answer) in self.providers.iter().zip(join_all(asked).await) {
            match answer {
                Ok(Some((origin, config))) => keyring.add(&origin, config),
                Ok(None) => {}
                Err(error) => tracing::error!(provider = provider.program.name(),
                    image = lookup.repository, pod = %lookup.pod, error,
                    "Failed to provide credentials for image"),
            }
        }
        keyring.lookup(lookup.repository)
    }
}

impl Provider {
    fn open(
        configured: CredentialProvider,
        dir: &Path,
        metrics: Arc<CredentialProviderMetrics>,
    ) -> Result<Self, CredentialProvidersError> {
        let path = dir.join(&configured.name);
        let unfit =
            |problem: String| CredentialProvidersError::Program { program: path.clone(), problem };
        let found = fs::metadata(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => unfit("it does not exist".to_owned()),
            _ => unfit(error.to_string()),
        })?;
        if found.is_dir() || found.permissions().mode() & 0o111 == 0 {
            return Err(unfit("it is not executable".to_owned()));
        }
        let parse = |pattern: &String| {
            RegistryLocation::parse(pattern).map_err(|error| CredentialProvidersError::MatchImage {
                pattern: pattern.clone(),
                problem: error.to_string(),
            })
        };
        Ok(Self {
            match_images: configured.match_images.iter().map(parse).collect::<Result<_, _>>()?,
            default_cache_duration: configured.default_cache_duration.as_duration(),
            token: configured.token,
            program: PluginProgram::new(
                configured.name,
                path,
                configured.api_version,
                configured.args,
                configured.env,
            ),
            cache: Mutex::default(),
            flights: Mutex::default(),
            metrics,
        })
    }

    /// Its credentials for the image, and whose they are; none if it is not asked.
    async fn provide(
        &self,
        lookup: CredentialLookup<'_>,
        objects: Option<&dyn CredentialObjects>,
    ) -> Result<Option<(CredentialOrigin, DockerConfig)>, String> {
        let repository = lookup.repository;
        let Ok(target) = RegistryLocation::parse(repository) else { return Ok(None) };
        if !self.match_images.iter().any(|place| place.covers(&target)) {
            return Ok(None);
        }
        let account = match &self.token {
            Some(attributes) => match self.account(attributes, lookup, objects).await? {
                Concern::None => return Ok(None),
                Concern::AnyPod => None,
                Concern::Account(account) => Some(account),
            },
            None => None,
        };
        let origin = account.as_ref().map_or(CredentialOrigin::Node, |account| {
            CredentialOrigin::ServiceAccount(account.coordinates.clone())
        });
        let token_hash =
            account.as_ref().map(|it| Sha256::digest(it.token.expose_secret().as_bytes()).into());
        let hangs_on_token =
            self.token.as_ref().is_some_and(|token| token.cache_type == TokenCacheType::Token);
        let key = |scope: CacheScope| CacheKey {
            scope,
            account: account.as_ref().map(|account| AccountKey {
                coordinates: account.coordinates.clone(),
                annotations: account.annotations.clone(),
                token_hash: token_hash.filter(|_| hangs_on_token),
            }),
        };
        let scopes = [
            CacheScope::Image(repository.to_owned()),
            CacheScope::Registry(registry_of(repository)),
            CacheScope::Global,
        ];
        for scope in &scopes {
            if let Some(kept) = self.cache().get(&key(scope.clone()), Instant::now()) {
                return Ok(Some((origin, kept)));
            }
        }

        let flight = FlightKey {
            repository: repository.to_owned(),
            account: key(CacheScope::Global).account,
            token: token_hash,
        };
        let answer = self.ask(flight, account.as_ref()).await.map_err(|error| {
            format!("failed to get credential from external registry credential provider: {error}")
        })?;
        if let Some(account) = &account
            && !hangs_on_token
            && answer.has_password(&account.token)
        {
            return Err("credential provider plugin returned the service account token as the \
                        password which is not allowed when service account cache type is not set \
                        to 'Token'"
                .to_owned());
        }
        let [image, registry, global] = scopes;
        let scope = match answer.cache_key_type {
            CacheKeyType::Image => image,
            CacheKeyType::Registry => registry,
            CacheKeyType::Global => global,
        };
        let lasts = answer.cache_duration.unwrap_or(self.default_cache_duration);
        let config = answer.docker_config();
        if !lasts.is_zero() {
            self.cache().insert(key(scope), config.clone(), lasts, Instant::now());
        }
        Ok(Some((origin, config)))
    }

    /// What a provider that works with tokens has to do with the pod.
    async fn account(
        &self,
        attributes: &TokenAttributes,
        lookup: CredentialLookup<'_>,
        objects: Option<&dyn CredentialObjects>,
    ) -> Result<Concern, String> {
        let spec = lookup.pod_object.spec.as_ref();
        let name = spec.and_then(|spec| spec.service_account_name.as_deref()).unwrap_or_default();
        if name.is_empty() {
            let required = attributes.require_service_account;
            return Ok(if required { Concern::None } else { Concern::AnyPod });
        }
        let objects =
            objects.ok_or("failed to get service account: there is no API server".to_owned())?;
        let namespace = &*lookup.pod.namespace;
        let facts = objects
            .service_account(namespace, name)
            .await
            .map_err(|error| format!("failed to get service account: {error}"))?;
        let mut annotations = BTreeMap::new();
        for key in &attributes.required_annotation_keys {
            let Some(value) = facts.annotations.get(key) else {
                // With these, workloads say that they want to be pulled so; most do not.
                tracing::debug!(
                    provider = self.program.name(),
                    serviceAccount = name,
                    annotation = key,
                    "Not asked: required annotation not found"
                );
                return Ok(Concern::None);
            };
            annotations.insert(key.clone(), value.clone());
        }
        for key in &attributes.optional_annotation_keys {
            if let Some(value) = facts.annotations.get(key) {
                annotations.insert(key.clone(), value.clone());
            }
        }
        let coordinates = ObjectCoordinates {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            uid: facts.uid,
        };
        let token = objects
            .service_account_token(lookup.pod, &coordinates, &attributes.audience)
            .await
            .map_err(|error| format!("failed to get service account token: {error}"))?;
        Ok(Concern::Account(Account { coordinates, annotations, token }))
    }

    /// Runs the program, or waits for the run that is on its way for the same.
    async fn ask(&self, key: FlightKey, account: Option<&Account>) -> Answer {
        let asking = {
            let mut flights = self.flights.lock().unwrap_or_else(PoisonError::into_inner);
            let lives = |flight: &WeakShared<Asking>| {
                flight.upgrade().filter(|asking: &Shared<Asking>| asking.peek().is_none())
            };
            flights.retain(|_, flight| lives(flight).is_some());
            match flights.get(&key).and_then(lives) {
                Some(asking) => asking,
                None => {
                    let program = self.program.clone();
                    let request = PluginRequest {
                        image: key.repository.clone(),
                        token: account.map(|account| account.token.clone()),
                        annotations: account
                            .map(|account| account.annotations.clone())
                            .unwrap_or_default(),
                    };
                    let metrics = self.metrics.clone();
                    let run = async move {
                        let begun = Instant::now();
                        let answer = program.run(&request).await.map(Arc::new);
                        metrics.ran(program.name(), begun.elapsed(), answer.is_err());
                        answer
                    };
                    let asking = run.boxed().shared();
                    if let Some(flight) = asking.downgrade() {
                        flights.insert(key, flight);
                    }
                    asking
                }
            }
        };
        asking.await
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, CredentialCache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a provider has to do with a pod.
enum Concern {
    /// Nothing.
    None,
    /// As much as with any other: the pod has no service account, and needs none.
    AnyPod,
    /// The pod's service account.
    Account(Account),
}

fn registry_of(repository: &str) -> String {
    repository.split('/').next().unwrap_or_default().to_owned()
}
