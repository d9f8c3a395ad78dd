"""`workflows`: how many live workflows run on which version of the code."""

from __future__ import annotations

from typing import Any

from jobqueue.management.cli.backends import engines
from jobqueue.management.cli.console import Console, TableColumn
from jobqueue.management.cli.verbs import Verb
from jobqueue.operations.formatting import short_type
from jobqueue.operations.overview.workflows import WorkflowGroup, read_workflows

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


VERB = Verb("workflows", "Count live workflows by the version of their code and by what they wait for.", list_workflows)
