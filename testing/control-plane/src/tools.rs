//! The executables.

use std::path::PathBuf;

use rubelet_test_bed::{Cache, Missing};

use crate::component::Component;
use crate::options::Options;

/// The version that `cargo xtask setup cluster` builds.
pub const KUBERNETES_VERSION: &str = "v1.36.3";

/// Where others keep a control plane for tests; the variable is controller-runtime's.
const ASSETS: &str = "KUBEBUILDER_ASSETS";
const REMEDY: &str = "run `cargo xtask setup cluster`";
const REMEDY_ASSETS: &str = "KUBEBUILDER_ASSETS names a directory without them: unset it and run \
                             `cargo xtask setup cluster`, or leave these components out";

/// The executables of a control plane.
#[derive(Debug, Clone)]
pub struct Tools {
    dir: PathBuf,
    remedy: &'static str,
    /// The client that people use.
    pub kubectl: PathBuf,
}

impl Tools {
    /// Finds etcd, kube-apiserver and kubectl: in the directory that `KUBEBUILDER_ASSETS` names if
    /// it is set, else in the cache. The other two are asked for when they are to be started, since
    /// that directory often lacks them.
    ///
    /// # Errors
    /// [`Missing`], with all that is missing at once.
    pub fn find(cache: &Cache) -> Result<Self, Missing> {
        Self::find_in(Self::given_dir(), cache)
    }

    /// The directory that `KUBEBUILDER_ASSETS` names: nothing of ours is looked for then.
    pub fn given_dir() -> Option<PathBuf> {
        std::env::var_os(ASSETS).filter(|dir| !dir.is_empty()).map(PathBuf::from)
    }

    fn find_in(given: Option<PathBuf>, cache: &Cache) -> Result<Self, Missing> {
        let (dir, remedy) = match given {
            Some(dir) => (dir, REMEDY_ASSETS),
            None => (cache.bin(), REMEDY),
        };
        let kubectl = dir.join("kubectl");
        let tools = Self { dir, remedy, kubectl };
        let needed = [
            tools.executable(Component::Etcd),
            tools.executable(Component::ApiServer),
            tools.kubectl.clone(),
        ];
        tools.all_there(needed.into_iter())?;
        Ok(tools)
    }

    /// Where the executable of a component is, or would be.
    pub fn executable(&self, component: Component) -> PathBuf {
        self.dir.join(component.name())
    }

    /// Whether everything is there that a control plane with `options` consists of.
    ///
    /// # Errors
    /// [`Missing`], with all that is missing at once.
    pub fn check(&self, options: &Options) -> Result<(), Missing> {
        self.all_there(options.components().map(|component| self.executable(component)))
    }

    fn all_there(&self, files: impl Iterator<Item = PathBuf>) -> Result<(), Missing> {
        let files: Vec<PathBuf> = files.filter(|file| !file.is_file()).collect();
        if files.is_empty() { Ok(()) } else { Err(Missing { files, remedy: self.remedy }) }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn directory_with(name: &str, files: &[&str]) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("rubelet-tools-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).expect("made");
        files.iter().for_each(|file| fs::write(dir.join(file), "").expect("written"));
        dir
    }

    #[test]
    fn all_that_the_cache_lacks_is_named_with_the_command_that_brings_it() {
        let cache = Cache::at(PathBuf::from("/nowhere/rubelet")).expect("absolute");
        let missing = Tools::find_in(None, &cache).expect_err("nothing is there");
        assert_eq!(missing.files.len(), 3);
        let text = missing.to_string();
        assert!(text.contains("/nowhere/rubelet/bin/kube-apiserver"), "{text}");
        assert!(text.ends_with("run `cargo xtask setup cluster`"), "{text}");
    }

    #[test]
    fn a_directory_of_somebody_else_comes_first_and_its_gaps_are_told_when_they_matter() {
        let assets = directory_with("assets", &["etcd", "kube-apiserver", "kubectl"]);
        let cache = Cache::at(PathBuf::from("/nowhere/rubelet")).expect("absolute");
        let tools = Tools::find_in(Some(assets.clone()), &cache).expect("all three");
        let mut options = Options::new(PathBuf::from("/run"));
        let missing = tools.check(&options).expect_err("two are missing").to_string();
        assert!(missing.contains("kube-scheduler, ") || missing.contains("kube-scheduler;"));
        assert!(missing.contains("kube-controller-manager"), "{missing}");
        assert!(missing.contains("KUBEBUILDER_ASSETS"), "{missing}");
        options.controller_manager = false;
        options.scheduler = false;
        tools.check(&options).expect("nothing else is needed");
        fs::remove_dir_all(assets).expect("removed");
    }
}
