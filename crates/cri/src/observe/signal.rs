//! Stop signals: the protocol's enum and the API's names (`SIGTERM`, `SIGRTMIN+3`).

use crate::v1;

/// The API's name of a signal; none for the runtime's default and for values from the future.
pub fn signal_name(signal: i32) -> Option<String> {
    let signal = v1::Signal::try_from(signal).ok().filter(|s| *s != v1::Signal::RuntimeDefault)?;
    let name = signal.as_str_name().strip_prefix("SIGNAL_")?;
    Some(name.replace("PLUS", "+").replace("MINUS", "-"))
}

/// The protocol's value for the API's name of a signal.
pub fn signal_from_name(name: &str) -> Option<v1::Signal> {
    let spelled = name.replace('+', "PLUS").replace('-', "MINUS");
    v1::Signal::from_str_name(&format!("SIGNAL_{spelled}"))
        .filter(|signal| *signal != v1::Signal::RuntimeDefault)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_api() {
        for (signal, name) in [
            (v1::Signal::Sigterm, "SIGTERM"),
            (v1::Signal::Sigkill, "SIGKILL"),
            (v1::Signal::Sigrtmin, "SIGRTMIN"),
            (v1::Signal::Sigrtminplus1, "SIGRTMIN+1"),
            (v1::Signal::Sigrtmaxminus14, "SIGRTMAX-14"),
            (v1::Signal::Sigrtmax, "SIGRTMAX"),
        ] {
            assert_eq!(signal_name(signal.into()).as_deref(), Some(name));
            assert_eq!(signal_from_name(name), Some(signal));
        }
    }

    #[test]
    fn there_is_no_name_for_the_default_and_no_signal_for_nonsense() {
        assert_eq!(signal_name(0), None);
        assert_eq!(signal_name(4711), None);
        for name in ["", "TERM", "sigterm", "RUNTIME_DEFAULT", "SIGRTMIN+99"] {
            assert_eq!(signal_from_name(name), None, "{name}");
        }
    }

    #[test]
    fn every_signal_of_the_protocol_comes_back_from_its_name() {
        for value in 1..=65 {
            let name = signal_name(value).unwrap();
            assert_eq!(signal_from_name(&name).map(i32::from), Some(value), "{name}");
        }
    }
}
