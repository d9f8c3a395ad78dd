"""The form that creates and changes schedules in the admin."""

import json
from datetime import UTC, date, datetime, timedelta

import pytest
from django.contrib.admin.models import ADDITION, CHANGE, LogEntry

from jobqueue import Backoff, task
from jobqueue.api import schedules
from jobqueue.declarations.function import declared
from jobqueue.declarations.schedules import Declaration
from jobqueue.models import Schedule
from jobqueue.schedules.expressions import Cron, Every
from jobqueue.values.redaction import MASK
from tests.admin.pages import BOTH, SCRIPT, messages_of
from tests.factories import ScheduleFactory, make_user
from tests.tasks import add, echo, greet, named

pytestmark = BOTH
ADD = "/admin/jobqueue/schedule/add/"
PREVIEW = "/admin/jobqueue/schedule/preview/"
EVERY_PERMISSION = ("view_schedule", "add_schedule", "change_schedule", "view_payload")
# What a browser sends for a new form.
TYPED = {
    "name": "warm",
    "task": "tests.tasks.add",
    "shown_task": "tests.tasks.add",
    "argument-a": "1",
    "argument-b": "",
    "kind": "cron",
    "expression": "0 8 * * mon-fri",
    "timezone": "Europe/Berlin",
    "interval": "",
    "unit": "60",
    "anchor": "",
    "starts_at": "",
    "ends_at": "",
    "overlap": "skip",
    "catch_up": "latest",
    "max_catch_up": "100",
    "catch_up_window": "",
    "jitter": "",
    "queue_name": "",
    "priority": "",
    "max_attempts": "",
    "timeout": "",
    "expires": "",
    "key": "",
}


@pytest.fixture
def user(client):
    user = make_user(*EVERY_PERMISSION)
    client.force_login(user)
    return user


@pytest.fixture
def send(client, user, backend):
    """Send the form of a new schedule, or of one to change. Return the response."""

    def post(row=None, **typed):
        address = ADD if row is None else edit_url(row)
        return client.post(address, {**TYPED, "backend": backend, **typed})

    return post


@pytest.fixture
def create(backend):
    """Create a schedule as a person does, without the form."""

    def save(task=add, expression=None, **values):
        options = {"backend": backend, **values.pop("task_options", {})}
        values = {"name": "warm", "args": [1], **values}
        expression = expression or Cron("@daily", "UTC")
        return schedules.create(
            Declaration(task=task, expression=expression, location="", task_options=options, **values)
        )

    return save


def edit_url(row):
    return f"/admin/jobqueue/schedule/{row.pk}/edit/?backend={row.backend}"


def stored(backend, name="warm"):
    return Schedule.objects.using(backend).get(name=name)


def errors(response):
    """Return the errors by field. Those of an argument have its name after "argument-"."""
    assert response.status_code == 200
    form = response.context["form"]
    by_field = {name: texts[0] for name, texts in form.errors.items()}
    arguments = form.arguments.errors if form.arguments else {}
    return by_field | {f"argument-{name}": texts[0] for name, texts in arguments.items()}


def typed_values(response):
    """Return what a browser would send back for the fields of a page."""
    form = response.context["form"]
    sent = {"shown_task": form.task_type, "version": form.version or ""}
    for field in (*form, *(form.arguments or ())):
        value = field.field.widget.format_value(field.value())
        if field.widget_type == "checkbox":
            sent |= {field.html_name: "on"} if field.value() else {}
        else:
            value = value[0] if isinstance(value, list) else value
            sent[field.html_name] = "" if value is None else value
    return sent


def call_of(row):
    return json.loads(row.new_task.get("args", "[]")), json.loads(row.new_task.get("kwargs", "{}"))


def test_form_creates_a_schedule_and_logs_it(send, user, backend):
    response = send(
        expression="*/5 * * * *",
        starts_at="2030-01-01T10:00:00",
        overlap="queue_one",
        catch_up="none",
        jitter="2.5",
        catch_up_window="3600",
        queue_name="cache",
        priority="7",
        max_attempts="2",
        timeout="9.5",
        expires="60",
        key="warm",
    )

    row = stored(backend)
    assert response.status_code == 302
    assert response.url.startswith(f"/admin/jobqueue/schedule/{row.pk}/change/")
    assert (row.backend, row.task_type, row.expression, row.timezone) == (
        backend,
        add.task_type,
        "*/5 * * * *",
        "Europe/Berlin",
    )
    assert row.starts_at == row.next_at == datetime(2030, 1, 1, 10, tzinfo=UTC)
    assert (row.overlap, row.catch_up, row.jitter_seconds, row.catch_up_window_seconds) == (
        "queue_one",
        "none",
        2.5,
        3600,
    )
    assert call_of(row) == ([], {"a": 1})
    columns = {
        name: row.new_task[name] for name in ("queue_name", "priority", "max_attempts", "expires_after_seconds", "key")
    }
    assert columns == {
        "queue_name": "cache",
        "priority": 7,
        "max_attempts": 2,
        "expires_after_seconds": 60.0,
        "key": "warm",
    }
    assert '"timeout":9.5' in row.new_task["options"]
    assert row.declared_at == ""
    assert messages_of(response) == ["Schedule warm: Created."]
    entry = LogEntry.objects.get()
    assert (entry.user_id, entry.action_flag, entry.object_id) == (user.pk, ADDITION, str(row.pk))


def test_form_creates_a_schedule_with_an_interval(send, backend):
    send(kind="interval", interval="1.5", unit="3600", anchor="2026-01-01T00:00:07", expression="nonsense")

    row = stored(backend)
    assert (row.expression, row.timezone, row.anchor_at) == (
        "@every 5400",
        "",
        datetime(2026, 1, 1, 0, 0, 7, tzinfo=UTC),
    )


INTERVAL = {"kind": "interval", "interval": "5"}


@pytest.mark.parametrize("backend", ["default"], indirect=True)
@pytest.mark.parametrize(
    ("typed", "field", "text"),
    [
        ({"name": ""}, "name", "This field is required."),
        ({"name": "x" * 201}, "name", "Its name must be a text of 1 to 200 characters"),
        ({"name": "a\0b"}, "name", "Null characters are not allowed."),
        ({"task": ""}, "task", "This field is required."),
        ({"task": "os.system"}, "task", "Select a valid choice."),
        ({"task": "tests.tasks.echo"}, "task", "Enter the arguments of this task."),
        ({"expression": ""}, "expression", "'' has 0 fields; expected minute hour"),
        ({"expression": "61 * * * *"}, "expression", "The minute of '61 * * * *' is not valid"),
        ({"expression": "* * * * someday"}, "expression", "The day-of-week of '* * * * someday' is not valid"),
        ({"expression": SCRIPT}, "expression", "'<script>"),
        ({"expression": "0," * 200 + "0 * * * *"}, "expression", "'0,0,0"),
        ({"timezone": ""}, "timezone", "This host has no time zone ''"),
        ({"timezone": "Mars"}, "timezone", "This host has no time zone 'Mars'"),
        ({"timezone": "../../etc/passwd"}, "timezone", "This host has no time zone '../../etc/passwd'"),
        ({"kind": "weekly"}, "kind", "Select a valid choice."),
        (INTERVAL | {"interval": ""}, "interval", "An interval must be between a second and ten years, not 0:00:00."),
        (INTERVAL | {"interval": "0.5", "unit": "1"}, "interval", "An interval must be between a second and ten years"),
        (INTERVAL | {"interval": "1e300"}, "interval", "An interval must be between a second and ten years"),
        (INTERVAL | {"interval": "-5"}, "interval", "An interval must be between a second and ten years"),
        (INTERVAL | {"interval": "nan"}, "interval", "Enter a number."),
        (INTERVAL | {"interval": "five"}, "interval", "Enter a number."),
        (INTERVAL | {"unit": "7"}, "unit", "Select a valid choice."),
        (INTERVAL | {"anchor": "0001-01-01T00:00"}, "anchor", "It must lie between the years 1970 and 9000"),
        ({"starts_at": "9999-12-31T23:59"}, "starts_at", "It must lie between the years 1970 and 9000"),
        ({"starts_at": "tomorrow"}, "starts_at", "Enter a valid date/time."),
        ({"ends_at": "0001-01-01T00:00"}, "ends_at", "It must lie between the years 1970 and 9000"),
        (
            {"starts_at": "2030-01-02T00:00", "ends_at": "2030-01-01T00:00"},
            "ends_at",
            "It must not be earlier than starts_at",
        ),
        ({"overlap": "maybe"}, "overlap", "Select a valid choice."),
        ({"catch_up": "maybe"}, "catch_up", "Select a valid choice."),
        ({"catch_up": "all"}, "catch_up", "Catch_up='all' needs overlap='allow'"),
        ({"max_catch_up": "0"}, "max_catch_up", "Ensure this value is greater than or equal to 1."),
        ({"max_catch_up": ""}, "max_catch_up", "This field is required."),
        ({"max_catch_up": "9" * 5000}, "max_catch_up", "Enter a whole number."),
        ({"catch_up_window": "-1"}, "catch_up_window", "Ensure this value is greater than or equal to 0."),
        ({"catch_up_window": "1e300"}, "catch_up_window", "It must be seconds or a timedelta, from 0 to"),
        ({"jitter": "86401"}, "jitter", "Ensure this value is less than or equal to 86400."),
        ({"queue_name": "x" * 129}, "queue_name", "It must be a text of 1 to 128 characters"),
        ({"priority": "101"}, "priority", "Ensure this value is less than or equal to 100."),
        ({"priority": "high"}, "priority", "Enter a whole number."),
        ({"max_attempts": "0"}, "max_attempts", "Ensure this value is greater than or equal to 1."),
        ({"timeout": "-1"}, "timeout", "Ensure this value is greater than or equal to 0.001."),
        ({"expires": "-1"}, "expires", "Ensure this value is greater than or equal to 0.001."),
        ({"expires": "1e300"}, "expires", "It must lie within a thousand years"),
        ({"key": "x" * 256}, "key", "It must be a text of 1 to 255 characters"),
        ({"backend": "gone"}, "backend", "Select a valid choice."),
        ({"argument-a": ""}, "argument-a", "This field is required."),
        ({"argument-a": "one"}, "argument-a", "Enter a whole number."),
        ({"argument-b": "1.5"}, "argument-b", "Enter a whole number."),
    ],
)
def test_mistake_is_named_beside_its_field(send, backend, typed, field, text):
    response = send(**typed)

    messages = errors(response)
    assert [*messages] == [field]
    assert messages[field].startswith(text), messages[field]
    assert not Schedule.objects.using(backend).exists()
    assert SCRIPT not in response.content.decode()
    assert "Traceback" not in response.content.decode()


def test_all_mistakes_are_named_at_once(send):
    response = send(name="", expression="x", timezone="Mars", priority="101", jitter="-1", **{"argument-a": ""})

    assert {*errors(response)} == {"name", "expression", "timezone", "priority", "jitter", "argument-a"}
    content = response.content.decode()
    assert content.count('aria-invalid="true"') == 6
    assert 'id="id_expression_error"' in content


# --- the arguments


@task
def typed(
    text: str,
    day: date,
    ratio: float = 1.0,
    is_dry: bool = False,
    limit: "int | None" = None,
    tags: list[str] | None = None,
    password: str = "",
    note: str = "none",
    anything=("a", 1),
) -> None: ...


@task
def needs_json(value) -> None: ...


@task
def positional(a: int, b: int = 5, /, *rest: int, flag: bool = True, **more: str) -> None: ...


@pytest.mark.parametrize(
    ("task", "typed_arguments", "call"),
    [
        (add, {"a": "1"}, ([], {"a": 1})),
        (add, {"a": "-7", "b": "2"}, ([], {"a": -7, "b": 2})),
        (echo, {"value": ""}, ([], {})),
        (echo, {"value": "null"}, ([], {"value": None})),
        (echo, {"value": '{"a": [1, "<b>"]}'}, ([], {"value": {"a": [1, "<b>"]}})),
        (greet, {"name": "Anna", "times": "3", "password": ""}, ([], {"name": "Anna", "times": 3})),
        (named, {"parts": '["x", 1]', "flag": "on", "rest": '{"c": 2}'}, (["x", 1], {"flag": True, "c": 2})),
        (named, {"parts": "", "rest": ""}, ([], {})),
        (
            typed,
            {"text": " a ", "day": "2026-02-03", "note": ""},
            ([], {"text": " a ", "day": "2026-02-03", "note": ""}),
        ),
        (
            typed,
            {
                "text": "x",
                "day": "2026-02-03",
                "ratio": "2",
                "is_dry": "on",
                "limit": "9",
                "tags": '["a"]',
                "note": "none",
            },
            ([], {"text": "x", "day": "2026-02-03", "ratio": 2.0, "is_dry": True, "limit": 9, "tags": ["a"]}),
        ),
        (positional, {"a": "1"}, ([1], {"flag": False})),
        (positional, {"a": "1", "b": "2", "flag": "on", "more": '{"c": "x"}'}, ([1, 2], {"c": "x"})),
        (positional, {"a": "1", "rest": "[3]", "flag": "on"}, ([1, 5, 3], {})),
    ],
)
def test_arguments_are_read_as_annotated(send, client, backend, task, typed_arguments, call):
    named_as_fields = {f"argument-{name}": text for name, text in typed_arguments.items()}

    response = send(task=task.task_type, shown_task=task.task_type, **named_as_fields)

    assert response.status_code == 302, errors(response)
    row = stored(backend)
    assert call_of(row) == call
    page = client.get(edit_url(row))
    again = client.post(edit_url(row), typed_values(page))
    assert again.status_code == 302, errors(again)
    assert call_of(stored(backend)) == call


@pytest.mark.parametrize(
    ("task", "typed_arguments", "name", "text"),
    [
        (typed, {"text": "", "day": "2026-01-01"}, "text", "This field is required."),
        (typed, {"text": "x", "day": "soon"}, "day", "Enter a valid date."),
        (typed, {"text": "x", "day": "2026-01-01", "ratio": "NaN"}, "ratio", "Enter a number."),
        (typed, {"text": "x\0", "day": "2026-01-01"}, "text", "Null characters are not allowed."),
        (echo, {"value": "home"}, "value", "Not valid JSON: Expecting value in line 1, column 1."),
        (echo, {"value": '{"a":\n oops}'}, "value", "Not valid JSON: Expecting value in line 2, column 2."),
        (echo, {"value": "[NaN]"}, "value", "The value[0]: NaN is not JSON."),
        (echo, {"value": '"\\ud800"'}, "value", "The value: a lone surrogate is not text."),
        (echo, {"value": "[" * 90 + "]" * 90}, "value", "The value[0][0]"),
        (echo, {"value": "[" * 100_000}, "value", "Unreadable JSON: maximum recursion depth exceeded"),
        (echo, {"value": "9" * 5000}, "value", "Unreadable JSON: Exceeds the limit (4300 digits)"),
        (needs_json, {"value": ""}, "value", "This field is required."),
        (needs_json, {"value": " "}, "value", "This field is required."),
        (named, {"parts": '{"a": 1}'}, "parts", "This must be a JSON list, such as [1, 2]."),
        (named, {"rest": "[1]"}, "rest", 'This must be a JSON object, such as {"page": "home"}.'),
        (named, {"rest": '{"flag": true}'}, "rest", "flag has a field of its own."),
    ],
)
def test_mistake_in_an_argument_is_named_beside_it(send, backend, task, typed_arguments, name, text):
    response = send(
        task=task.task_type,
        shown_task=task.task_type,
        **{f"argument-{key}": value for key, value in typed_arguments.items()},
    )

    assert [*errors(response)] == [f"argument-{name}"]
    assert errors(response)[f"argument-{name}"].startswith(text)
    assert not Schedule.objects.using(backend).exists()


def test_arguments_that_are_too_large_together_are_refused(send, backend):
    response = send(task=echo.task_type, shown_task=echo.task_type, **{"argument-value": f'"{"x" * 1_100_000}"'})

    assert errors(response) == {
        "argument-__all__": "Echo(): more than 1,048,576 bytes of JSON in all (MAX_PAYLOAD_BYTES); pass a reference."
    }
    assert not Schedule.objects.using(backend).exists()


def test_task_is_chosen_without_javascript(client, send, backend):
    page = client.get(ADD)
    assert "argument-" not in page.content.decode()

    response = send(task=greet.task_type, shown_task="", choose="1", name="kept")

    form = response.context["form"]
    assert [field.name for field in form.arguments] == ["name", "password", "times"]
    assert (form["name"].value(), form["task"].value()) == ("kept", greet.task_type)
    assert not form.errors
    assert not Schedule.objects.using(backend).exists()


def test_task_without_arguments_needs_no_second_step(send, backend):
    assert send(task=no_arguments.task_type, shown_task="").status_code == 302

    assert call_of(stored(backend)) == ([], {})


@task
def no_arguments() -> None: ...


# --- changes


def test_form_shows_a_schedule_and_saves_it_unchanged(client, user, create, backend):
    row = create(
        task=named,
        expression=Every(hours=36, anchor=datetime(2026, 1, 1, 0, 0, 7, tzinfo=UTC)),
        args=["a", 1],
        kwargs={"flag": True, "c": [None]},
        overlap="cancel_running",
        catch_up="none",
        max_catch_up=7,
        catch_up_window=90.5,
        jitter=timedelta(minutes=1),
        starts_at=datetime(2026, 1, 2, tzinfo=UTC),
        ends_at=datetime(2036, 1, 2, tzinfo=UTC),
        task_options={
            "queue_name": "cache",
            "priority": -3,
            "max_attempts": 2,
            "timeout": 1.5,
            "expires": timedelta(hours=1),
            "key": "k",
            "metadata": {"team": "a"},
            "backoff": Backoff(base=7.0),
        },
    )
    page = client.get(edit_url(row))
    sent = typed_values(page)
    assert (sent["interval"], sent["unit"], sent["anchor"]) == ("36", "3600", "2026-01-01T00:00:07")
    assert (sent["starts_at"], sent["jitter"], sent["catch_up_window"]) == ("2026-01-02T00:00:00", "60", "90.5")
    assert (sent["queue_name"], sent["timeout"], sent["expires"]) == ("cache", "1.5", "3600")

    response = client.post(edit_url(row), sent)

    assert response.status_code == 302, errors(response)
    assert messages_of(response) == ["Schedule warm: Changed: nothing."]
    after = stored(backend)
    for column in (field.attname for field in Schedule._meta.fields if field.attname not in ("updated_at", "due_at")):
        assert getattr(after, column) == getattr(row, column), column


def test_form_changes_a_schedule_and_logs_the_fields(client, user, create, backend):
    row = create(task=greet, args=[], kwargs={"name": "Anna"}, expression=Cron("@daily", "UTC"))
    sent = typed_values(client.get(edit_url(row)))

    response = client.post(
        edit_url(row),
        sent | {"expression": "@hourly", "queue_name": "mail", "argument-name": "Berta", "name": "other"},
    )

    assert response.status_code == 302, errors(response)
    row = stored(backend)
    assert (row.expression, row.new_task["queue_name"]) == ("@hourly", "mail")
    assert call_of(row) == ([], {"name": "Berta"})
    entry = LogEntry.objects.get()
    assert (entry.action_flag, entry.change_message) == (CHANGE, "Changed: Cron expression, Queue, name.")


def test_change_of_the_task_asks_for_its_arguments(client, user, create, backend):
    row = create(task=add, args=[1])
    sent = typed_values(client.get(edit_url(row)))

    response = client.post(edit_url(row), sent | {"task": greet.task_type})
    assert errors(response) == {"task": "Enter the arguments of this task."}
    sent = typed_values(response) | {"argument-name": "Anna"}
    assert client.post(edit_url(row), sent).status_code == 302

    row = stored(backend)
    assert (row.task_type, call_of(row)) == (greet.task_type, ([], {"name": "Anna"}))


def test_two_people_do_not_overwrite_each_other(client, user, create, backend):
    row = create()
    first, second = (typed_values(client.get(edit_url(row))) for _ in range(2))
    assert client.post(edit_url(row), first | {"expression": "@hourly"}).status_code == 302

    response = client.post(edit_url(row), second | {"expression": "x"})
    assert [*errors(response)] == ["expression"]
    response = client.post(edit_url(row), typed_values(response) | {"expression": "@weekly"})

    assert "was changed after you opened the form" in errors(response)["__all__"]
    assert stored(backend).expression == "@hourly"
    assert client.post(edit_url(row), typed_values(response)).status_code == 302
    assert stored(backend).expression == "@weekly"


def test_name_of_another_schedule_is_refused(send, create, backend):
    create(expression=Cron("@daily", "UTC"))

    response = send()

    assert errors(response)["name"] == "There is a schedule with this name already."
    assert stored(backend).expression == "@daily"


def test_deleted_schedule_is_not_created_again(client, user, create, backend):
    row = create()
    sent = typed_values(client.get(edit_url(row)))
    schedules.delete("warm", backend=backend)

    response = client.post(edit_url(row), sent)

    assert response.status_code == 302
    assert not Schedule.objects.using(backend).exists()


@pytest.mark.parametrize("method", ["get", "post"])
@pytest.mark.parametrize("traits", [{"declared": True}, {"retired": True}])
def test_schedule_of_the_code_has_no_form(client, user, backend, method, traits):
    row = ScheduleFactory.create(backend=backend, using=backend, **traits)

    assert getattr(client, method)(edit_url(row), TYPED).status_code == 403

    assert stored(backend, row.name).expression == row.expression


@pytest.mark.parametrize(
    ("permissions", "allowed"),
    [
        ((), set()),
        (("view_schedule",), set()),
        (("view_schedule", "add_schedule"), {"add", "preview"}),
        (("view_schedule", "change_schedule"), {"edit", "preview"}),
    ],
)
def test_pages_need_their_permission(client, create, permissions, allowed):
    row = create()
    client.force_login(make_user(*permissions))
    pages = {"add": ADD, "edit": edit_url(row), "preview": PREVIEW}

    for name, address in pages.items():
        assert client.get(address).status_code == (200 if name in allowed else 403), name
    assert client.post(ADD, TYPED | {"name": "new"}).status_code == (302 if "add" in allowed else 403)
    assert client.post(edit_url(row), TYPED).status_code == (302 if "edit" in allowed else 403)


# --- values that are not shown


@task
def log_in(user: str, password: str, pin: int = 0, options=None, **more) -> None: ...


SECRETS = {
    "user": "anna",
    "password": "hunter2",
    "pin": 1234,
    "options": {"token": "tok-abc", "page": "home"},
    "api_key": "tok-def",
}


@pytest.fixture
def hide_pins(settings):
    settings.TASKS = {
        name: {**values, "OPTIONS": {**values.get("OPTIONS", {}), "REDACT": ["password", "token", "pin", "api_key"]}}
        for name, values in settings.TASKS.items()
    }


def test_masked_values_are_not_shown_and_stay(client, user, create, backend, hide_pins):
    row = create(task=log_in, args=["anna"], kwargs={key: value for key, value in SECRETS.items() if key != "user"})

    page = client.get(edit_url(row))

    content = page.content.decode()
    assert not any(secret in content for secret in ("hunter2", "1234", "tok-"))
    sent = typed_values(page)
    assert sent["argument-password"] == MASK
    assert client.post(edit_url(row), sent | {"argument-user": "berta"}).status_code == 302
    assert call_of(stored(backend)) == ([], {**SECRETS, "user": "berta"})


def test_masked_value_is_replaced_as_a_whole(client, user, create, backend, hide_pins):
    row = create(task=log_in, args=[], kwargs=SECRETS)
    sent = typed_values(client.get(edit_url(row)))
    partly = sent | {"argument-options": json.dumps({"token": MASK, "page": "cart"}), "argument-password": f"x{MASK}"}

    response = client.post(edit_url(row), partly)
    assert {*errors(response)} == {"argument-options", "argument-password"}
    assert "Enter the whole value." in errors(response)["argument-options"]
    whole = {"argument-options": '{"token": "new"}', "argument-password": "other", "argument-pin": "5"}
    assert client.post(edit_url(row), sent | whole).status_code == 302

    after = call_of(stored(backend))[1]
    assert (after["options"], after["password"], after["pin"]) == ({"token": "new"}, "other", 5)


def test_user_without_the_permission_sees_and_changes_no_arguments(client, create, backend):
    row = create(task=log_in, args=["anna", "hunter2"])
    client.force_login(make_user("view_schedule", "change_schedule"))

    page = client.get(edit_url(row))
    sent = typed_values(page) | {"argument-user": "eve", "task": add.task_type, "expression": "@hourly"}
    response = client.post(edit_url(row), sent)

    assert "anna" not in page.content.decode()
    assert "you lack the permission to see them" in page.content.decode()
    assert response.status_code == 302
    row = stored(backend)
    assert (row.expression, row.task_type, call_of(row)) == ("@hourly", log_in.task_type, (["anna", "hunter2"], {}))


def test_arguments_that_no_longer_fit_are_shown_as_json(client, user, create, backend, monkeypatch):
    row = create(task=log_in, args=["anna", "hunter2", 1], kwargs={"options": 2})
    monkeypatch.setitem(declared, log_in.task_type, shorter)

    page = client.get(edit_url(row))
    sent = typed_values(page)
    assert json.loads(sent["argument-args"]) == ["anna", MASK, MASK]
    response = client.post(edit_url(row), sent)
    assert errors(response)["argument-__all__"].startswith("Shorter(): ")
    sent |= {"argument-args": '["anna", "x"]', "argument-kwargs": ""}
    assert client.post(edit_url(row), sent).status_code == 302

    assert call_of(stored(backend)) == (["anna", "x"], {})


@task
def shorter(user: str, password: str) -> None: ...


def test_unknown_task_is_named_and_another_can_be_chosen(client, user, backend):
    row = ScheduleFactory.create(backend=backend, using=backend, name="warm", task_type="shop.gone")

    page = client.get(edit_url(row))
    assert "shop.gone" in page.content.decode()
    response = client.post(edit_url(row), typed_values(page) | {"task": "shop.gone"})
    assert "Select a valid choice" in errors(response)["task"]


# --- preview


def preview(client, **typed):
    response = client.get(PREVIEW, {**TYPED, **typed})
    assert response.status_code == 200
    return response.content.decode()


def test_preview_shows_words_and_ticks(client, user, backend):
    content = preview(client, starts_at="2030-03-30T00:00:00", expression="30 2 * * *", backend=backend)

    assert "At 02:30, Europe/Berlin" in content
    assert content.count("<li>") == 5
    assert "Sat 2030-03-30 02:30 CET" in content
    assert "Sun 2030-03-31 03:00 CEST" in content
    assert "the clock skips the time of the tick" in content


@pytest.mark.parametrize(
    ("typed", "text"),
    [
        ({"expression": ""}, "Enter an expression or an interval"),
        ({"expression": SCRIPT}, "Cron expression: &#x27;&lt;script&gt;"),
        ({"expression": "* * *", "timezone": "Mars"}, "Time zone: This host has no time zone &#x27;Mars&#x27;"),
        ({"kind": "interval", "interval": "90", "unit": "1"}, "Every 90 seconds"),
        ({"kind": "interval", "interval": "x"}, "Every: Enter a number."),
        ({"ends_at": "2020-01-01T00:00"}, "There is no next tick"),
        ({"kind": ""}, "Runs: This field is required."),
        ({"backend": "gone"}, "At 08:00, Monday through Friday, Europe/Berlin"),
    ],
)
def test_preview_of_other_fields(client, user, typed, text):
    content = preview(client, **typed)

    assert text in content
    assert SCRIPT not in content


def test_preview_without_javascript_saves_nothing(send, backend):
    response = send(name="", preview="1", expression="@daily")

    content = response.content.decode()
    assert "At 00:00, Europe/Berlin" in content
    assert 'value="@daily"' in content
    assert "errornote" not in content
    assert not Schedule.objects.using(backend).exists()


@pytest.mark.parametrize(
    "odd",
    [
        {"text": "two\r\nlines"},
        {"text": ""},
        {"text": None},
        {"text": 5},
        {"day": "someday"},
        {"ratio": 3},
        {"is_dry": "yes"},
        {"limit": "many"},
        {"limit": True},
        {"tags": {"a": [1, None]}},
    ],
)
def test_stored_argument_of_another_type_stays(client, user, create, backend, odd):
    row = create(task=typed, args=[], kwargs={"text": "x", "day": "2026-01-01", **odd})

    sent = typed_values(client.get(edit_url(row)))
    # Browsers send text areas with these line ends, and fields of one line without any.
    areas = {name: "\r\n".join(str(value).splitlines()) for name, value in sent.items()}
    areas["argument-text"] = areas["argument-text"].replace("\r\n", "")
    assert client.post(edit_url(row), areas).status_code == 302

    assert call_of(stored(backend)) == call_of(row)


@pytest.mark.parametrize("name", [SCRIPT, "naïve ☃ \u202e", "a/b?c=d&e#f", "%2e%2e", "x" * 200])
def test_hostile_names_are_stored_and_escaped(send, client, backend, name):
    response = send(name=name)

    assert response.status_code == 302
    row = stored(backend, name.strip())
    content = (
        client.get(edit_url(row)).content.decode() + client.get(response.url, {"backend": backend}).content.decode()
    )
    assert SCRIPT not in content


@pytest.mark.parametrize("pk", ["0", "abc", "9" * 40, "_00", "1_2Fedit"])
def test_unknown_schedule_leads_to_the_list(client, user, pk):
    for method in (client.get, client.post):
        response = method(f"/admin/jobqueue/schedule/{pk}/edit/", TYPED)

        assert (response.status_code, response.url) == (302, "/admin/jobqueue/schedule/")
        assert messages_of(response)[-1].startswith("Unknown schedule ")


@pytest.mark.parametrize("permissions", [(), ("view_schedule",), ("change_schedule",)])
def test_new_schedule_leads_to_a_page_that_the_user_may_view(client, backend, permissions):
    client.force_login(make_user("add_schedule", *permissions))

    response = client.post(ADD, {**TYPED, "backend": backend}, follow=True)

    row = Schedule.objects.using(backend).get(name="warm")
    leads_to = f"/admin/jobqueue/schedule/{row.pk}/change/?backend={backend}" if permissions else "/admin/"
    assert response.redirect_chain == [(leads_to, 302)]
    assert response.status_code == 200
    assert "Schedule warm: Created." in response.content.decode()
