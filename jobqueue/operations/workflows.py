"""The workflows that this process knows."""

from __future__ import annotations

from jobqueue.declarations import registry
from jobqueue.declarations.workflow import WorkflowTask


def workflow_codes() -> dict[str, str]:
    """Return the version of the code of each workflow, by its task_type."""
    return {name: task.code for name, task in registry.by_name().items() if isinstance(task, WorkflowTask)}
