"""A verb of the command line, and the options that all of them have."""

from __future__ import annotations

from argparse import SUPPRESS
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from django.core.management.base import CommandError, CommandParser

from jobqueue.management.cli.console import Console

EXIT_USAGE = 2


class Parser(CommandParser):
    """Reports wrong usage without Django's usage text, and exits with code 2."""

    def error(self, message: str) -> NoReturn:
        text = f"{self.prog}: {message}"
        if not self.called_from_command_line:
            raise CommandError(text, returncode=EXIT_USAGE)
        self.exit(EXIT_USAGE, f"{text}\nSee: {self.prog} --help\n")


def no_arguments(parser: CommandParser) -> None:
    """Add none."""


@dataclass(frozen=True)
class Verb:
    """A verb with its arguments and what it does; or an action of a verb."""

    name: str  # as it is typed
    help: str  # one sentence for --help
    run: Callable[[Console, Any], None]  # with the flags; flags.parser is the parser that has read them
    add_arguments: Callable[[CommandParser], None] = no_arguments  # declares its arguments
    actions: Sequence[Verb] = ()  # such as `pause` of `schedules`; without one, the verb itself runs

    def add_to(self, parsers: Any, **default: Any) -> None:
        """Add a parser to the subparsers. default: of the options that a verb shares with its actions."""
        parser = parsers.add_parser(self.name, help=self.help, description=self.help)
        parser.add_argument("--backend", metavar="ALIAS", help="alias in TASKS", **default)
        parser.add_argument("--json", action="store_true", help="write JSON", **default)
        parser.set_defaults(run=self.run, parser=parser)
        _add_django_options(parser)
        self.add_arguments(parser)
        if self.actions:
            actions = parser.add_subparsers(metavar="ACTION", title="actions", parser_class=Parser)
            for action in self.actions:
                action.add_to(actions, default=SUPPRESS)  # unless given there, the values before the action are kept


def report_usage_in_one_line(parser: CommandParser) -> None:
    """Make a command's own parser a Parser: Django has no setting for the class."""
    parser.__class__ = Parser


def add_verbs(parser: CommandParser, verbs: Sequence[Verb]) -> None:
    """Add the verbs of a command."""
    report_usage_in_one_line(parser)
    parsers = parser.add_subparsers(dest="verb", required=True, metavar="VERB", title="verbs", parser_class=Parser)
    for verb in verbs:
        verb.add_to(parsers)


def _add_django_options(parser: CommandParser) -> None:
    """Accept Django's options after the verb, too. Unless given there, those before the verb are kept."""
    group = parser.add_argument_group("Django's options")
    group.add_argument("-v", "--verbosity", type=int, choices=[0, 1, 2, 3], default=SUPPRESS)
    for name in ("--settings", "--pythonpath"):
        group.add_argument(name, default=SUPPRESS)
    for name in ("--traceback", "--no-color", "--force-color"):
        group.add_argument(name, action="store_true", default=SUPPRESS)
