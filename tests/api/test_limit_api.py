"""What people do with limits: set and reset their numbers, and list their keys."""

from __future__ import annotations

from typing import Any

import pytest

from jobqueue.api import limits as api
from jobqueue.api.notifications import ADMIT_NOTIFICATION
from jobqueue.engine import engine_for
from jobqueue.exceptions import LimitNotFound
from jobqueue.models import AdmissionRequest, Limit
from jobqueue.operations import limits as inspect_limits
from jobqueue.operations.limits import Key, KeyState, list_keys, read_key_states
from jobqueue.values.states import LimitKind
from tests.api.limited import rated, started, waiting
from tests.factories import ago

pytestmark = pytest.mark.django_db(databases=["default", "sqlite"])

CONCURRENCY, RATE = LimitKind.CONCURRENCY, LimitKind.RATE
ACCOUNT = "tests.imports:account-42"


def number(key: str, backend: str = "default") -> int | None:
    row = Limit.objects.using(backend).filter(backend=backend, key=key).first()
    return None if row is None else row.number


def listed(backend: str = "default", **filters: Any) -> list[tuple[str, int, int]]:
    keys = list_keys(engine_for(backend), **filters).keys
    return [
        (listed_key.key.stored, listed_key.blocked, listed_key.active)
        for listed_key in keys
        if listed_key.key.name.startswith("tests.")
    ]


def state(kind: LimitKind, key: str, backend: str = "default") -> KeyState:
    (key_state,) = read_key_states(backend, backend, [Key(kind, key)])
    return key_state


class TestSetNumber:
    def test_number_of_a_key_is_stored_with_who_and_why(self, backend: str) -> None:
        api.set_limit("concurrency", ACCOUNT, 3, by="anna", reason="a large customer", backend=backend)

        row = Limit.objects.using(backend).get()
        assert (row.kind, row.key, row.number) == ("concurrency", ACCOUNT, 3)
        assert (row.changed_by, row.reason) == ("anna", "a large customer")

    def test_name_alone_sets_the_number_of_all_keys(self, backend: str) -> None:
        waiting(ACCOUNT, backend=backend)
        waiting("tests.imports:account-7", backend=backend)

        api.set_limit("concurrency", "tests.imports", 3, backend=backend)

        assert number("tests.imports:", backend) == 3
        requested = AdmissionRequest.objects.using(backend).values_list("key", flat=True)
        assert set(requested) == {ACCOUNT, "tests.imports:account-7"}

    def test_set_number_notifies_executors(self, monkeypatch: pytest.MonkeyPatch) -> None:
        sent: list[set[str]] = []
        monkeypatch.setattr(api, "notify_after_commit", lambda engine, queues: sent.append(queues))

        api.set_limit("concurrency", "tests.reindex", 3)
        api.reset_limit("concurrency", "tests.reindex")

        assert sent == [{ADMIT_NOTIFICATION}] * 2

    def test_set_number_admits_at_once_what_fits(self, backend: str) -> None:
        waiting(ACCOUNT, 3, backend=backend)
        engine = engine_for(backend)

        api.set_limit("concurrency", ACCOUNT, 2, backend=backend)

        assert engine.admissions.admit().queues == {"default": 2}

    @pytest.mark.parametrize("value", [0, -1, True, "5", 1.5, None, 10**10])
    def test_set_number_refuses_what_is_no_number_of_tasks(self, value: Any) -> None:
        with pytest.raises(ValueError, match=r"whole number from 1 to .* pause their queue"):
            api.set_limit("concurrency", ACCOUNT, value)

    def test_set_number_refuses_limit_that_is_not_adjustable(self) -> None:
        with pytest.raises(ValueError, match=r"adjustable=False. Change its number there"):
            api.set_limit("concurrency", "payments", 2)

    def test_set_number_refuses_unknown_kind(self) -> None:
        with pytest.raises(ValueError, match="one of 'concurrency', 'rate', not 'speed'"):
            api.set_limit("speed", ACCOUNT, 2)

    def test_set_number_of_misspelled_limit_names_similar_ones(self) -> None:
        with pytest.raises(LimitNotFound, match=r"Did you mean tests.imports"):
            api.set_limit("concurrency", "tests.import:account-42", 2)

    def test_set_number_of_key_that_no_template_makes_is_refused(self) -> None:
        with pytest.raises(LimitNotFound, match=r"no key 'acount-42'. Its keys are like 'account-{account_id}'"):
            api.set_limit("concurrency", "tests.imports:acount-42", 2)
        with pytest.raises(LimitNotFound, match=r"no key 'x'. To change all of its keys, write 'tests.reindex'"):
            api.set_limit("concurrency", "tests.reindex:x", 2)

    def test_set_number_of_undeclared_limit_needs_a_task(self, backend: str) -> None:
        with pytest.raises(LimitNotFound):
            api.set_limit("concurrency", "tenants:tenant-1", 2, backend=backend)
        waiting("tenants:tenant-1", backend=backend)

        api.set_limit("concurrency", "tenants:tenant-1", 2, backend=backend)
        api.set_limit("concurrency", "tenants", 3, backend=backend)

        assert (number("tenants:tenant-1", backend), number("tenants:", backend)) == (2, 3)

    @pytest.mark.parametrize("values", [{"by": "x" * 151}, {"reason": "x" * 256}, {"reason": "a\0b"}])
    def test_set_number_refuses_texts_that_do_not_fit(self, values: Any) -> None:
        with pytest.raises(ValueError, match="must be a text of at most"):
            api.set_limit("concurrency", ACCOUNT, 2, **values)


class TestResetNumber:
    def test_reset_removes_the_number_and_says_whether_there_was_one(self, backend: str) -> None:
        waiting(ACCOUNT, backend=backend)
        api.set_limit("concurrency", ACCOUNT, 2, backend=backend)

        assert api.reset_limit("concurrency", ACCOUNT, backend=backend)
        assert not api.reset_limit("concurrency", ACCOUNT, backend=backend)
        assert number(ACCOUNT, backend) is None

    def test_number_of_limit_that_code_has_fixed_since_is_removed(self, backend: str) -> None:
        engine = engine_for(backend)
        engine.limits.set(CONCURRENCY, "payments:", 2)
        engine.limits.set(CONCURRENCY, ACCOUNT, 2)

        assert api.reset_non_adjustable_limits(engine) == 1
        assert (number("payments:", backend), number(ACCOUNT, backend)) == (None, 2)


class TestListing:
    def test_list_has_most_blocked_keys_first(self, backend: str) -> None:
        waiting(ACCOUNT, backend=backend)
        waiting("tests.imports:account-7", 3, backend=backend)
        waiting("tests.imports:account-7", status="RUNNING", backend=backend)
        waiting("tests.imports:account-1", status="READY", backend=backend)
        rated(count=2, backend=backend)

        assert listed(backend)[:4] == [
            ("tests.imports:account-7", 3, 1),
            ("tests.call_api:api-7", 2, 0),
            (ACCOUNT, 1, 0),
            ("tests.imports:account-1", 0, 1),
        ]

    def test_list_has_declared_limits_and_set_numbers_without_tasks(self) -> None:
        api.set_limit("concurrency", ACCOUNT, 2)

        assert {(ACCOUNT, 0, 0), ("tests.imports:", 0, 0), ("tests.call_api:", 0, 0)} <= set(listed())

    def test_list_filters_by_kind_name_and_beginning_of_a_key(self, backend: str) -> None:
        waiting(ACCOUNT, backend=backend)
        waiting("tests.imports:account-7", backend=backend)
        rated(backend=backend)

        rates = {key for key, *_ in listed(backend, kind=RATE)}  # other tests declare rates, too
        assert {"tests.call_api:", "tests.call_api:api-7"} <= rates
        assert ACCOUNT not in rates
        assert (ACCOUNT, 1, 0) in listed(backend, text="IMPORTS")
        assert listed(backend, text="account-4") == [(ACCOUNT, 1, 0)]
        assert listed(backend, text=ACCOUNT) == [(ACCOUNT, 1, 0)]
        assert listed(backend, text="no such") == []

    def test_key_with_many_tasks_hides_no_other(self, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(inspect_limits, "KEYS_CAP", 2)
        waiting("tests.imports:account-1", 5, backend=backend)
        waiting("tests.imports:account-2", 2, backend=backend)

        listing = list_keys(engine_for(backend), text="account")

        assert {(listed_key.key.own, listed_key.blocked) for listed_key in listing.keys} == {
            ("account-1", 2),
            ("account-2", 2),
        }
        assert listing.partial == []

    def test_list_says_which_limit_has_more_keys(self, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(inspect_limits, "KEYS_READ", 1)
        waiting("tests.imports:account-1", backend=backend)
        waiting("tests.imports:account-2", 2, backend=backend)

        listing = list_keys(engine_for(backend), text="account")

        assert [listed_key.key.own for listed_key in listing.keys] == ["account-2"]
        assert listing.partial == ["tests.imports"]


class TestState:
    def test_state_of_a_key_has_what_waits_and_what_holds(self, backend: str) -> None:
        waiting(count=2, enqueued_at=ago(120), concurrency_limit=3, backend=backend)
        waiting(status="RUNNING", backend=backend)
        waiting(status="SCHEDULED", wake_at=ago(-60), counts_while_waiting=True, backend=backend)

        key_state = state(CONCURRENCY, ACCOUNT, backend)

        assert (key_state.blocked.number, key_state.active.number, key_state.number, key_state.left) == (2, 2, 3, 1)
        assert key_state.blocked_for is not None
        assert 115 < key_state.blocked_for.total_seconds() < 300
        assert key_state.number_text == "3"

    def test_number_of_all_keys_holds_for_a_key_without_its_own(self, backend: str) -> None:
        waiting(backend=backend)
        api.set_limit("concurrency", "tests.imports", 4, backend=backend)
        assert (state(CONCURRENCY, ACCOUNT, backend).number, state(CONCURRENCY, ACCOUNT, backend).is_own) == (4, False)

        api.set_limit("concurrency", ACCOUNT, 2, backend=backend)

        key_state = state(CONCURRENCY, ACCOUNT, backend)
        assert (key_state.number, key_state.declared, key_state.is_own) == (2, 1, True)
        assert state(CONCURRENCY, "tests.imports:", backend).is_all

    def test_state_of_a_rate_counts_starts_in_its_window(self, backend: str) -> None:
        rated(count=3, backend=backend)
        rated(status="READY", backend=backend)
        started(count=2, backend=backend)
        started(seconds_ago=61, backend=backend)

        key_state = state(RATE, "tests.call_api:api-7", backend)

        assert (key_state.blocked.number, key_state.active.number, key_state.left, key_state.unstarted) == (3, 3, 97, 1)
        assert key_state.number_text == "100 a minute"

    def test_state_of_declared_limit_without_tasks_has_its_number(self) -> None:
        assert state(CONCURRENCY, "tests.reindex:").number == 5
        assert state(RATE, "tests.call_api:").number_text == "100 a minute"
        assert not state(CONCURRENCY, "payments:").is_adjustable
