"""The tasks of this package, such as the bulk action: no interface enqueues, schedules or repeats one by its name."""

from datetime import timedelta

import pytest

from jobqueue import api, task
from jobqueue.api import schedules
from jobqueue.conf.compat import InvalidTask
from jobqueue.declarations import registry
from jobqueue.declarations.schedules import Declaration
from jobqueue.models import Schedule, Task
from jobqueue.operations.bulk import actor as bulk_actor
from jobqueue.operations.bulk.actions import DELETE
from jobqueue.operations.bulk.target import Target
from jobqueue.operations.list.selection import Selection
from jobqueue.schedules.expressions import Every
from tests.admin.pages import BOTH, LIST_URL, messages_of, task_url
from tests.admin.test_schedule_form import ADD, PREVIEW, TYPED
from tests.cli.commands import jobqueue
from tests.factories import make_user

pytestmark = BOTH
INTERNAL = bulk_actor.NAME


@pytest.fixture
def planner(client):
    user = make_user("add_schedule", "view_schedule", "change_schedule", "run_schedule", "view_task", "enqueue_task")
    client.force_login(user)
    return user


def test_schedule_form_refuses_a_bulk_action_as_its_task(client, planner, backend):
    target = '{"selection": {"database": "default", "filters": {}}, "action": "delete"}'
    typed = {**TYPED, "backend": backend, "task": INTERNAL, "shown_task": INTERNAL, "argument-target": target}

    page = client.get(ADD).content.decode()
    refused = client.post(ADD, typed)
    preview = client.post(PREVIEW, typed)

    assert INTERNAL not in page
    assert refused.status_code == 200
    assert "task" in refused.context["form"].errors
    assert preview.status_code in (200, 400)
    assert not Schedule.objects.using(backend).exists()


def test_schedules_of_code_and_people_refuse_internal_tasks(backend):
    bulk = registry.all()[INTERNAL]
    declaration = Declaration("d", bulk, Every(hours=1), "", args=({},), task_options={"backend": backend})

    assert [problem.field for problem in declaration.problems()] == ["task"]
    with pytest.raises(ValueError, match="its task must be one of the site"):
        schedules.create(declaration)


def test_enqueue_page_does_not_know_internal_tasks(client, planner, backend):
    address = f"/admin/jobqueue/task/enqueue/?task={INTERNAL}"

    page = client.get(address)
    client.post(address, {"task": INTERNAL, "argument-target": "{}"})

    assert page.context["task"] is None
    assert INTERNAL not in page.context["known"]
    assert not Task.objects.using(backend).exists()


@pytest.mark.parametrize("name", [INTERNAL, "bulk_action"])
def test_command_line_does_not_submit_internal_tasks(name, backend):
    refused = jobqueue("submit", name, "--args", "[{}]", "--backend", backend)

    assert refused.code == 1
    assert "No task is named" in refused.err
    assert not Task.objects.using(backend).exists()


def test_requeue_leaves_a_cancelled_bulk_action_alone(client, make, backend):
    client.force_login(make_user("view_task", "requeue_task", "cancel_task"))
    victims = [make(successful=True) for _ in range(2)]
    target = Target.of(Selection(backend, {"backend": backend, "status": "SUCCESSFUL"}), DELETE)
    bulk = bulk_actor.start(target)
    api.cancel(bulk.id, backend=backend)

    report = api.requeue(bulk.id, backend=backend)
    row = Task.objects.using(backend).get(pk=bulk.id)
    page = client.get(task_url(row))
    posted = client.post(task_url(row, "requeue"))
    ticked = {"action": "requeue_selected", "_selected_action": bulk.id, "confirmed": "1"}
    client.post(f"{LIST_URL}?backend={backend}&status=CANCELLED", ticked)

    assert (report.requeued, report.skipped) == (0, 1)
    assert [action.name for action in page.context["actions"]] == []
    assert messages_of(posted) == ["Skipped 1 task: not failed or cancelled, deleted, or a bulk action."]
    assert Task.objects.using(backend).get(pk=bulk.id).status == "CANCELLED"
    assert Task.objects.using(backend).filter(pk__in=[row.pk for row in victims]).count() == 2


def test_site_cannot_declare_a_task_with_an_internal_name():
    with pytest.raises(InvalidTask, match=r"name must not begin with 'jobqueue\.'"):
        task(name="jobqueue.report", timeout=timedelta(seconds=1))(plain)


def plain() -> None:
    pass
