//! The two ways a run goes wrong: the user asked for something impossible (exit 2), or the machine refused (exit 1).

/// A mistake in what was asked. Printed as one line; the process exits with status 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// The run was ended by a signal; carries the conventional exit status `128 + signal`.
#[derive(Debug, thiserror::Error)]
#[error("interrupted")]
pub struct Interrupted {
    /// Signal number that asked us to stop.
    pub signal: i32,
}

/// Builds a [`Usage`] error from a message.
pub fn usage(message: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Usage(message.into()))
}

/// Exit status for an error: 2 for usage, `128 + signal` when interrupted, else 1.
pub fn exit_status(error: &anyhow::Error) -> u8 {
    if error.downcast_ref::<Usage>().is_some() {
        2
    } else if let Some(stop) = error.downcast_ref::<Interrupted>() {
        u8::try_from(128 + stop.signal).unwrap_or(1)
    } else {
        1
    }
}

/// The whole chain of causes on one line, without repeating a cause that its context already quotes.
pub fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let text = cause.to_string().replace('\n', " ");
        if line.is_empty() {
            line = text;
        } else if !line.contains(&text) {
            line.push_str(": ");
            line.push_str(&text);
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn usage_keeps_its_status_under_added_context() {
        let error = Err::<(), _>(usage("unknown workload \"x\"")).context("choosing").unwrap_err();
        assert_eq!(exit_status(&error), 2);
        assert_eq!(one_line(&error), "choosing: unknown workload \"x\"");
    }

    #[test]
    fn other_failures_exit_with_one() {
        assert_eq!(exit_status(&anyhow::anyhow!("port down")), 1);
    }

    #[test]
    fn an_interrupt_exits_as_a_shell_expects() {
        assert_eq!(exit_status(&Interrupted { signal: 2 }.into()), 130);
    }
}
