use rubelet_cri::v1;

/// A range of ids of the node that a pod sees as its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdMapping {
    /// First id on the node.
    pub host_id: u32,
    /// First id in the pod.
    pub container_id: u32,
    /// How many there are.
    pub length: u32,
}

/// The user namespace of a pod with `hostUsers: false`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserNamespace {
    /// User ids.
    pub uids: Vec<IdMapping>,
    /// Group ids.
    pub gids: Vec<IdMapping>,
}

impl UserNamespace {
    pub(crate) fn cri_mappings(&self) -> (Vec<v1::IdMapping>, Vec<v1::IdMapping>) {
        let mapping = |mapping: &IdMapping| v1::IdMapping {
            host_id: mapping.host_id,
            container_id: mapping.container_id,
            length: mapping.length,
        };
        (self.uids.iter().map(mapping).collect(), self.gids.iter().map(mapping).collect())
    }
}
