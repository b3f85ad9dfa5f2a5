"""Shell completion of groups, of their commands, and of a command's options."""

from collections.abc import Mapping, Sequence
from typing import Final

from pybroker.commands.admin.command import Command
from pybroker.commands.admin.grammar import option_names

SHELLS: Final = ("bash", "zsh")
_BASH: Final = """\
_pybroker_admin() {
    local words=("${COMP_WORDS[@]:2}") current="${COMP_WORDS[COMP_CWORD]}" found=""
    [ "${COMP_WORDS[1]}" = admin ] || return
    case "$((COMP_CWORD - 2)) ${words[0]} ${words[1]}" in
        0*) found="%s" ;;
%s
    esac
    COMPREPLY=($(compgen -W "$found" -- "$current"))
}
complete -F _pybroker_admin pybroker"""


def script(shell: str, groups: Mapping[str, Sequence[Command]]) -> str:
    """The script for `eval "$(pybroker admin --completion bash)"`."""
    cases = []
    for group, commands in groups.items():
        for command in commands:
            options = " ".join(option_names(command.arguments))
            cases.append(f'        *" {group} {command.name}") found="{options}" ;;')
        names = " ".join(sorted(command.name for command in commands))
        cases.insert(0, f'        "1 {group} "*) found="{names}" ;;')
    text = _BASH % (" ".join(groups), "\n".join(cases))
    return f"autoload -U +X bashcompinit && bashcompinit\n{text}" if shell == "zsh" else text
