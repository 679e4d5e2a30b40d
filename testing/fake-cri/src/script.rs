//! What a simulated process does, and how that is read from a container's command line.

use std::time::Duration;

/// Exit code of a process that SIGTERM killed.
pub(crate) const KILLED_BY_TERM: i32 = 128 + 15;
/// Exit code of a process that SIGKILL killed.
pub(crate) const KILLED: i32 = 128 + 9;

/// One step of a process.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Does nothing for a while.
    Sleep(Duration),
    /// Writes a line to stdout.
    Print(String),
    /// Writes a line to stderr.
    PrintError(String),
    /// Ends with an exit code.
    Exit(i32),
    /// Ends as if the kernel had killed it for memory.
    OutOfMemory,
    /// Never ends by itself.
    RunForever,
}

/// What a process does when it gets the stop signal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OnStopSignal {
    /// Nothing, like a process with id 1 that has no handler.
    Ignore,
    /// Ends with this exit code, after a while.
    Exit {
        /// How long its clean-up takes.
        after: Duration,
        /// The exit code.
        code: i32,
    },
}

/// What an exec in a container answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ExecAnswer {
    /// What the command writes to stdout.
    pub stdout: String,
    /// What the command writes to stderr.
    pub stderr: String,
    /// Its exit code.
    pub exit_code: i32,
    /// How long it takes.
    pub after: Duration,
}

/// A process: steps one after the other, then exit code 0.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    pub(crate) steps: Vec<Step>,
    pub(crate) on_stop_signal: OnStopSignal,
    pub(crate) survives_kill: bool,
    pub(crate) start_error: Option<String>,
    pub(crate) termination_message: Option<String>,
    pub(crate) exec: Vec<(Vec<String>, ExecAnswer)>,
    pub(crate) cpu_milli: u64,
    pub(crate) memory_bytes: u64,
}

impl Script {
    /// A process that takes `steps` and has no handler for the stop signal, and so, being process
    /// 1, ignores it.
    pub fn of(steps: impl Into<Vec<Step>>) -> Self {
        Self {
            steps: steps.into(),
            on_stop_signal: OnStopSignal::Ignore,
            survives_kill: false,
            start_error: None,
            termination_message: None,
            exec: Vec::new(),
            cpu_milli: 10,
            memory_bytes: 4 << 20,
        }
    }

    /// A server: runs until it is stopped, and then ends at once as one killed by SIGTERM.
    pub fn run_forever() -> Self {
        Self::of([Step::RunForever])
            .on_stop_signal(OnStopSignal::Exit { after: Duration::ZERO, code: KILLED_BY_TERM })
    }

    /// A job: ends with `code` after `after`.
    pub fn exit(after: Duration, code: i32) -> Self {
        Self::of([Step::Sleep(after), Step::Exit(code)])
    }

    /// What it does when it gets the stop signal.
    pub fn on_stop_signal(mut self, reaction: OnStopSignal) -> Self {
        self.on_stop_signal = reaction;
        self
    }

    /// Not even SIGKILL ends it, like a process stuck in the kernel.
    pub fn survives_kill(mut self) -> Self {
        self.survives_kill = true;
        self
    }

    /// Starting it fails with this text.
    pub fn fails_to_start(mut self, message: impl Into<String>) -> Self {
        self.start_error = Some(message.into());
        self
    }

    /// What it writes to its termination message file when it ends.
    pub fn termination_message(mut self, message: impl Into<String>) -> Self {
        self.termination_message = Some(message.into());
        self
    }

    /// What an exec of `command` answers. Later ones win over earlier ones and over the commands
    /// that every container understands (`true`, `false`, `echo`, `sleep`, `sh -c`).
    pub fn exec(mut self, command: &[&str], answer: ExecAnswer) -> Self {
        let command = command.iter().map(|word| (*word).to_owned()).collect();
        self.exec.push((command, answer));
        self
    }

    /// What it uses while it runs, for statistics.
    pub fn uses(mut self, cpu_milli: u64, memory_bytes: u64) -> Self {
        (self.cpu_milli, self.memory_bytes) = (cpu_milli, memory_bytes);
        self
    }

    /// Reads what `command` does: `sleep`, `true`, `false`, `echo`, and `sh -c` with a list of
    /// these, `exit N`, `trap 'COMMANDS' TERM` and endless loops. Any other command is a server.
    pub fn from_command(command: &[String]) -> Self {
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        match *words {
            [shell, "-c", text, ..] if program(shell) == "sh" => Self::from_shell(text),
            [first, ..] => match simple_command(&words) {
                Some(steps) => Self::of(steps),
                None if program(first) == "sh" => Self::of([]),
                None => Self::run_forever(),
            },
            [] => Self::run_forever(),
        }
    }

    fn from_shell(text: &str) -> Self {
        let mut script = Self::of([]);
        let mut statements = statements(text).into_iter();
        while let Some(statement) = statements.next() {
            let words = words(&statement);
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            match *words {
                ["while" | "until", ..] => {
                    // The loops of test containers wait for a signal: what they wait with, up to
                    // `done`, does not matter.
                    let _ = statements.by_ref().find(|statement| statement.ends_with("done"));
                    script.steps.push(Step::RunForever);
                }
                ["trap", handler, ..] => script.on_stop_signal = trap(handler),
                _ => script.steps.extend(simple_command(&words).unwrap_or_default()),
            }
        }
        script
    }

    /// What running `command` in a container with this script answers, and none for a command the
    /// container does not have.
    pub(crate) fn answer_exec(&self, command: &[String]) -> Option<ExecAnswer> {
        let scripted = self.exec.iter().rev().find(|(words, _)| words == command);
        if let Some((_, answer)) = scripted {
            return Some(answer.clone());
        }
        let words: Vec<&str> = command.iter().map(String::as_str).collect();
        let steps = match *words {
            [shell, "-c", text, ..] if program(shell) == "sh" => Self::from_shell(text).steps,
            _ => simple_command(&words)?,
        };
        let mut answer = ExecAnswer::default();
        for step in steps {
            match step {
                Step::Sleep(duration) => answer.after += duration,
                Step::Print(line) => answer.stdout += &format!("{line}\n"),
                Step::PrintError(line) => answer.stderr += &format!("{line}\n"),
                Step::Exit(code) => {
                    answer.exit_code = code;
                    break;
                }
                Step::OutOfMemory => {
                    answer.exit_code = KILLED;
                    break;
                }
                Step::RunForever => {
                    answer.after = Duration::MAX;
                    break;
                }
            }
        }
        Some(answer)
    }
}

fn program(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A command without control flow; none if it is not one of the few that are known.
fn simple_command(words: &[&str]) -> Option<Vec<Step>> {
    let (first, arguments) = words.split_first()?;
    Some(match (program(first), arguments) {
        ("true" | ":", _) => Vec::new(),
        ("false", _) => vec![Step::Exit(1)],
        ("exit", []) => vec![Step::Exit(0)],
        ("exit", [code, ..]) => vec![Step::Exit(code.parse().unwrap_or(2))],
        ("sleep", [text, ..]) => {
            let seconds = text.parse().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
            // `infinity`, and whatever else is no duration, never passes.
            vec![seconds.map_or(Step::RunForever, Step::Sleep)]
        }
        ("echo", [text @ .., redirection]) if *redirection == ">&2" => {
            vec![Step::PrintError(text.join(" "))]
        }
        ("echo", text) => vec![Step::Print(text.join(" "))],
        _ => return None,
    })
}

/// What `trap` sets for a handler of the few commands that are known.
fn trap(handler: &str) -> OnStopSignal {
    let mut after = Duration::ZERO;
    for step in Script::from_shell(handler).steps {
        match step {
            Step::Sleep(duration) => after += duration,
            Step::Exit(code) => return OnStopSignal::Exit { after, code },
            _ => {}
        }
    }
    OnStopSignal::Ignore
}

/// Splits at `;` and line ends outside of quotes.
fn statements(text: &str) -> Vec<String> {
    let mut statements = vec![String::new()];
    let mut quote = None;
    for character in text.chars() {
        match (character, quote) {
            (';' | '\n', None) => statements.push(String::new()),
            (mark @ ('\'' | '"'), None) => quote = Some(mark),
            (mark, Some(open)) if mark == open => quote = None,
            _ => {}
        }
        let separates = matches!(character, ';' | '\n') && quote.is_none();
        if let Some(statement) = statements.last_mut().filter(|_| !separates) {
            statement.push(character);
        }
    }
    statements.into_iter().map(|statement| statement.trim().to_owned()).collect()
}

/// Splits at blanks outside of quotes and takes the quotes away.
fn words(statement: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for character in statement.chars() {
        match (character, quote) {
            (' ' | '\t', None) => words.extend(word.take()),
            (mark @ ('\'' | '"'), None) => {
                quote = Some(mark);
                word.get_or_insert_default();
            }
            (mark, Some(open)) if mark == open => quote = None,
            _ => word.get_or_insert_default().push(character),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn commands_are_read_as_what_they_do() {
        let seconds = Duration::from_secs;
        for (words, expected) in [
            (vec!["sleep", "3"], Script::of([Step::Sleep(seconds(3))])),
            (vec!["/bin/sleep", "infinity"], Script::of([Step::RunForever])),
            (vec!["true"], Script::of([])),
            (vec!["false"], Script::of([Step::Exit(1)])),
            (
                vec!["sh", "-c", "echo 'a; b' c; sleep 0.5; exit 3"],
                Script::of([
                    Step::Print("a; b c".to_owned()),
                    Step::Sleep(Duration::from_millis(500)),
                    Step::Exit(3),
                ]),
            ),
            (
                vec!["/bin/sh", "-c", "trap 'sleep 1; exit 5' TERM; while true; do sleep 1; done"],
                Script::of([Step::RunForever])
                    .on_stop_signal(OnStopSignal::Exit { after: seconds(1), code: 5 }),
            ),
            (vec!["sh", "-c", "echo oops >&2"], Script::of([Step::PrintError("oops".to_owned())])),
            (vec!["nginx", "-g", "daemon off;"], Script::run_forever()),
            (vec![], Script::run_forever()),
        ] {
            assert_eq!(Script::from_command(&command(&words)), expected, "{words:?}");
        }
    }

    #[test]
    fn an_exec_answers_by_script_first() {
        let script = Script::run_forever().exec(
            &["cat", "/ready"],
            ExecAnswer { stdout: "yes".to_owned(), ..Default::default() },
        );
        let answer = script.answer_exec(&command(&["cat", "/ready"])).unwrap();
        assert_eq!(answer.stdout, "yes");
        let answer = script.answer_exec(&command(&["sh", "-c", "echo a; echo b >&2; exit 2"]));
        let answer = answer.unwrap();
        assert_eq!((answer.stdout.as_str(), answer.stderr.as_str()), ("a\n", "b\n"));
        assert_eq!(answer.exit_code, 2);
        assert_eq!(script.answer_exec(&command(&["cat", "/other"])), None);
    }
}
