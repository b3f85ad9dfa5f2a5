"""Command lines whose errors show the usage of the typed command, and what was probably meant."""

import argparse
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final, NoReturn

# As Apache Pulsar's command lines abbreviate them.
TIME_UNITS_S: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_FEW: Final = 20  # choices that an error lists
_CHOICE: Final = re.compile(r"argument (.*): invalid choice: '(.*)' \(choose from .*\)", re.DOTALL)
_UNKNOWN: Final = "unrecognized arguments: "


class Parser(argparse.ArgumentParser):
    was_typed = False  # the command of this parser

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        self.was_typed = True
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if message.startswith(_UNKNOWN):
            words = message.removeprefix(_UNKNOWN).split(" ")
            self._unknown(words, message)
        if (found := _CHOICE.fullmatch(message)) is not None:
            message = self._unknown_choice(found[1], found[2], message)
        super().error(message)

    def _unknown(self, words: Sequence[str], message: str) -> NoReturn:
        typed = self._typed()
        for word in words:
            message += did_you_mean(word.partition("=")[0], typed._option_string_actions)
        super(Parser, typed).error(message)

    def _typed(self) -> "Parser":
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                for command in action.choices.values():
                    if isinstance(command, Parser) and command.was_typed:
                        return command._typed()
        return self

    def _unknown_choice(self, argument: str, said: str, message: str) -> str:
        for action in self._actions:
            names = {"/".join(action.option_strings), action.metavar, action.dest}
            if action.choices is not None and argument in names:
                choices = [str(each) for each in action.choices]
                meant = did_you_mean(said, choices)
                if len(choices) <= _FEW:
                    return message + meant
                return f"argument {argument}: unknown: '{said}'{meant or '; --help lists all'}"
        return message


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """The end of a message about a mistyped word; empty if nothing is similar."""
    from difflib import get_close_matches  # only errors need it

    if word.startswith("-") and not word.startswith("--"):
        return ""
    similar = get_close_matches(word, list(names), n=3)
    return f"; did you mean {' or '.join(similar)}?" if similar else ""
