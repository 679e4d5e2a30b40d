//! The machine that runs the tests.

use std::sync::Arc;

use rubelet_linux::Host;
use rubelet_node_status::{
    FactsSource, MachineNetwork, NodeInputs, NodeNetwork, NodeResources, NodeSettings,
    go_architecture,
};

use crate::bed::effective;

#[tokio::test]
async fn facts_of_this_machine() {
    let network = Arc::new(MachineNetwork(Host::system()));
    let loopback = "127.0.0.1".parse().unwrap();
    let mut settings = NodeSettings::new(&effective(&[]), "n1", "v1.36.2");
    // A name that is an address is looked up nowhere.
    settings.name = "10.0.0.1".to_owned();
    let mut facts = FactsSource::new(
        Host::system(),
        network.clone(),
        NodeResources::default(),
        NodeInputs::new(),
    );
    let facts = facts.gather(&settings).await;
    assert!(facts.addresses.on_interfaces.contains(&loopback));
    assert_eq!(facts.addresses.default_route, None);
    assert_eq!(facts.machine.boot_id.len(), 36);
    assert!(facts.machine.kernel_version.contains('.'));
    assert!(!facts.machine.os_image.is_empty());
    let found = network.look_up("localhost").await.unwrap();
    assert!(found.iter().all(|address| address.is_loopback()) && !found.is_empty());
    assert!(network.default_routes().is_ok());
    assert!(["amd64", "arm64", "s390x", "ppc64le", "riscv64"].contains(&go_architecture()));
}
