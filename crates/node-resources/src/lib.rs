//! Who gets which CPU and memory: cgroup names and values, OOM scores, admission arithmetic.
