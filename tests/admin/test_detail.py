"""The page of a task: contents and permissions. GET changes nothing."""

import html
import re
import subprocess
import sys
import time
from textwrap import dedent
from uuid import uuid4

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobqueue import task
from jobqueue.models import Task, TaskProgress
from jobqueue.operations import payloads as payload_display
from jobqueue.operations.payloads import SHOWN_CHARACTERS, UNREADABLE, parse_column, show_arguments
from jobqueue.values.history import Event, format_line
from jobqueue.values.redaction import MASK
from tests.admin.pages import BOTH, SCRIPT, task_url
from tests.cli.commands import jobqueue
from tests.factories import ExecutorFactory, MessageFactory, ScheduleFactory, ago, error, make_user
from tests.tasks import add_later

pytestmark = BOTH


@task
def log_in(name: str, password: str, *rest: str, next_page: str = "/") -> None: ...


@task(takes_context=True)
def log_in_with_context(context, name: str, password: str) -> None: ...


def test_page_explains_the_state(make, show, make_executor):
    row = make(enqueued_at=ago(14 * 60))
    assert "Ready for 14 min. No executor is serving queue default." in show(row)

    make_executor(state="PAUSED")

    assert "All executors serving queue default are paused: they claim no tasks." in show(row)


def test_task_of_a_backend_that_tasks_no_longer_has_is_only_shown(client, make, show):
    row = make(suspended=True)
    make(parent_id=row.pk)
    Task.objects.using(row.backend).update(backend="gone")

    content = show(row)
    answer = client.post(task_url(row, "cancel"), {"tree": "1"})

    assert row.task_type in content.replace("<wbr>", "")
    assert "jq-cancel" not in content
    assert answer.status_code == 302


def test_page_leads_back_to_the_list_with_its_filters(client, make, backend):
    client.force_login(make_user(is_superuser=True))
    row = make(failed=True)
    filters = {"_changelist_filters": f"status=FAILED&backend={backend}"}
    back = f'href="/admin/jobqueue/task/?status=FAILED&amp;backend={backend}"'

    content = client.get(task_url(row), filters).content.decode()
    (requeue,) = re.findall(r'action="([^"]*/requeue/[^"]*)"', content)
    answer = client.post(html.unescape(requeue))

    assert back in content
    assert back in client.get(answer.url).content.decode()


@pytest.mark.parametrize("model", ["executor", "schedule"])
def test_page_links_to_rows_that_the_user_may_view(client, make, make_executor, backend, model):
    executor = make_executor()
    schedule = ScheduleFactory.create(using=backend, backend=backend)
    row = make(running=True, executor_id=executor.pk, schedule_id=schedule.pk)
    name, link = {
        "executor": (executor.name, reverse("admin:jobqueue_executor_change", args=[executor.pk])),
        "schedule": (schedule.name, reverse("admin:jobqueue_schedule_change", args=[schedule.pk])),
    }[model]

    client.force_login(make_user("view_task"))
    content = client.get(task_url(row)).content.decode()
    assert name in content
    assert f'href="{link}' not in content

    client.force_login(make_user("view_task", f"view_{model}"))
    assert f'href="{link}' in client.get(task_url(row)).content.decode()


def test_explanation_counts_slots_of_serving_executors(make, show, make_executor):
    row = make(queue_name="emails")
    web = make_executor(slots=1, queues=["emails"])
    make_executor(queues=["images"])
    make_executor(lost=True)
    make_executor(state="STOPPING")
    ExecutorFactory.create(backend="other", using=row.backend)
    make(running=True, executor_id=web.pk, task_type=add_later.task_type)  # needs no thread
    assert "its turn in queue emails" in show(row)

    make(running=True, executor_id=web.pk)

    assert "All 1 slots of the executors serving queue emails are busy" in show(row)
    assert "its turn in queue emails" in show(make(task_type=add_later.task_type, queue_name="emails"))


@pytest.mark.parametrize(
    ("columns", "attempt"),
    [
        ({}, None),
        ({"running": True, "attempts": 1}, "2 of 4"),
        ({"scheduled": True, "attempts": 2}, "2 of 4"),
        ({"successful": True, "attempts": 1}, "2 of 4"),
        ({"failed": True}, "4 of 4"),
    ],
)
def test_attempts_are_counted_as_in_the_list(make, show, columns, attempt):
    content = show(make(**columns))

    assert f"<dt>Attempt</dt><dd>{attempt}</dd>" in content or (attempt is None and "<dt>Attempt</dt>" not in content)


def test_arguments_have_the_names_of_the_parameters(make, show):
    content = show(make(task_type=log_in.task_type, args=["anna", "hunter2", "more"], kwargs={"next_page": "/cart"}))

    for text in ("name", "anna", "password", MASK, "next_page", "/cart", "more"):
        assert text in content
    assert "hunter2" not in content


def test_positional_names_skip_the_context():
    arguments = show_arguments(log_in_with_context.task_type, ["anna", "hunter2"], {}, ["password"])

    assert [(value.name, value.text) for value in arguments] == [("name", '"anna"'), ("password", f'"{MASK}"')]


def test_result_state_metadata_and_messages_are_masked(make, show, backend):
    row = make(
        successful=True,
        kwargs={"user": {"api_key": "s1"}},
        return_value={"token": "s2"},
        inner_state={"secret": "s3"},
        metadata={"password": "s4"},
    )
    MessageFactory.create(using=backend, task_id=row.pk, body={"access_token": "s5"})

    content = show(row)

    assert content.count(MASK) == 5
    assert not any(f"&quot;s{n}&quot;" in content for n in range(1, 6))


def test_without_the_permission_no_value_is_read_or_shown(client, make, backend):
    client.force_login(make_user("view_task"))
    row = make(
        successful=True,
        args=["val1"],
        kwargs={"a": "val2"},
        return_value="val3",
        inner_state="val4",
        metadata={"m": "val5"},
    )
    MessageFactory.create(using=backend, task_id=row.pk, body="val6")

    with CaptureQueriesContext(connections[backend]) as queries:
        content = client.get(task_url(row)).content.decode()

    assert "val" not in content.replace("value", "").replace("interval", "").replace("invalid", "")
    assert "you lack the permission to see them" in content
    assert not any('"jobqueue_inboxmessage"."body"' in query["sql"] for query in queries)


def test_every_attempt_has_its_traceback_and_the_latest_is_open(make, show):
    content = show(make(failed=True, errors=[error("first", attempt=1), error("second", attempt=2)]))

    content = content[content.index('id="jq-timeline"') : content.index('id="jq-arguments"')]
    newest, older = content.index("SMTPServerBusy: second"), content.index("SMTPServerBusy: first")
    assert newest < older
    assert content.count(" open>") == 1
    assert content.index(" open>") < newest
    assert content.count("Traceback (most recent call last)") == 2


def test_page_with_many_secrets_and_errors_is_fast(make, show):
    """It took a minute while each secret was searched in each error."""
    passwords = list(range(10_000_000, 10_020_000))
    row = make(failed=True, kwargs={"passwords": passwords}, errors=[error(str(passwords[:1500]))] * 20)
    begun = time.process_time()

    content = show(row)

    assert time.process_time() - begun < 10
    assert "masked whole" in content
    assert str(passwords[0]) not in content


def test_errors_are_masked_if_arguments_are_too_large(make, show, monkeypatch):
    monkeypatch.setattr(payload_display, "READ_CHARACTERS", 1000)
    row = make(failed=True, kwargs={"password": "hunter2", "text": "x" * 1000}, errors=[error("not hunter2")])

    content = show(row)

    assert "too large" in content
    assert "masked whole" in content
    assert "hunter2" not in content


def test_parent_children_and_senders_are_linked(make, show, backend):
    parent, sender = make(suspended=True), make()
    child = make(parent_id=parent.pk, successful=True)
    MessageFactory.create(using=backend, task_id=parent.pk, sender_id=sender.pk)

    page = show(parent)

    assert task_url(child) in page
    assert task_url(sender) in page
    assert task_url(parent) in show(child)
    assert "(pruned)" in show(make(parent_id=uuid4()))


def test_times_are_machine_readable(make, show):
    row = make()

    assert f'<time datetime="{Task.objects.using(row.backend).get(pk=row.pk).enqueued_at.isoformat()}"' in show(row)


def test_page_escapes_values(make, show, backend, make_executor):
    parent = make(suspended=True, task_type=SCRIPT, key=SCRIPT + "1")
    row = make(
        running=True,
        executor_id=make_executor(name=SCRIPT).pk,
        parent_id=parent.pk,
        task_type=SCRIPT,
        queue_name=SCRIPT,
        key=SCRIPT + "2",
        args=[SCRIPT],
        kwargs={SCRIPT: SCRIPT},
        options={SCRIPT: SCRIPT},
        metadata={SCRIPT: SCRIPT},
        inner_state={SCRIPT: SCRIPT},
        errors=[error(SCRIPT, executor=SCRIPT, attempt=SCRIPT, exception_class_path=SCRIPT, traceback=SCRIPT)],
        history=format_line(Event.RELEASED, ago(9), executor=SCRIPT),
    )
    TaskProgress.objects.using(backend).create(
        task_id=row.pk, claim_number=1, done=1, total=2, note=SCRIPT, reported_at=ago(9)
    )
    make(parent_id=make(parent_id=row.pk, task_type=SCRIPT, key=SCRIPT + "3").pk, task_type=SCRIPT, queue_name=SCRIPT)
    MessageFactory.create(
        using=backend, task_id=row.pk, body={SCRIPT: SCRIPT}, dedupe_key=SCRIPT, child_status="<script>"
    )

    content = show(row)

    assert content.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 24
    assert SCRIPT not in content
    assert "<script>" not in content


def test_pages_have_no_inline_script_or_style(make, show):
    content = show(make(failed=True, args=[1]))

    assert not any(text in content for text in ("style=", "<style", "onclick"))
    assert all("src=" in tag.split(">")[0] for tag in content.split("<script")[1:])


def test_page_reads_in_a_bounded_number_of_queries(make, show, backend):
    row = make(failed=True, parent_id=make().pk, executor_id=uuid4())
    for _ in range(20):
        make(parent_id=row.pk)
        MessageFactory.create(using=backend, task_id=row.pk)
        ExecutorFactory.create(backend=backend, using=backend)

    with CaptureQueriesContext(connections["default"]) as first, CaptureQueriesContext(connections["sqlite"]) as second:
        show(row)

    assert len(first) + len(second) <= 25


def test_unreadable_value_does_not_fail_the_page(make, show, backend):
    row = make(kwargs={"n": 1})
    with connections[backend].cursor() as cursor:
        key = row.pk if backend == "default" else row.pk.hex
        cursor.execute("UPDATE jobqueue_task SET args = %s WHERE id = %s", [f"[{'9' * 5000}]", key])

    content = show(row)

    assert "not readable as JSON" in content
    assert "9" * 100 not in content


@pytest.mark.parametrize("depth", [200, 500, 900])
@pytest.mark.parametrize("redact", [None, []], ids=["masked", "unmasked"])
def test_deeply_nested_values_do_not_fail_pages(client, make, show, backend, settings, depth, redact):
    if redact is not None:
        tasks = {**settings.TASKS}
        tasks[backend] = {**tasks[backend], "OPTIONS": {**tasks[backend].get("OPTIONS", {}), "REDACT": redact}}
        settings.TASKS = tasks
    deep = '{"a":' * depth + "[1]" + "}" * depth
    row = make(successful=True)
    MessageFactory.create(using=backend, task_id=row.pk, body={}, child_status="FAILED")
    columns = {
        "args": f"[{deep}]",
        "kwargs": deep,
        "options": deep,
        "metadata": deep,
        "inner_state": deep,
        "return_value": deep,
        "worker_ids": f"[{deep}]",
        "errors": f'[{{"attempt": {deep}, "executor": {deep}, "message": {deep}, "exception_class_path": {deep}}}]',
    }
    with connections[backend].cursor() as cursor:
        key = row.pk if backend == "default" else row.pk.hex
        assignments = ", ".join(f"{column} = %s" for column in columns)
        cursor.execute(f"UPDATE jobqueue_task SET {assignments} WHERE id = %s", [*columns.values(), key])
        cursor.execute("UPDATE jobqueue_inboxmessage SET body = %s", [deep])

    assert row.task_type.rpartition(".")[2] in show(row)
    assert client.get(f"/jobqueue/tasks/{row.pk}/").status_code == 200
    assert jobqueue("show", row.pk).code == 0


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59.999999-12:00", "0001-01-01"])
@pytest.mark.parametrize("zone", ["Pacific/Kiritimati", "Pacific/Pago_Pago"])
def test_extreme_moments_of_errors_do_not_fail_pages(make, show, settings, at, zone):
    settings.TIME_ZONE = zone
    row = make(failed=True, errors=[error("no reply", at=at)])

    assert "no reply" in show(row)
    assert "no reply" in jobqueue("show", row.pk).out


def test_the_first_of_many_arguments_are_shown(make, show):
    row = make(args=["val"] * 50_000, kwargs={f"val{n}": "val" for n in range(50_000)})

    content = show(row)

    assert len(content) < 100_000
    assert "99900 more arguments are not shown" in content


def test_values_too_large_are_cut_or_not_shown(monkeypatch):
    displayed = payload_display.show_value("x" * 30_000, ())

    assert len(displayed.text) == SHOWN_CHARACTERS
    assert displayed.note == "The first 20000 of 30002 characters."
    monkeypatch.setattr(payload_display, "READ_CHARACTERS", 10)
    assert parse_column('"0123456789"') is UNREADABLE
    assert payload_display.show_value(UNREADABLE, ()).text == ""
    assert parse_column(None) is None


def test_page_has_no_form_that_edits(make, show):
    content = show(make())

    assert 'name="_save"' not in content
    assert "<textarea" not in content
    assert '<input type="text"' not in content.replace('id="nav-filter"', "")


@pytest.mark.parametrize("is_superuser", [True, False])
def test_add_edit_and_delete_are_refused(client, make, make_executor, is_superuser):
    rights = [
        f"{verb}_{model}" for verb in ("view", "add", "change", "delete") for model in ("task", "executor", "queue")
    ]
    client.force_login(make_user(*rights, is_superuser=is_superuser))
    row, web = make(), make_executor()
    pages = [f"task/{row.pk}/change/", f"executor/{web.pk}/change/", f"executor/{web.pk}/delete/"]

    for page in (*pages, "task/add/", "executor/add/", "queue/add/"):
        values = {"status": "SUCCESSFUL", "name": "x", "post": "yes"}
        assert client.post(f"/admin/jobqueue/{page}", values).status_code == 403
    assert client.get("/admin/jobqueue/task/add/").status_code == 403
    client.post(task_url(row, "delete"), {"confirmed": "1"})  # of tasks that have ended
    assert Task.objects.using(row.backend).get(pk=row.pk).status == "READY"


@pytest.mark.parametrize("identifier", [str(uuid4()), "nonsense", "_5Fx"], ids=["id", "text", "quoted"])
def test_unknown_task_redirects_to_the_list(client, identifier):
    client.force_login(make_user("view_task"))

    response = client.get(f"/admin/jobqueue/task/{identifier}/change/", follow=True)

    assert response.redirect_chain == [("/admin/jobqueue/task/", 302)]
    assert "Unknown task" in response.content.decode()


def test_page_needs_the_permission_to_view(client, make):
    client.force_login(make_user("requeue_task"))

    assert client.get(task_url(make())).status_code == 403


def test_history_page_shows_manual_actions(client, staff, make):
    row = make(failed=True)
    client.post(task_url(row, "requeue"))

    assert "Requeue" in client.get(task_url(row, "history")).content.decode()


def test_sites_without_the_admin_still_render_templates():
    """Every template engine imports every app's template tags."""
    script = """
        from django.conf import settings
        settings.configure(
            INSTALLED_APPS=["jobqueue"],
            DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
            TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
            TASKS={"default": {"BACKEND": "jobqueue.backend.JobQueueBackend"}},
        )
        import django
        django.setup()
        from django.template import engines
        print(engines["django"].from_string("{% load jobqueue_admin %}{{ 1 }}").render())
    """
    done = subprocess.run([sys.executable, "-c", dedent(script)], capture_output=True, text=True, check=False)

    assert (done.stdout, done.returncode) == ("1\n", 0), done.stderr


def test_cancel_is_not_offered_again_for_a_running_task(make, show):
    assert ">Cancel</button>" in show(make(running=True))
    assert ">Cancel</button>" not in show(make(running=True, cancel_requested_at=ago(1)))


def test_task_with_an_alias_shows_its_name_now_and_can_be_copied(client, staff, make, show, own_registry):
    task(aliases=["old.log_in"])(log_in.func)
    row = make(task_type="old.log_in", args=["ann", "x"])
    assert f"Renamed to</dt><dd>{__name__}.log_in" in show(row).replace("<wbr>", "")
    page = client.get(reverse("admin:jobqueue_task_enqueue"), {"copy": row.pk}).content.decode()
    assert f'name="task" value="{__name__}.log_in"' in page


def test_page_shows_the_checkpoint_of_a_function_without_secrets(make, show):
    page = show(make(inner_state={"checkpoint": {"row": 3, "api_token": "s3cret"}}))
    assert "Checkpoint</h2>" in page
    assert "s3cret" not in page
    assert "State</h2>" not in page


def test_queue_key_and_task_type_are_links(make, show, backend):
    content = show(make(queue_name="a&b", key="order:7"))

    assert f'queue/summary/?name=a%26b&amp;backend={backend}"' in content
    assert f'?backend={backend}&amp;q=key:order%3A7"' in content
    assert f'summary/?name=shop.tasks.send_receipt&amp;backend={backend}"' in content
