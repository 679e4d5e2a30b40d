//! Mounts and unmounts the volumes of pods.
