"""Small pieces of HTML, as functions and as filters of templates. Data enters through format_html only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import lru_cache

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import get_language, gettext_lazy
from django.utils.translation import gettext as _

from jobqueue.models import Schedule, ScheduleTick, Task
from jobqueue.operations.executors import ExecutorState
from jobqueue.operations.formatting import Text, clock_text, duration, moment_in_words, wall_time
from jobqueue.operations.schedules import RecordedTick
from jobqueue.operations.task.tree import Bar
from jobqueue.schedules.rows import from_row_time
from jobqueue.values.text import number_text

MAX_FOLDS, MAX_FOLD_DEPTH = 50, 4  # of a JSON value: each fold is a stop of the Tab key


# Shapes, because not all readers see the colours. SKIPPED and DELETED are of ticks without a task, those after them of
# entries of journals.
SHAPES = {
    "READY": "○",
    "BLOCKED": "◇",
    "SCHEDULED": "◷",
    "AWAITING_CODE": "◎",
    "RUNNING": "▶",
    "SUSPENDED": "❚❚",
    "SUCCESSFUL": "✓",
    "FAILED": "✗",
    "CANCELLED": "⊘",
    "SKIPPED": "↷",
    "DELETED": "□",
    "WAITING": "❚❚",
    "RETRYING": "↻",
    "TIMED_OUT": "◷",
}
WORDS = {
    **dict(Task.Status.choices),
    "SKIPPED": gettext_lazy("Skipped"),
    "DELETED": gettext_lazy("Task deleted"),
    "WAITING": gettext_lazy("Waiting"),
    "RETRYING": gettext_lazy("Retrying"),
    "TIMED_OUT": gettext_lazy("Timed out"),
}

# CSS class, shape, word
EXECUTOR_BADGES: dict[ExecutorState, tuple[str, str, Text]] = {
    ExecutorState.ALIVE: ("alive", "●", gettext_lazy("Alive")),
    ExecutorState.PAUSED: ("stopping", "◌", gettext_lazy("Paused")),
    ExecutorState.STOPPING: ("stopping", "◔", gettext_lazy("Stopping")),
    ExecutorState.STOPPED: ("stopped", "■", gettext_lazy("Stopped")),
    ExecutorState.NOT_RESPONDING: ("lost", "✗", gettext_lazy("Not responding")),
}


def badge(status: str) -> SafeString:
    """Show a status as word, shape and colour."""
    if status not in SHAPES:
        return shaped("unknown", "?", status)
    return shaped(status.lower(), SHAPES[status], WORDS[status])


def shaped(kind: str, shape: str, word: Text) -> SafeString:
    return format_html(
        '<span class="jq-badge jq-{}"><span class="jq-shape" aria-hidden="true">{}</span>{}</span>', kind, shape, word
    )


def schedule_badge(schedule: Schedule) -> SafeString:
    """Show the state of a schedule as word, shape and colour. `now` is an attribute of the row."""
    now: datetime = schedule.now  # type: ignore[attr-defined]
    if schedule.retired_at is not None:
        return shaped("cancelled", "⊘", _("Retired"))
    if schedule.is_paused_at(now):
        return shaped("suspended", SHAPES["SUSPENDED"], _("Paused"))
    if schedule.next_at is None:
        return shaped("cancelled", "■", _("No more ticks"))
    return shaped("alive", "●", _("Active"))


def tick_words(tick: ScheduleTick, zone: str) -> str:
    """Describe when a tick was, or the number and the range of skipped ticks, on the clock of a time zone."""
    if tick.count == 1:
        return wall_time(tick.tick_at, zone)
    values = {"count": tick.count, "first": wall_time(tick.tick_at, zone), "last": wall_time(tick.last_at, zone)}
    if tick.is_count_exact:
        return _("%(count)d ticks, from %(first)s to %(last)s") % values
    return _("at least %(count)s ticks, from %(first)s to %(last)s") % {**values, "count": number_text(tick.count)}


def took(record: RecordedTick) -> str:
    """Describe how long the task of a tick took; return nothing if it has not ended."""
    return "" if record.duration is None else _("took %(length)s") % {"length": duration(record.duration)}


def tick_marks(records: Iterable[RecordedTick], zone: str, tasks: str) -> SafeString:
    """
    Show ticks as shapes and colours, each with a text and a link to its task. tasks: the address of the list of tasks.
    """
    return format_html_join("", "{}", ((tick_mark(record, zone, tasks),) for record in records))


def tick_mark(record: RecordedTick, zone: str, tasks: str) -> SafeString:
    kind, shape = record.status.lower(), SHAPES.get(record.status, "?")
    parts = (outcome(record.status, record.tick.reason, get_language()), took(record), tick_words(record.tick, zone))
    title = ", ".join(part for part in parts if part)
    if not record.has_task:
        return format_html(
            '<span class="jq-mark jq-{0}" role="img" aria-label="{1}" title="{1}">{2}</span>', kind, title, shape
        )
    return format_html(
        '<a class="jq-mark jq-{}" href="{}{}/change/" title="{}"><span aria-hidden="true">{}</span></a>',
        kind, tasks, record.tick.task_id, title, shape,
    )  # fmt: skip


@lru_cache  # a list shows a thousand, and each translation takes 3 us
def outcome(status: str, reason: str, language: str | None) -> str:
    """Describe a status and the reason of a skipped tick, in the active language."""
    texts = (WORDS.get(status), dict(ScheduleTick.Reason.choices).get(reason, reason))
    return ", ".join(str(word) for word in texts if word)


def breakable(name: str) -> SafeString:
    """Show a dotted name so that a narrow column breaks it after dots and underscores."""
    parts = re.findall(r"[^._]*[._]+|[^._]+", name)
    return format_html_join(mark_safe("<wbr>"), "{}", ((part,) for part in parts))


def with_moment(text: SafeString, at: datetime | None, now: datetime) -> SafeString:
    """Show a time in words, and below them on the clock."""
    return text if at is None else format_html('{}<span class="jq-clock">{}</span>', text, clock_text(at, now))


def moment(at: datetime | None, now: datetime | None = None, text: str = "") -> SafeString:
    """Show a time as text, or with `now` how long ago, with the exact time in its title."""
    if at is None:
        return format_html("{}", text or "–")
    if now is not None:
        ahead = from_row_time(at) - from_row_time(now)  # without USE_TZ, rows have naive times and ticks aware ones
        text = _("in %(time)s") if ahead > timedelta(0) else _("%(time)s ago")
        text %= {"time": duration(abs(ahead))}
    exact = moment_in_words(at)
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), exact, text or exact)


def clock(at: datetime | None, now: datetime) -> SafeString:
    """Show a time on the site's clock, with the exact time in its title."""
    return moment(at, text="" if at is None else clock_text(at, now))


def bar_words(bar: Bar) -> str:
    """Describe when a task waited and ran."""
    values = {"wait": duration(bar.wait_seconds), "run": duration(bar.run_seconds or 0.0)}
    if bar.run_seconds is None:
        return _("waited %(wait)s") % values
    return _("waited %(wait)s, since then %(run)s") % values


def foldable(text: str) -> SafeString:
    """
    Show indented JSON so that objects and lists can be folded. Its text is the same.

    A line that ends with a bracket opens one, and a line that starts with one closes it: strings have quotes.
    """
    lines = text.split("\n")
    if len(lines) < 4:
        return format_html('<pre class="jq-value" tabindex="0">{}</pre>', text)
    parts: list[SafeString] = []
    opened: list[bool] = []
    left = MAX_FOLDS
    for line in lines:
        if line.endswith(("{", "[")):
            is_fold = left > 0 and len(opened) < MAX_FOLD_DEPTH
            left -= is_fold
            opened.append(is_fold)
            if is_fold:
                parts.append(format_html("<details open><summary>{}\n</summary>", line))
            else:
                parts.append(format_html("{}\n", line))
            continue
        parts.append(format_html("{}\n", line))
        if opened and line.lstrip().startswith(("}", "]")) and opened.pop():
            parts.append(mark_safe("</details>"))
    parts += [mark_safe("</details>")] * sum(opened)  # the text was cut
    return format_html(
        '<div class="jq-value jq-json" tabindex="0">{}</div>', format_html_join("", "{}", ((part,) for part in parts))
    )


def executor_badge(state: ExecutorState) -> SafeString:
    """Show the state of an executor as word, shape and colour."""
    return shaped(*EXECUTOR_BADGES[state])
