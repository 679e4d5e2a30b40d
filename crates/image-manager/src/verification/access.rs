use super::record::{ImagePullCredentials, ImagePullSecret};
use crate::credentials::{CredentialOrigin, PullCredential};

/// Beyond so many Secrets for one image, what is learnt of others is not recorded.
const MAX_LEARNT: usize = 100;

/// Whether a pod may use an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// It has none of the credentials that are known to be good.
    Denied,
    /// It has one of them.
    Accepted,
    /// It has one of them in another form, which is worth remembering.
    AcceptedAndLearnt(ImagePullCredentials),
}

/// Whether a pod with these credentials may use an image that was pulled with the `known` ones: it
/// needs the same password, or the same Secret, whose password may have changed since, or the same
/// service account.
pub(super) fn decide_access(
    known: &ImagePullCredentials,
    credentials: &[PullCredential],
) -> Access {
    let secrets = credentials.iter().filter_map(|credential| match credential.origin() {
        CredentialOrigin::Secret(secret) => Some(ImagePullSecret::new(secret, credential.hash())),
        CredentialOrigin::Node | CredentialOrigin::ServiceAccount(_) => None,
    });
    for secret in secrets {
        for good in &known.kubernetes_secrets {
            let same_password =
                !good.credential_hash.is_empty() && good.credential_hash == secret.credential_hash;
            let same_secret = good.coordinates() == secret.coordinates();
            if !same_password && !same_secret {
                continue;
            }
            if (same_password && same_secret) || known.kubernetes_secrets.len() >= MAX_LEARNT {
                return Access::Accepted;
            }
            return Access::AcceptedAndLearnt(ImagePullCredentials {
                kubernetes_secrets: vec![secret],
                ..ImagePullCredentials::default()
            });
        }
    }
    let mut accounts = credentials.iter().filter_map(|credential| match credential.origin() {
        CredentialOrigin::ServiceAccount(account) => Some(account),
        CredentialOrigin::Node | CredentialOrigin::Secret(_) => None,
    });
    let is_good = accounts
        .any(|account| known.kubernetes_service_accounts.iter().any(|good| good.is(account)));
    if is_good { Access::Accepted } else { Access::Denied }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credentials::ObjectCoordinates;

    fn object(uid: &str) -> ObjectCoordinates {
        ObjectCoordinates { namespace: "ns".into(), name: "name".into(), uid: uid.into() }
    }

    fn credential(origin: CredentialOrigin, password: &str) -> PullCredential {
        PullCredential::new("u", password.into(), origin)
    }

    fn secret(uid: &str, password: &str) -> PullCredential {
        credential(CredentialOrigin::Secret(object(uid)), password)
    }

    fn account(uid: &str) -> PullCredential {
        credential(CredentialOrigin::ServiceAccount(object(uid)), "p")
    }

    fn pulled_with(credentials: &[&PullCredential]) -> ImagePullCredentials {
        let mut all = ImagePullCredentials::default();
        for credential in credentials {
            let one = ImagePullCredentials::of_pull(Some(credential));
            all.kubernetes_secrets.extend(one.kubernetes_secrets);
            all.kubernetes_service_accounts.extend(one.kubernetes_service_accounts);
        }
        all
    }

    #[test]
    fn whoever_has_what_it_was_pulled_with_may_use_it() {
        let node = || credential(CredentialOrigin::Node, "p");
        let learnt = |one: &PullCredential| {
            Access::AcceptedAndLearnt(ImagePullCredentials::of_pull(Some(one)))
        };
        let (a, b) = (secret("a", "p"), secret("b", "q"));
        let mut without_hash = pulled_with(&[&a]);
        without_hash.kubernetes_secrets[0].credential_hash.clear();
        let crowd: Vec<_> = (0..100).map(|n| secret(&n.to_string(), &n.to_string())).collect();
        for (case, known, shown, expected) in [
            ("the same", pulled_with(&[&a]), vec![a.clone()], Access::Accepted),
            ("one of two", pulled_with(&[&a, &b]), vec![b.clone()], Access::Accepted),
            ("nothing", pulled_with(&[&a]), vec![], Access::Denied),
            ("another", pulled_with(&[&a]), vec![b.clone()], Access::Denied),
            ("the second fits", pulled_with(&[&a]), vec![b.clone(), a.clone()], Access::Accepted),
            (
                "a new password of the same Secret",
                pulled_with(&[&a]),
                vec![secret("a", "new")],
                learnt(&secret("a", "new")),
            ),
            (
                "the same password in another Secret",
                pulled_with(&[&a]),
                vec![secret("c", "p")],
                learnt(&secret("c", "p")),
            ),
            (
                "no more is learnt",
                pulled_with(&crowd.iter().collect::<Vec<_>>()),
                vec![secret("c", "7")],
                Access::Accepted,
            ),
            ("no hash is no password", without_hash, vec![secret("c", "p")], Access::Denied),
            ("the node's are not the pod's", pulled_with(&[&a]), vec![node()], Access::Denied),
            ("an account", pulled_with(&[&account("s")]), vec![account("s")], Access::Accepted),
            ("another account", pulled_with(&[&account("s")]), vec![account("t")], Access::Denied),
            ("no account", pulled_with(&[&account("s")]), vec![secret("s", "p")], Access::Denied),
        ] {
            assert_eq!(decide_access(&known, &shown), expected, "{case}");
        }
    }
}
