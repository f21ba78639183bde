"""`ortlens completion`: a script that lets a shell complete commands, options and their values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ortlens.cli.commands import OneOf, command_in
from ortlens.cli.printing import print_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from ortlens.cli.commands import Commands

_TEXT = "Print a script that completes commands and options of ortlens in your shell."
_EXAMPLES = """
    ortlens completion bash > ~/.local/share/bash-completion/completions/ortlens
    source <(ortlens completion zsh)  # in ~/.zshrc, after compinit
    ortlens completion fish > ~/.config/fish/completions/ortlens.fish
"""
_SHELLS = ("bash", "zsh", "fish")
_BASH = """\
_ortlens() {{
  local choices= cur=${{COMP_WORDS[COMP_CWORD]}}
  case "$COMP_CWORD:${{COMP_WORDS[1]}}:${{COMP_WORDS[COMP_CWORD-1]}}:$cur" in
    1:*) choices="{commands}" ;;
{cases}
  esac
  COMPREPLY=($(compgen -W "$choices" -- "$cur"))
}}
complete -o default -F _ortlens ortlens"""
_ZSH = "autoload -U +X bashcompinit && bashcompinit\n"


def add(commands: Commands) -> None:
    """Add the command to the parser, as the last."""
    command = command_in(commands, "completion", _TEXT, lambda options: _completion(options, commands), examples=_EXAMPLES)
    command.add_argument("shell", metavar="SHELL", type=OneOf(_SHELLS), help=", ".join(_SHELLS))


def _completion(options: argparse.Namespace, commands: Commands) -> None:
    parsers: dict[str, argparse.ArgumentParser] = dict(commands.choices)
    texts = {action.dest: action.help or "" for action in commands._choices_actions}  # noqa: SLF001 - the help of commands has no public name
    if options.shell == "fish":
        print_text("\n".join(_fish(parsers, texts)))
        return
    script = _BASH.format(commands=" ".join(parsers), cases="\n".join(_cases(parsers)))
    print_text(_ZSH + script if options.shell == "zsh" else script)


def _cases(parsers: dict[str, argparse.ArgumentParser]) -> Iterator[str]:
    for name, parser in parsers.items():
        for action in _options(parser):
            if values := _values(action):
                yield f'    *:{name}:{action.option_strings[-1]}:*) choices="{values}" ;;'
        yield f'    *:{name}:*:-*) choices="{" ".join(text for action in _options(parser) for text in action.option_strings)}" ;;'
        for values in filter(None, map(_values, parser._get_positional_actions())):  # noqa: SLF001 - as below
            yield f'    *:{name}:*) choices="{values}" ;;'


def _fish(parsers: dict[str, argparse.ArgumentParser], texts: dict[str, str]) -> Iterator[str]:
    for name, parser in parsers.items():
        yield f"complete -c ortlens -n __fish_use_subcommand -f -a {name} -d {_quoted(texts[name])}"
        for values in filter(None, map(_values, parser._get_positional_actions())):  # noqa: SLF001 - as below
            yield f"complete -c ortlens -n '__fish_seen_subcommand_from {name}' -f -a {_quoted(values)}"
        for action in _options(parser):
            spelled = " ".join(f"-l {text[2:]}" if text.startswith("--") else f"-s {text[1:]}" for text in action.option_strings)
            values = f" -x -a {_quoted(_values(action))}" if _values(action) else " -r" if action.nargs != 0 else ""
            yield f"complete -c ortlens -n '__fish_seen_subcommand_from {name}' {spelled}{values} -d {_quoted(action.help or '')}"


def _options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    return [action for action in parser._actions if action.option_strings]  # noqa: SLF001 - argparse offers no other way


def _values(action: argparse.Action) -> str:
    return " ".join(action.type.names if isinstance(action.type, OneOf) else map(str, action.choices or ()))


def _quoted(text: str) -> str:
    plain = text.replace(" (default: %(default)s)", "").replace("%%", "%").replace("\\", "\\\\").replace("'", "\\'")
    return f"'{plain}'"
