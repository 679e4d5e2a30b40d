//! The cgroup tree of pods and the node's own resources.
