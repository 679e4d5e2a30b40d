//! The spine: every event of the kubelet through one dispatch.
