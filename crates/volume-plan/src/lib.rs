//! Which volume operation is due for a pod.
