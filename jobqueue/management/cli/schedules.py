"""`schedules`: list schedules, show one with its ticks, pause, resume, run now, backfill."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.db import transaction

from jobqueue.api import schedules as api
from jobqueue.engine import Engine
from jobqueue.management.cli import arguments
from jobqueue.management.cli.backends import engines, find_engine
from jobqueue.management.cli.console import Console, TableColumn, log, shell_user
from jobqueue.management.cli.show import value_lines
from jobqueue.management.cli.verbs import Verb
from jobqueue.models import STOPPED_BY, Schedule
from jobqueue.operations.formatting import clock_time, duration
from jobqueue.operations.payloads import parse_column, show_arguments
from jobqueue.operations.queries import many
from jobqueue.operations.schedules import (
    RECENT,
    RecordedTick,
    UpcomingTick,
    describe_schedule,
    history,
    next_ticks,
    recent_ticks,
    with_tasks,
)
from jobqueue.schedules.rows import from_row_time

PAGE = 100  # schedules whose last ticks are read together
SHOWN_TICKS = 5  # next ones, by `show`
SCHEDULES = (
    TableColumn("SCHEDULE", is_flexible=True),
    TableColumn("EXPRESSION", is_flexible=True),
    TableColumn("NEXT TICK"),
    TableColumn("LAST TICK"),
    TableColumn("STATUS"),
)
UPCOMING = (TableColumn("LOCAL TIME"), TableColumn("UTC"), TableColumn("NOTE"))
RECORDED = (
    TableColumn("LAST TICKS"),
    TableColumn("STATUS"),
    TableColumn("DURATION", is_right=True),
    TableColumn("TASK OR REASON"),
)
DETAILS = {
    "task_type": "Task",
    "backend": "Backend",
    "declared_at": "Declared in",
    "starts_at": "Starts",
    "ends_at": "Ends",
    "overlap": "Overlap",
    "catch_up": "Catch up",
    "jitter_seconds": "Jitter in seconds",
    "waiting_at": "Waiting tick",
}
WIDTH = max(map(len, DETAILS.values()))


@dataclass(frozen=True)
class ScheduleState:
    """A schedule with its last ticks."""

    row: Schedule  # of the schedule
    records: Sequence[RecordedTick]  # the last ticks, newest first
    now: datetime  # of the database

    @property
    def state(self) -> str:
        row = self.row
        if row.retired_at is not None:
            return "retired"
        if row.is_paused_at(self.now):
            return "stopped" if row.paused_by == STOPPED_BY else "paused"
        return "ended" if row.next_at is None else "active"

    @property
    def sentence(self) -> str:
        """Describe why it does not fire; empty if it does."""
        row = self.row
        match self.state:
            case "retired":
                return f"{row.name} is retired: code declared it at {row.declared_at}, and no longer does."
            case "stopped":
                return f"An error has stopped {row.name}: {row.pause_reason}"
            case "paused":
                by = f" by {row.paused_by}" if row.paused_by else ""
                until = f" until {_text(row.resume_at)}" if row.resume_at else ""
                reason = f" Reason: {row.pause_reason.removesuffix('.')}." if row.pause_reason else ""
                return f"{row.name} is paused{by}{until}. Its ticks are skipped.{reason}"
            case "ended":
                return f"{row.name} has no next tick."
        return ""


# --- arguments


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("--all", action="store_true", help="also retired ones, which code no longer declares")
    parser.add_argument("--name", default="", dest="part", help="a part of the name")
    lines = "number of schedules of a backend (200)"
    parser.add_argument("-n", "--lines", type=arguments.within(1, 100_000), default=200, help=lines)


def add_name(parser: CommandParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of a schedule")


def add_schedule_names(parser: CommandParser) -> None:
    parser.add_argument("names", nargs="+", metavar="NAME", help="name of a schedule")


def add_next_arguments(parser: CommandParser) -> None:
    add_name(parser)
    parser.add_argument("-n", "--lines", type=arguments.within(1, 1000), default=10, help="number of ticks (10)")


def add_schedule_pause_arguments(parser: CommandParser) -> None:
    add_schedule_names(parser)
    arguments.add_pause(parser)


def add_backfill_arguments(parser: CommandParser) -> None:
    add_name(parser)
    example = "such as 2030-01-31T09:00, or 7d for seven days ago"
    start, end = f"first moment of the range, {example}", f"last moment of the range, {example} (default: now)"
    parser.add_argument("--from", type=arguments.parse_moment, dest="start", required=True, metavar="WHEN", help=start)
    parser.add_argument("--to", type=arguments.parse_moment, dest="end", default="0s", metavar="WHEN", help=end)
    arguments.add_questions(parser)


# --- read


def list_schedules(console: Console, flags: Any) -> None:
    """List the schedules of every backend, by name. Retired ones are shown with --all."""
    states: list[ScheduleState] = []
    for engine in engines(flags.backend):
        rows = engine.db.schedules if flags.all else engine.db.schedules.active()
        rows = rows.filter(name__icontains=flags.part).order_by("name")
        states += _with_last_ticks(engine, rows[: flags.lines])
        if (others := rows.count() - flags.lines) > 0:
            others_text = many(others, "more schedule")
            console.say(f"Backend {engine.alias}: {others_text}. Pass --lines or --name to see others.")
    if console.is_json:
        console.write_json([_as_json(state) for state in states])
    elif states:
        console.table(SCHEDULES, [_line(state) for state in states])
        for state in states:
            if state.sentence:
                console.write(state.sentence)
    else:
        console.say("There are no schedules. Declare one with jobqueue.schedule().")


def show(console: Console, flags: Any) -> None:
    """Show a schedule, its next ticks, and its last ones with their tasks."""
    engine = find_engine(flags.backend)
    row = _find(engine, flags.name, with_retired=True)
    state = ScheduleState(row, with_tasks(list(history(row)[:RECENT])), engine.db.now())
    upcoming = _next_ticks(row, SHOWN_TICKS)
    if console.is_json:
        last = [_recorded_as_json(record) for record in state.records]
        ticks = {"next": [_next_as_json(tick) for tick in upcoming], "last": last}
        console.write_json({**_as_json(state), **ticks})
        return
    for line in _lines(engine, state):
        console.write(line)
    if upcoming:
        console.write()
        console.table((TableColumn("NEXT TICKS"), *UPCOMING[1:]), [_next_line(tick) for tick in upcoming])
    if state.records:
        console.write()
        console.table(RECORDED, [_recorded_line(recorded) for recorded in state.records])


def next_(console: Console, flags: Any) -> None:
    """Show the next ticks of a schedule, with notes where daylight saving moves one."""
    engine = find_engine(flags.backend)
    state = ScheduleState(_find(engine, flags.name), (), engine.db.now())
    upcoming = _next_ticks(state.row, flags.lines)
    if state.sentence:
        console.say(state.sentence)
    if console.is_json:
        console.write_json([_next_as_json(tick) for tick in upcoming])
    elif upcoming:
        console.table(UPCOMING, [_next_line(tick) for tick in upcoming])


# --- change


def pause(console: Console, flags: Any) -> None:
    """Pause schedules: all, or none if one of the values is invalid."""
    engine = find_engine(flags.backend)
    by = shell_user() if flags.by is None else flags.by
    rows = [_find(engine, name) for name in flags.names]
    with _value_errors(), transaction.atomic(using=engine.database):
        for row in rows:
            api.pause(row.name, by=by, reason=flags.reason, until=flags.until, backend=engine.alias)
    for row in rows:
        until = flags.until and str(flags.until)
        log("pause", flags.by, schedule=row.name, backend=engine.alias, reason=flags.reason, until=until)
    _report(console, engine, flags.names)


def resume(console: Console, flags: Any) -> None:
    """Resume schedules: all, or none if one of them cannot be used."""
    engine = find_engine(flags.backend)
    rows = [_find(engine, name) for name in flags.names]
    before = {row.name: ScheduleState(row, (), engine.db.now()).state for row in rows}
    with _value_errors(), transaction.atomic(using=engine.database):
        for row in rows:
            api.resume(row.name, backend=engine.alias)
    for row in rows:
        if before[row.name] not in ("paused", "stopped"):
            console.say(f"{row.name} was not paused.")
        log("resume", schedule=row.name, backend=engine.alias)
    _report(console, engine, flags.names)


def run(console: Console, flags: Any) -> None:
    """Enqueue a task of a schedule now, and print its id."""
    engine = find_engine(flags.backend)
    row = _find(engine, flags.name)
    with _value_errors():
        pk = api.run(row.name, backend=engine.alias)
    log("run", schedule=row.name, id=str(pk), backend=engine.alias)
    console.report({"id": pk, "task": row.task_type}, str(pk))


def backfill(console: Console, flags: Any) -> None:
    """Enqueue tasks for the ticks of a range that have none."""
    engine = find_engine(flags.backend)
    row = _find(engine, flags.name)
    start, end = (_moment(engine, value) for value in (flags.start, flags.end))
    with _value_errors():
        preview = api.preview_backfill(row.name, start, end, backend=engine.alias)
    count, ticks = len(preview.ticks), preview.ticks
    between = f" between {_text(ticks[0])} and {_text(ticks[-1])}" if ticks else ""
    expected = f"{many(count, 'task')} of {row.name}, for ticks{between}" if ticks else "no task"
    others = f" Ticks of the range that have a task already: {preview.existing:,}." if preview.existing else ""
    if flags.dry_run:
        fields = {"would_enqueue": count, "existing": preview.existing, "ticks": ticks}
        console.report(fields, f"Would enqueue {expected}.{others}")
        return
    if ticks:
        console.confirm(f"Enqueue {expected}?{others}", is_confirmed=flags.yes)
        with _value_errors():
            count = api.backfill(row.name, start, end, backend=engine.alias)
        log("backfill", schedule=row.name, start=str(start), end=str(end), tasks=count, backend=engine.alias)
    console.report({"enqueued": count, "existing": preview.existing}, f"Enqueued {many(count, 'task')}.{others}")


@contextmanager
def _value_errors() -> Iterator[None]:
    """Report a value that was refused in one line."""
    try:
        yield
    except ValueError as error:
        raise CommandError(str(error)) from error


def _report(console: Console, engine: Engine, names: Sequence[str]) -> None:
    now = engine.db.now()
    states = [ScheduleState(_find(engine, name), (), now) for name in dict.fromkeys(names)]
    if console.is_json:
        console.write_json([_as_json(state) for state in states])
        return
    for state in states:
        console.write(state.sentence or f"{state.row.name} is active. Its next tick: {_text(state.row.next_at)}.")


# --- find


def _with_last_ticks(engine: Engine, rows: Iterable[Schedule]) -> Iterator[ScheduleState]:
    now, ordered = engine.db.now(), list(rows)
    for start in range(0, len(ordered), PAGE):
        page = ordered[start : start + PAGE]
        recent = recent_ticks(page, 1)
        yield from (ScheduleState(row, recent[row.pk], now) for row in page)


def _find(engine: Engine, name: str, *, with_retired: bool = False) -> Schedule:
    """Return a schedule. Raises CommandError that names similar ones."""
    rows = engine.db.schedules if with_retired else engine.db.schedules.active()
    if row := rows.filter(name=name).first():
        return row
    similar = difflib.get_close_matches(name, rows.values_list("name", flat=True), n=3)
    advice = f"Did you mean {' or '.join(similar)}?" if similar else "See: manage.py jobqueue schedules"
    raise CommandError(f"No schedule of the backend {engine.alias!r} is named {name!r}. {advice}")


def _moment(engine: Engine, value: datetime | timedelta) -> datetime:
    """Return a time of the command line. A duration counts back from now."""
    return from_row_time(engine.db.now() - value if isinstance(value, timedelta) else value)


def _next_ticks(row: Schedule, count: int) -> list[UpcomingTick]:
    """Return the next ticks; none of a row that cannot be used."""
    try:
        return next_ticks(row, count)
    except ValueError:
        return []


# --- write


def _line(schedule: ScheduleState) -> tuple[object, ...]:
    row = schedule.row
    upcoming = _text(row.next_at) if schedule.state == "active" else schedule.state
    last = schedule.records[0] if schedule.records else None
    return (
        row.name,
        describe_schedule(row),
        upcoming,
        _text(last.tick.last_at) if last else "–",
        last.status if last else "–",
    )


def _lines(engine: Engine, schedule: ScheduleState) -> Iterator[str]:
    row = schedule.row
    yield f"{row.name}  {schedule.state}"
    yield f"{describe_schedule(row)}."
    if schedule.sentence:
        yield schedule.sentence
    yield ""
    for column, title in DETAILS.items():
        if value := getattr(row, column):
            yield f"{title:<{WIDTH}}  {_text(value) if isinstance(value, datetime) else value}"
    template = row.new_task if isinstance(row.new_task, dict) else {}
    args, kwargs = parse_column(template.get("args", "[]")), parse_column(template.get("kwargs", "{}"))
    yield from value_lines("Arguments", show_arguments(row.task_type, args, kwargs, engine.options.redact))


def _text(moment: datetime | None) -> str:
    """Return a time in the site's time zone."""
    return "–" if moment is None else clock_time(moment)


def _next_line(tick: UpcomingTick) -> tuple[object, ...]:
    return f"{tick.local:%Y-%m-%d %H:%M:%S %Z}", f"{tick.tick_at:%Y-%m-%d %H:%M:%S}", tick.note


def _recorded_line(record: RecordedTick) -> tuple[object, ...]:
    tick = record.tick
    number = many(tick.count, "tick") if tick.is_count_exact else f"At least {many(tick.count, 'tick')}"
    count = f"{number}, the first {_text(tick.tick_at)}" if tick.count > 1 else ""
    reason = f"{tick.get_reason_display()}. {count}".rstrip(" ")
    length = "–" if record.duration is None else duration(record.duration)
    return _text(tick.last_at), record.status, length, tick.task_id or reason


def _as_json(schedule: ScheduleState) -> dict[str, Any]:
    row = schedule.row
    columns = (
        "name", "backend", "task_type", "expression", "timezone", "next_at", "waiting_at", "paused_at", "paused_by",
        "pause_reason", "resume_at", "declared_at",
    )  # fmt: skip
    last = _recorded_as_json(schedule.records[0]) if schedule.records else None
    return {
        **{column: getattr(row, column) for column in columns},
        "words": describe_schedule(row),
        "state": schedule.state,
        "last_tick": last,
    }


def _next_as_json(tick: UpcomingTick) -> dict[str, Any]:
    return {"tick_at": tick.tick_at, "local": tick.local, "note": tick.note}


def _recorded_as_json(record: RecordedTick) -> dict[str, Any]:
    tick = record.tick
    columns = ("tick_at", "last_at", "count", "is_count_exact", "trigger", "reason", "task_id", "recorded_at")
    seconds = None if record.duration is None else record.duration.total_seconds()
    values = {column: getattr(tick, column) for column in columns}
    return {**values, "status": record.status, "duration_seconds": seconds}


VERB = Verb(
    "schedules",
    "List schedules. With an action: show one, pause, resume, run or backfill it.",
    list_schedules,
    add_arguments,
    actions=(
        Verb("show", "Show a schedule, its next ticks, and its last ones with their tasks.", show, add_name),
        Verb("next", "Show the next ticks, with notes where daylight saving moves one.", next_, add_next_arguments),
        Verb("pause", "Pause schedules: their ticks are skipped.", pause, add_schedule_pause_arguments),
        Verb("resume", "Resume paused schedules.", resume, add_schedule_names),
        Verb("run", "Enqueue a task of a schedule now, and print its id.", run, add_name),
        Verb(
            "backfill", "Enqueue tasks for the ticks of a past range that have none.", backfill, add_backfill_arguments
        ),
    ),
)
