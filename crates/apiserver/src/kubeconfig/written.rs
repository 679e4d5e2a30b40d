use std::path::Path;

use serde_json::Value;

use super::{CertificateAuthority, KubeConfig, Trust};

impl KubeConfig {
    /// The text of a kubeconfig for the same server that authenticates with the certificate and key
    /// in the file `pem`: what bootstrapping leaves behind, with upstream's names for its parts.
    pub fn text_with_client_certificate(&self, pem: &Path) -> String {
        let quoted = |text: &str| Value::from(text).to_string();
        let mut cluster = format!("    server: {}\n", quoted(&self.server()));
        match &self.inner.certificate_authority {
            CertificateAuthority::None => {}
            CertificateAuthority::File(file) => {
                let file = quoted(&file.to_string_lossy());
                cluster.push_str(&format!("    certificate-authority: {file}\n"));
            }
            CertificateAuthority::Data(data) => {
                cluster.push_str(&format!("    certificate-authority-data: {data}\n"));
            }
        }
        if matches!(self.inner.trust, Trust::Anybody) {
            cluster.push_str("    insecure-skip-tls-verify: true\n");
        }
        if let Some(name) = &self.inner.server_name {
            cluster.push_str(&format!("    tls-server-name: {}\n", quoted(name)));
        }
        if let Some(proxy) = &self.inner.proxy {
            cluster.push_str(&format!("    proxy-url: {}\n", quoted(&proxy.to_string())));
        }
        let pem = quoted(&pem.to_string_lossy());
        format!(
            "apiVersion: v1\n\
             kind: Config\n\
             clusters:\n\
             - name: default-cluster\n  cluster:\n{cluster}\
             contexts:\n\
             - name: default-context\n  context:\n    cluster: default-cluster\n    \
             namespace: default\n    user: default-auth\n\
             current-context: default-context\n\
             users:\n\
             - name: default-auth\n  user:\n    client-certificate: {pem}\n    client-key: {pem}\n"
        )
    }
}
