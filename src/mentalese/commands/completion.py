"""`mentalese completion`: a script that completes commands, recipes and figures in a shell."""

from __future__ import annotations

from dataclasses import dataclass

from mentalese.commands import COMMANDS
from mentalese.commands.options import one, read
from mentalese.errors import InputError, nearest
from mentalese.registry import families, recipes

_BASH = """\
# mentalese: source this file, e.g. mentalese completion bash > ~/.local/share/bash-completion/completions/mentalese
_mentalese() {{
    local words=""
    if [ "$COMP_CWORD" -eq 1 ]; then
        words="{commands}"
    else
        case "${{COMP_WORDS[1]}}" in
{cases}
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _mentalese mentalese
"""
_ZSH = """\
#compdef mentalese
# mentalese: source this file, or save it as _mentalese in a folder of $fpath
_mentalese() {{
    local -a names
    if (( CURRENT == 2 )); then
        names=({commands})
    else
        case "$words[2]" in
{cases}
        esac
    fi
    compadd -- $names
    _files
}}
compdef _mentalese mentalese
"""


@dataclass(kw_only=True)
class Options:
    """Prints a script for bash, zsh or fish that completes commands, recipes and figures."""


def run(words: list[str]) -> None:
    names, _ = read(Options, words, "completion")
    shell = one(names, "completion", "SHELL")
    scripts = {"bash": _bash, "zsh": _zsh, "fish": _fish}
    if shell not in scripts:
        raise InputError(f"there is no completion for {shell!r}{nearest(shell, scripts)}: use {', '.join(scripts)}")
    print(scripts[shell](), end="")


def _arguments() -> dict[str, list[str]]:
    """What follows a command, by command."""
    from mentalese.analyses.figures import figures

    known = [*recipes()]
    return {"train": known, "compare": known, "show": known, "list": known} | {
        "figure": [*figures()],
        "completion": ["bash", "zsh", "fish"],
        "data": ["prepare"],
        "new": ["family"],
        "check": [*families()],
    }


def _bash() -> str:
    cases = "\n".join(f'            {name}) words="{" ".join(words)}" ;;' for name, words in _arguments().items())
    return _BASH.format(commands=" ".join(COMMANDS), cases=cases)


def _zsh() -> str:
    cases = "\n".join(f"            {name}) names=({' '.join(words)}) ;;" for name, words in _arguments().items())
    return _ZSH.format(commands=" ".join(COMMANDS), cases=cases)


def _fish() -> str:
    lines = ["# mentalese: save this as ~/.config/fish/completions/mentalese.fish"]
    lines += [
        f"complete -c mentalese -f -n __fish_use_subcommand -a {name} -d {about.summary!r}"
        for name, about in COMMANDS.items()
    ]
    lines += [
        f"complete -c mentalese -n '__fish_seen_subcommand_from {name}' -a '{' '.join(words)}'"
        for name, words in _arguments().items()
    ]
    return "\n".join(lines) + "\n"
