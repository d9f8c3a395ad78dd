"""manage.py jobqueue limits: list, set and reset."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest

from jobqueue.models import Limit
from tests.api.limited import rated, started, waiting
from tests.cli.commands import BOTH, CommandResult, jobqueue
from tests.factories import ago

pytestmark = BOTH
Run = Callable[..., CommandResult]
ACCOUNT = "tests.imports:account-42"


@pytest.fixture
def run(backend: str) -> Run:
    return lambda *words: jobqueue("limits", *words, "--backend", backend)


def words_of(result: CommandResult, start: str) -> list[str]:
    """Return the words of the line that starts with a text."""
    return next(line for line in result.out.splitlines() if line.startswith(start)).split()


class TestList:
    def test_list_shows_what_waits_and_what_is_active(self, backend: str, run: Run) -> None:
        waiting(count=2, enqueued_at=ago(7200), concurrency_limit=3, backend=backend)
        waiting(status="RUNNING", backend=backend)
        rated(backend=backend)
        started(count=2, backend=backend)

        result = run()

        assert result.out.splitlines()[0].split() == [
            "KEY",
            "KIND",
            "LIMIT",
            "BLOCKED",
            "ACTIVE",
            "LEFT",
            "BLOCKED",
            "FOR",
        ]
        assert words_of(result, ACCOUNT) == [ACCOUNT, "concurrency", "3", "2", "1", "2", "2", "h"]
        of_rate = words_of(result, "tests.call_api:api-7")[1:]
        assert of_rate[:7] == ["rate", "100", "a", "minute", "1", "2", "98"]

    def test_list_names_limits_that_code_declares(self, run: Run) -> None:
        result = run("--name", "tests.")
        assert words_of(result, "tests.reindex ") == ["tests.reindex", "concurrency", "5", "0", "0", "5", "–"]
        assert words_of(result, "tests.imports ")[:4] == ["tests.imports", "concurrency", "1", "each"]

    def test_list_of_two_backends_names_them(self) -> None:
        waiting(backend="default")
        waiting(backend="sqlite")
        lines = jobqueue("limits", "--blocked").out.splitlines()
        assert [line.split()[:2] for line in lines if line] == [
            ["Backend", "default"],
            ["KEY", "KIND"],
            [ACCOUNT, "concurrency"],
            ["Backend", "sqlite"],
            ["KEY", "KIND"],
            [ACCOUNT, "concurrency"],
        ]

    def test_list_filters_by_kind_name_and_blocked(self, backend: str, run: Run) -> None:
        waiting(backend=backend)
        rated(backend=backend)

        assert [entry["key"] for entry in run("--kind", "rate", "--blocked", "--json").json] == ["tests.call_api:api-7"]
        assert [entry["key"] for entry in run("--name", "account-4", "--json").json] == [ACCOUNT]
        assert "tests.reindex" not in run("--blocked").out

    def test_list_says_how_many_keys_it_leaves_out(self, backend: str, run: Run) -> None:
        for number in range(3):
            waiting(f"tests.imports:account-{number}", backend=backend)
        result = run("--blocked", "-n", "2")
        assert len(result.out.splitlines()) == 3
        assert "1 more key. Pass --lines or --name" in result.err

    def test_list_without_a_match_says_how_to_declare_one(self, run: Run) -> None:
        result = run("--name", "no such")
        assert (result.out, result.code) == ("", 0)
        assert "@task(concurrency=...)" in result.err

    def test_json_has_numbers_and_who_set_them(self, backend: str, run: Run) -> None:
        waiting(backend=backend)
        run("set", ACCOUNT, 3, "--by", "anna", "--reason", "large")

        (entry,) = run("--name", ACCOUNT, "--json").json

        assert {name: entry[name] for name in ("kind", "key", "number", "declared", "blocked", "active", "left")} == {
            "kind": "concurrency", "key": ACCOUNT, "number": 3, "declared": 1, "blocked": 1, "active": 0, "left": 3,
        }  # fmt: skip
        assert (entry["changed_by"], entry["reason"], entry["is_own_number"]) == ("anna", "large", True)


class TestSet:
    def test_set_stores_the_number_and_prints_it(self, backend: str, run: Run) -> None:
        waiting(backend=backend)

        result = run("set", ACCOUNT, 3, "--by", "anna", "--reason", "a large customer")

        assert Limit.objects.using(backend).get().number == 3
        assert result.out.startswith(f"{ACCOUNT} (concurrency) has the limit 3 instead of 1, set by anna ")
        assert result.out.endswith("Reason: a large customer.\n")
        assert f"{ACCOUNT} (concurrency) has the limit 3" in run().out

    def test_set_of_a_name_sets_the_number_of_each_key(self, backend: str, run: Run) -> None:
        waiting(backend=backend)

        assert "has the limit 200 a minute for each key instead of 100" in run("set", "tests.call_api", 200).out
        assert words_of(run(), "tests.call_api ")[:6] == ["tests.call_api", "rate", "200", "a", "minute", "each"]

    def test_set_logs_user_key_and_reason(self, backend: str, run: Run, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO, "jobqueue.cli"):
            run("set", "tests.reindex", 3, "--by", "anna", "--reason", "slow disk")
        assert "command=set_limit by='anna'" in caplog.text
        assert "key='tests.reindex:' kind='concurrency' number=3 reason='slow disk'" in caplog.text

    @pytest.mark.parametrize("number", ["0", "-1", "five", "1.5", "1e3", "99999999999"])
    def test_set_refuses_what_is_no_number_with_what_to_do(self, run: Run, number: str) -> None:
        result = run("set", "tests.reindex", number)
        assert (result.out, result.code) == ("", 2)
        assert "must be a whole number from 1 to 1,000,000,000" in result.err
        assert "to run none: manage.py jobqueue pause" in result.err

    @pytest.mark.parametrize(
        ("key", "advice"),
        [
            ("tests.import:account-42", "Did you mean tests.imports"),
            ("no.such.limit", "See: manage.py jobqueue limits"),
            ("tests.imports:konto-1", "Its keys are like 'account-{account_id}'."),
            ("tests.reindex:one", "To change all of its keys, write 'tests.reindex'."),
            ("payments", "with adjustable=False. Change its number there."),
            ("", "is not the key of a limit"),
        ],
    )
    def test_set_refuses_unknown_and_fixed_keys_with_what_to_do(self, run: Run, key: str, advice: str) -> None:
        result = run("set", key, 3)
        assert (result.out, result.code) == ("", 1)
        assert advice in result.err
        assert not Limit.objects.exists()

    def test_set_asks_for_the_kind_of_a_key_of_two_limits(self, backend: str, run: Run) -> None:
        waiting("shared:a", backend=backend)
        rated("shared:a", backend=backend)

        assert "A concurrency limit and a rate have the key 'shared:a'. Pass --kind." in run("set", "shared:a", 3).err
        assert run("set", "shared:a", 3, "--kind", "rate").code == 0
        assert Limit.objects.using(backend).get().kind == "rate"


class TestReset:
    def test_reset_prints_which_number_applies(self, backend: str, run: Run) -> None:
        run("set", "tests.reindex", 3)

        assert run("reset", "tests.reindex").out == "tests.reindex (concurrency) has the limit 5, as declared.\n"
        assert not Limit.objects.using(backend).exists()

    def test_reset_of_a_key_without_a_number_says_so(self, run: Run) -> None:
        result = run("reset", "tests.reindex")
        assert result.err == "No number was set for tests.reindex.\n"
        assert result.code == 0
