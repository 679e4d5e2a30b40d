use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

/// A port of a probe or hook that names no port of the container. The texts are those of the Go
/// kubelet's events.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PortError {
    /// It is neither the name of one of the container's ports nor a number.
    #[error("strconv.Atoi: parsing {text:?}: invalid syntax")]
    NotANumber {
        /// What stands in the spec.
        text: String,
    },
    /// No TCP port has this number.
    #[error("invalid port number: {number}")]
    OutOfRange {
        /// What stands in the spec.
        number: i64,
    },
}

/// The TCP port that `port` means: a number, the name of a port of `container`, or a number in
/// quotes.
pub fn resolve_port(port: &IntOrString, container: &Container) -> Result<u16, PortError> {
    let number = match port {
        IntOrString::Int(number) => i64::from(*number),
        IntOrString::String(text) => {
            let named = container
                .ports
                .iter()
                .flatten()
                .find(|port| port.name.as_deref() == Some(text.as_str()));
            match named {
                Some(port) => i64::from(port.container_port),
                None => text.parse().map_err(|_| PortError::NotANumber { text: text.clone() })?,
            }
        }
    };
    match u16::try_from(number) {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(PortError::OutOfRange { number }),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ContainerPort;

    use super::*;

    #[test]
    fn ports_are_found_by_number_by_name_and_by_number_in_quotes() {
        let container = Container {
            ports: Some(vec![
                ContainerPort { name: None, container_port: 1, ..Default::default() },
                ContainerPort {
                    name: Some("web".to_owned()),
                    container_port: 8080,
                    host_port: Some(80),
                    ..Default::default()
                },
            ]),
            ..Default::default()
        };
        for (port, expected) in [
            (IntOrString::Int(80), Ok(80)),
            (IntOrString::String("web".to_owned()), Ok(8080)),
            (IntOrString::String("443".to_owned()), Ok(443)),
            (
                IntOrString::String("http".to_owned()),
                Err("strconv.Atoi: parsing \"http\": invalid syntax"),
            ),
            (IntOrString::Int(0), Err("invalid port number: 0")),
            (IntOrString::Int(-1), Err("invalid port number: -1")),
            (IntOrString::Int(65536), Err("invalid port number: 65536")),
            (IntOrString::String("70000".to_owned()), Err("invalid port number: 70000")),
        ] {
            let resolved = resolve_port(&port, &container).map_err(|error| error.to_string());
            assert_eq!(resolved, expected.map_err(str::to_owned), "{port:?}");
        }
    }
}
