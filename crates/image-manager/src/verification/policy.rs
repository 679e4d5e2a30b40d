use crate::reference::name_without_tag;

/// For which present images a pod has to show that it could pull them
/// (`imagePullCredentialsVerificationPolicy`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerificationPolicy {
    /// For none.
    NeverVerify,
    /// For all that the kubelet pulled.
    NeverVerifyPreloadedImages,
    /// For all but those of a list (`preloadedImagesVerificationAllowlist`): names without tag or
    /// digest, or beginnings of names that end with `/*`.
    NeverVerifyAllowlistedImages(Vec<String>),
    /// For all.
    AlwaysVerify,
}

impl VerificationPolicy {
    /// `image` is as the pod's spec writes it; `was_pulled` by the kubelet, as far as is known.
    pub(crate) fn requires_verification(&self, image: &str, was_pulled: bool) -> bool {
        match self {
            Self::NeverVerify => false,
            Self::NeverVerifyPreloadedImages => was_pulled,
            Self::NeverVerifyAllowlistedImages(list) => {
                let name = name_without_tag(image).unwrap_or(image);
                !list.iter().any(|pattern| match pattern.strip_suffix('*') {
                    Some(beginning) => name.starts_with(beginning),
                    None => name == pattern,
                })
            }
            Self::AlwaysVerify => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_say_which_images_are_verified() {
        let listed = |patterns: &[&str]| {
            let patterns = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
            VerificationPolicy::NeverVerifyAllowlistedImages(patterns)
        };
        for (policy, image, was_pulled, expected) in [
            (VerificationPolicy::NeverVerify, "a", true, false),
            (VerificationPolicy::NeverVerifyPreloadedImages, "a", true, true),
            (VerificationPolicy::NeverVerifyPreloadedImages, "a", false, false),
            (VerificationPolicy::AlwaysVerify, "a", false, true),
            (listed(&[]), "a", false, true),
            (listed(&["r.io/a"]), "r.io/a:1", true, false),
            (listed(&["r.io/a"]), "r.io/a", true, false),
            (listed(&["r.io/a"]), "r.io/ab", false, true),
            (listed(&["r.io/a"]), "r.io/a/b", false, true),
            (listed(&["q.io/x", "r.io/*"]), "r.io/a/b:1", true, false),
            (listed(&["r.io/a/*"]), "r.io/a:1", true, true),
            (listed(&["r.io:5000/*"]), "r.io:5000/a:1", true, false),
            (listed(&["busybox"]), "docker.io/library/busybox", true, true),
        ] {
            let required = policy.requires_verification(image, was_pulled);
            assert_eq!(required, expected, "{policy:?} {image} {was_pulled}");
        }
    }
}
