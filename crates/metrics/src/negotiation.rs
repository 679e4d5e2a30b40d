use crate::exposition::Format;

/// The format for somebody who sent this `Accept` header, if any.
///
/// Prometheus asks for OpenMetrics first and takes the old format too. It gets the old one, as from
/// a Go kubelet: the other spells bounds of buckets otherwise (`le="1.0"`) and knows no counter
/// whose name does not end in `_total`, so that a node's series would change with its kubelet. Who
/// takes OpenMetrics alone gets it.
pub fn negotiate(accept: Option<&str>) -> Format {
    let mut open_metrics = false;
    for range in accept.unwrap_or_default().split(',') {
        let mut parameters = range.split(';').map(str::trim);
        let media_type = parameters.next().unwrap_or_default();
        let mut version = None;
        let mut refused = false;
        for parameter in parameters {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            match name.trim() {
                "version" => version = Some(value.trim()),
                "q" => refused = value.trim().parse::<f32>() == Ok(0.0),
                _ => {}
            }
        }
        if refused {
            continue;
        }
        match media_type.to_ascii_lowercase().as_str() {
            "text/plain" if matches!(version, None | Some("0.0.4")) => return Format::Prometheus,
            "text/*" => return Format::Prometheus,
            "application/openmetrics-text" => {
                open_metrics |= matches!(version, None | Some("0.0.1" | "1.0.0"));
            }
            _ => {}
        }
    }
    if open_metrics { Format::OpenMetrics } else { Format::Prometheus }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_takes_the_old_format_gets_it() {
        for accept in [
            None,
            Some("*/*"),
            Some("text/plain"),
            Some("text/html, text/*;q=0.8"),
            Some("application/json"),
            // Prometheus 2 and 3.
            Some(
                "application/openmetrics-text;version=1.0.0,application/openmetrics-text;\
                 version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            ),
            Some(
                "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;\
                 encoding=delimited;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,\
                 text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
            ),
        ] {
            assert_eq!(negotiate(accept), Format::Prometheus, "{accept:?}");
        }
        for accept in [
            "application/openmetrics-text",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            "Application/OpenMetrics-Text;version=0.0.1;q=0.5",
            "application/openmetrics-text;version=1.0.0,*/*;q=0.1",
            "application/openmetrics-text;version=1.0.0,text/plain;q=0",
        ] {
            assert_eq!(negotiate(Some(accept)), Format::OpenMetrics, "{accept:?}");
        }
        assert_eq!(negotiate(Some("application/openmetrics-text;q=0")), Format::Prometheus);
    }
}
