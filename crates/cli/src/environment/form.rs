//! The advice in the syntax of a shell, of containers, of a scheduler.

use super::advice::{Advice, Variable};
use crate::shell::quoted;

/// The reader of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Shell,
    Dockerfile,
    Enroot,
    Apptainer,
    Slurm,
}

impl Form {
    pub(super) fn text(self, advice: &Advice) -> String {
        let mut lines = Vec::new();
        if self == Self::Slurm {
            lines.push("#!/bin/bash".to_owned());
            for (option, because) in &advice.scheduler {
                lines.push(format!("# {because}:"));
                lines.push(format!("#SBATCH {option}"));
            }
        }
        if self == Self::Apptainer {
            lines.push("%environment".to_owned());
        }
        let indent = if self == Self::Apptainer { "    " } else { "" };
        for variable in &advice.variables {
            lines.push(format!("{indent}# {}", variable.because));
            lines.push(format!("{indent}{}", self.line(variable)));
        }
        lines.extend(self.options(advice));
        lines.join("\n")
    }

    fn line(self, variable: &Variable) -> String {
        let Variable { name, value, prepends, .. } = variable;
        match (self, prepends) {
            // No colon at the end, which would stand for the working directory.
            (Self::Shell | Self::Slurm | Self::Apptainer, true) => {
                format!("export {name}={}${{{name}:+:${name}}}", quoted(value))
            }
            (Self::Shell | Self::Slurm | Self::Apptainer, false) => {
                format!("export {name}={}", quoted(value))
            }
            (Self::Dockerfile, true) => {
                format!("ENV {name}=\"{}${{{name}:+:${name}}}\"", escaped(value))
            }
            (Self::Dockerfile, false) => format!("ENV {name}=\"{}\"", escaped(value)),
            // enroot and similar tools keep quotes as a part of the value.
            (Self::Enroot, true) => format!("{name}={value}:${{{name}}}"),
            (Self::Enroot, false) => format!("{name}={value}"),
        }
    }

    /// The options for the start of a container, besides variables.
    fn options(self, advice: &Advice) -> Vec<String> {
        let command = match self {
            Self::Dockerfile => "docker run",
            Self::Shell | Self::Slurm | Self::Enroot | Self::Apptainer => return Vec::new(),
        };
        let mut lines = vec!["#".to_owned(), format!("# and start it as: {command} \\")];
        lines.extend(
            advice.container.iter().map(|(option, because)| format!("#   {option:<28} {because}")),
        );
        lines
    }
}

/// A value between the quotes of a Dockerfile's ENV, which replaces variables there.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('$', "\\$")
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn advice(folder: &str) -> Advice {
        let variable = |name, value: &str, prepends| Variable {
            name,
            value: value.to_owned(),
            prepends,
            because: "it's so".to_owned(),
        };
        Advice {
            variables: vec![
                variable("NCCL_NET", "Ironrail", false),
                variable("LD_LIBRARY_PATH", folder, true),
            ],
            container: vec![("--network host".to_owned(), "why")],
            scheduler: vec![("--network=x".to_owned(), "why")],
        }
    }

    #[test]
    fn a_shell_gets_values_of_any_content_unchanged() {
        for (folder, before, after) in [
            ("/opt/a b/it's $HOME", None, "/opt/a b/it's $HOME"),
            ("/opt/x", Some("/usr/lib"), "/opt/x:/usr/lib"),
            ("/opt/x", Some(""), "/opt/x"),
        ] {
            let script = format!(
                "{}\nprintf '%s|%s' \"$NCCL_NET\" \"$LD_LIBRARY_PATH\"",
                Form::Shell.text(&advice(folder))
            );
            let mut shell = Command::new("/bin/sh");
            shell.args(["-euc", &script]).env_remove("LD_LIBRARY_PATH");
            shell.envs(before.map(|path| ("LD_LIBRARY_PATH", path)));
            let output = shell.output().unwrap();
            assert_eq!(String::from_utf8_lossy(&output.stdout), format!("Ironrail|{after}"));
        }
    }

    #[test]
    fn a_dockerfile_gets_the_values_as_they_are() {
        let text = Form::Dockerfile.text(&advice("/opt/a \"b\"\\$HOME"));
        let line = text.lines().find(|line| line.contains("LD_LIBRARY_PATH"));
        let (value, before) = (r#"/opt/a \"b\"\\\$HOME"#, "${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}");
        assert_eq!(line, Some(format!("ENV LD_LIBRARY_PATH=\"{value}{before}\"").as_str()));
    }

    #[test]
    fn each_form_has_the_syntax_of_its_reader() {
        let advice = advice("/opt/x");
        let has = |form: Form, line: &str| {
            let text = form.text(&advice);
            assert!(text.lines().any(|one| one == line), "{line} in {text}");
        };
        has(Form::Dockerfile, "ENV NCCL_NET=\"Ironrail\"");
        has(
            Form::Dockerfile,
            "ENV LD_LIBRARY_PATH=\"/opt/x${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\"",
        );
        has(Form::Enroot, "NCCL_NET=Ironrail");
        has(Form::Apptainer, "%environment");
        has(Form::Apptainer, "    export NCCL_NET=Ironrail");
        has(Form::Slurm, "#SBATCH --network=x");
        assert!(Form::Slurm.text(&advice).starts_with("#!/bin/bash\n"));
        for form in [Form::Shell, Form::Dockerfile, Form::Enroot, Form::Apptainer, Form::Slurm] {
            assert!(form.text(&advice).contains("# it's so"), "{form:?} gives reasons");
        }
    }
}
