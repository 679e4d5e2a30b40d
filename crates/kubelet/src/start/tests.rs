use rubelet_config::Invocation;
use rubelet_cri::CriOptions;
use rubelet_fake_cri::{FakeOptions, FakeRuntime};

use super::*;

fn effective(flags: &[&str]) -> Effective {
    match rubelet_config::load(flags.iter().map(|flag| flag.into())).unwrap() {
        Invocation::Run(effective) => *effective,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn the_runtime_says_who_makes_cgroups_and_the_configuration_where_it_does_not() {
    use v1::CgroupDriver::{Cgroupfs, Systemd};
    let configured = [
        (effective(&["--cgroup-driver=systemd"]), CgroupDriver::Systemd),
        (effective(&["--cgroup-driver=cgroupfs"]), CgroupDriver::Cgroupfs),
    ];
    for (effective, by_configuration) in configured {
        for (told, expected) in [
            (Some(Systemd), CgroupDriver::Systemd),
            (Some(Cgroupfs), CgroupDriver::Cgroupfs),
            (None, by_configuration),
        ] {
            let runtime =
                FakeRuntime::new(FakeOptions { cgroup_driver: told, ..FakeOptions::default() });
            let cri = runtime.client(CriOptions::default());
            assert_eq!(cgroup_driver(&cri, &effective).await, expected, "{told:?}");
        }
    }
}

#[tokio::test]
async fn alone_the_runtime_is_told_the_configured_network() {
    let runtime = FakeRuntime::new(FakeOptions::default());
    let cri = runtime.client(CriOptions::default());
    let config = effective(&["--pod-cidr=10.9.0.0/24"]).config;
    tell_pod_cidr(&cri, &config.pod_cidr).await.unwrap();
    assert_eq!(runtime.pod_cidr(), "10.9.0.0/24");
    tell_pod_cidr(&cri, "").await.unwrap();
    assert_eq!(runtime.pod_cidr(), "10.9.0.0/24", "nothing is no network");
}
