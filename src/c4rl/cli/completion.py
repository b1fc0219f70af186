"""`c4rl completion`: a script that completes commands, flags and the words they may be, for bash, zsh and fish."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args, get_origin

import tyro

from c4rl.cli.parsing import Arguments, Flag, declared_by, parse_as
from c4rl.core.declarations import Options, declaration

Words = dict[str, tuple[str, ...]]  # flag -> the words it may be; none: anything, as a path or a number


@dataclass(frozen=True)
class Flags(Options):
    shell: tyro.conf.Positional[Literal["bash", "zsh", "fish"]]
    """bash, zsh or fish."""


Commands = Mapping[str, Callable[[Arguments], int]]


def completion(arguments: Arguments, commands: Commands) -> int:
    """Print a script that completes c4rl's commands and flags in bash, zsh or fish."""
    flags = parse_as(Flags, "completion", arguments, completion.__doc__)
    print({"bash": bash, "zsh": zsh, "fish": fish}[flags.shell](words_of(commands)))
    return 0


def words_of(commands: Commands) -> dict[str, Words]:
    """Of each command; those of train are all that there are for any algorithm and plug-in."""
    from c4rl.jobs.registry import ALGORITHMS, DEFAULT_ALGORITHM, PLUGINS

    found: dict[str, Words] = {}
    for name, command in commands.items():
        each = [[]] if name != "train" else [["--algorithm", one] for one in ALGORITHMS]
        each += [["--algorithm", DEFAULT_ALGORITHM, "--plugins", one] for one in PLUGINS] if name == "train" else []
        words: Words = {"--help": ()}
        for given in each:
            for flag in declared_by(command, given).flags:
                words |= {flag.name: _choices(flag)} if not flag.positional else {}
                words |= {f"--no-{flag.name[2:]}": ()} if flag.field.type is bool else {}
        found[name] = words
    return found


def _choices(flag: Flag) -> tuple[str, ...]:
    kinds = [flag.field.type, *get_args(flag.field.type)]
    literals = [str(word) for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    return (*declaration(flag.field).choices, *literals)


BASH = """_c4rl() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" first="${{COMP_WORDS[1]}}" flag="" flags="" values="" at=1 i
    case " {groups} " in *" $first "*) at=2 ;; esac
    COMPREPLY=()
    if [ "$COMP_CWORD" -le "$at" ]; then
        [ "$COMP_CWORD" -eq 1 ] && values="{firsts}"
        [ "$COMP_CWORD" -eq 2 ] && case "$first" in
{seconds}
        esac
        COMPREPLY=($(compgen -W "$values" -- "$current"))
        return
    fi
    for ((i = at + 1; i < COMP_CWORD; i++)); do
        case "${{COMP_WORDS[i]}}" in --*) flag="${{COMP_WORDS[i]}}" ;; esac
    done
    case "${{COMP_WORDS[*]:1:$at}}" in
{commands}
    esac
    case "$current" in -*) values="$flags" ;; esac
    [ -n "$values" ] && COMPREPLY=($(compgen -W "$values" -- "$current"))
}}
complete -o default -F _c4rl c4rl"""


def bash(commands: Mapping[str, Words]) -> str:
    """What it leaves open is completed as a path."""
    groups: dict[str, list[str]] = {}
    for name in commands:
        first, _, second = name.partition(" ")
        groups.setdefault(first, []).extend([second] if second else [])
    cases = []
    for name, words in commands.items():
        values = [f'{flag}) values="{" ".join(own)}" ;;' for flag, own in words.items() if own]
        inner = f' case "$flag" in {" ".join(values)} esac' if values else ""
        cases.append(f'        "{name}") flags="{" ".join(words)}";{inner} ;;'.replace("; ;;", " ;;"))
    return BASH.format(
        groups=" ".join(first for first, own in groups.items() if own),
        firsts=" ".join(groups),
        seconds="\n".join(f'            {first}) values="{" ".join(own)}" ;;' for first, own in groups.items() if own),
        commands="\n".join(cases),
    )


def zsh(commands: Mapping[str, Words]) -> str:
    """zsh reads bash's functions."""
    return f"autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n{bash(commands)}"


FISH = """function __c4rl_in # whether these words are the command
    set -l given (commandline -opc)[2..-1]
    set -l count (count $argv)
    test "$given[1..$count]" = "$argv"
end
function __c4rl_after # whether this is the last flag
    set -l flags (string match -- '--*' (commandline -opc))
    test "$flags[-1]" = "$argv"
end"""


def fish(commands: Mapping[str, Words]) -> str:
    """What it leaves open is completed as a path."""
    lines = [FISH]
    for name, words in commands.items():
        first, _, second = name.partition(" ")
        lines.append(f"complete -c c4rl -n 'test (count (commandline -opc)) = 1' -f -a {first}")
        if second:
            only = f"__c4rl_in {first}; and test (count (commandline -opc)) = 2"
            lines.append(f"complete -c c4rl -n '{only}' -f -a {second}")
        for flag, own in words.items():
            choices = f" -x -a '{' '.join(own)}'" if own else ""
            lines.append(f"complete -c c4rl -n '__c4rl_in {name}' -l {flag[2:]}{choices}")
            if own:  # a flag may take several words
                after = f"__c4rl_in {name}; and __c4rl_after {flag}"
                lines.append(f"complete -c c4rl -n '{after}' -f -a '{' '.join(own)}'")
    return "\n".join(dict.fromkeys(lines))
