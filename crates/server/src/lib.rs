//! The HTTP servers of the kubelet: 10250, read-only and healthz.
