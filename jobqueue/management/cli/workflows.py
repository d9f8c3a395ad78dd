"""`workflows`: how many live workflows run on which version of the code. `workflow`: change the journal of one."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser

from jobqueue.api import workflows as api
from jobqueue.management.cli.backends import engines
from jobqueue.management.cli.console import Console, TableColumn, list_ids, log
from jobqueue.management.cli.verbs import Verb
from jobqueue.operations.formatting import short_type
from jobqueue.operations.overview.workflows import WorkflowGroup, read_workflows
from jobqueue.operations.task.detail import find_task
from jobqueue.operations.task.journal import ACTIONS, list_deleted

COLUMNS = (
    TableColumn("WORKFLOW", is_flexible=True),
    TableColumn("CODE"),
    TableColumn("STATUS"),
    TableColumn("WAITS FOR", is_flexible=True),
    TableColumn("NUMBER", is_right=True),
)


def list_workflows(console: Console, flags: Any) -> None:
    """List the live workflows by the version of their code and by what they wait for."""
    groups = [(engine.alias, group) for engine in engines(flags.backend) for group in read_workflows(engine)]
    if console.is_json:
        console.write_json([{"backend": alias, **group.as_json()} for alias, group in groups])
        return
    if not groups:
        console.say("No workflow is live.")
        return
    console.table(COLUMNS, [_line(group) for _alias, group in groups])
    if any(group.is_current for _alias, group in groups):
        console.write("* the version of the code here")


def _line(group: WorkflowGroup) -> tuple[object, ...]:
    code = f"{group.code}{'*' if group.is_current else ''}" if group.code else "not started"
    return short_type(group.task_type), code, group.status, group.wait or "–", group.count


def refuse_without_action(console: Console, flags: Any) -> None:
    flags.parser.error(f"Pass an action: {', '.join((*ACTIONS, 'terminate'))}.")


def _add_task(parser: CommandParser) -> None:
    parser.add_argument("id", type=UUID, metavar="ID", help="task id")


def _add_entry(parser: CommandParser) -> None:
    _add_task(parser)
    parser.add_argument("name", metavar="NAME", help="name of the entry, as jobqueue show --journal lists it")


def _add_value(parser: CommandParser) -> None:
    _add_entry(parser)
    parser.add_argument("value", metavar="JSON", help="the result, such as 3 or '\"sent\"'")


def _add_rewind(parser: CommandParser) -> None:
    _add_entry(parser)
    _add_confirmation(parser)


def _add_terminate(parser: CommandParser) -> None:
    _add_task(parser)
    _add_confirmation(parser)


def _add_confirmation(parser: CommandParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only print what would be done")
    parser.add_argument("--yes", action="store_true", help="do not ask for a confirmation")


def _task(flags: Any) -> Any:
    """Return the task. Raises CommandError if no backend has it."""
    task = find_task(str(flags.id), dict.fromkeys(engine.database for engine in engines(flags.backend)))
    if task is None:
        raise CommandError(f"Unknown task {flags.id}. Ended tasks are deleted after RETENTION.")
    return task


def change_entry(call: Callable[..., object], action: str, console: Console, flags: Any) -> None:
    """Change one entry. Raises CommandError for a value that is no JSON."""
    task = _task(flags)
    values = [] if action != "give" else [_parse(flags.value)]
    if action == "rewind":
        deleted = [name for name, _is_child in list_deleted(task, flags.name)]
        what = f"delete {len(deleted):,} entries ({list_ids(deleted)}), and run their calls again"
        if flags.dry_run:
            console.report({"would_delete": deleted}, f"Would {what}.")
            return
        console.confirm(f"{what.capitalize()}?", is_confirmed=flags.yes)
    call(task.pk, flags.name, *values, backend=task.backend)
    _report(console, task, action, str(ACTIONS[action].done % {"name": flags.name}), name=flags.name)


def end_workflow(console: Console, flags: Any) -> None:
    """End a workflow without its compensations."""
    task = _task(flags)
    if flags.dry_run:
        console.report({"would_terminate": task.pk}, "Would end it as cancelled, without its compensations.")
        return
    console.confirm("End it as cancelled, without its compensations?", is_confirmed=flags.yes)
    if not api.terminate(task.pk, backend=task.backend).cancelled:
        raise CommandError("Nothing was changed: it has ended, or another transaction has locked it.")
    _report(console, task, "terminate", "Terminated.")


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise CommandError(f"The result is not valid JSON: {error}. Put strings in quotes: '\"sent\"'.") from error


def _report(console: Console, task: Any, command: str, text: str, **values: str) -> None:
    log(command, id=str(task.pk), backend=task.backend, **values)
    console.report({"id": task.pk, "action": command, **values}, text)


VERBS = (
    Verb("workflows", "Count live workflows by the version of their code, and by what they wait for.", list_workflows),
    Verb(
        "workflow",
        "Change the journal of a workflow.",
        refuse_without_action,
        actions=(
            Verb("give", "Give the result of a step.", partial(change_entry, api.give, "give"), _add_value),
            Verb("retry", "Run a failed step again.", partial(change_entry, api.retry, "retry"), _add_entry),
            Verb(
                "rewind",
                "Delete an entry and all later ones. Their calls run again, and their children are cancelled.",
                partial(change_entry, api.rewind, "rewind"),
                _add_rewind,
            ),
            Verb("skip", "End a sleep, or a wait as timed out.", partial(change_entry, api.skip, "skip"), _add_entry),
            Verb("terminate", "End it as cancelled, without its compensations.", end_workflow, _add_terminate),
        ),
    ),
)
