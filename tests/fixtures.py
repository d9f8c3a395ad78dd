"""
The databases of the tests.

`default`: PostgreSQL, either a private temporary cluster or the server of DATABASE_URL.

`sqlite`: a SQLite file of this session.
"""

import gc
import os
import signal
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from urllib.parse import quote, urlencode

import hypothesis
import pytest
from django.conf import settings

from jobqueue.declarations import function
from jobqueue.declarations import schedules as declared_schedules
from tests.alone import is_alone, room_for
from tests.emptying import patch_flush
from tools.postgres import Cluster, throwaway_cluster
from tools.postgres_programs import major_version

if TYPE_CHECKING:
    from tests.acceptance.harness import Fleet

# The time of an example shows how busy the machine is.
hypothesis.settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unhurried")

Options = Callable[..., None]  # the fixture `options`

FEW_PAGES = "64"  # of 8 kB
# Folders with the longest files first, so that no process waits for another at the end.
LONGEST = ("faults", "acceptance", "executor", "simulation", "interleavings", "schedules", "unit", "engine", "browser")


@pytest.fixture
def options(settings: Any) -> Options:
    """Change OPTIONS of the backends."""

    def options(**changes: Any) -> None:
        settings.TASKS = {
            alias: {**backend, "OPTIONS": {**backend["OPTIONS"], **changes}}
            for alias, backend in settings.TASKS.items()
        }

    return options


@pytest.fixture
def own_registry() -> Iterator[None]:
    """Forget the tasks that a test declares at its end."""
    late = {*function.late}
    with patch.dict(function.declared):
        yield
    function.late.intersection_update(late)
    function.duplicates.clear()
    function.invalid_declarations.problems.clear()


@pytest.fixture
def own_schedules(own_registry: None) -> Iterator[list[declared_schedules.Declaration]]:
    """Start without schedules, and forget those that a test declares at its end."""
    with patch.object(declared_schedules, "declared", list[declared_schedules.Declaration]()) as declared:
        yield declared


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    django_db_modify_db_settings_parallel_suffix: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Set the databases. pytest-django calls this between reading the settings and creating the databases."""
    default, sqlite = settings.DATABASES["default"], settings.DATABASES["sqlite"]
    sqlite["NAME"] = sqlite["TEST"]["NAME"] = str(tmp_path_factory.mktemp("sqlite") / "tests.sqlite3")
    # Two runs against one DATABASE_URL must not drop each other's database.
    default["TEST"]["NAME"] = f"test_{default['NAME']}_{os.getpid()}"
    if "DATABASE_URL" in os.environ:
        yield
        return
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]  # PGSERVICE and others may name another server
    more = (
        {"max_notify_queue_pages": FEW_PAGES} if int(major_version()) >= 17 else {}
    )  # a notification queue that a test can fill
    with throwaway_cluster(fsync="off", synchronous_commit="off", full_page_writes="off", **more) as cluster:
        default.update(cluster.database("jobqueue"), OPTIONS={})
        yield


@pytest.fixture(scope="session", autouse=True)
def tables_are_emptied_cheaply() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch_flush(patch)
        yield


@pytest.fixture(scope="session")
def process_environment(django_db_setup: None) -> dict[str, str]:
    """The environment for `python manage.py ...` on the databases of this session."""
    return os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "DATABASE_URL": database_url(settings.DATABASES["default"]),
        "SQLITE_PATH": str(settings.DATABASES["sqlite"]["NAME"]),
        "PYTHONPATH": str(Path(__file__).parent.parent),
    }


@pytest.fixture
def fleet(transactional_db: None, process_environment: dict[str, str]) -> Iterator["Fleet"]:
    """Executors on the database of the test run. They end before its rows are deleted."""
    from tests.acceptance.harness import fleet_of  # it imports models

    with fleet_of(process_environment) as fleet:
        yield fleet


@pytest.fixture
def private_cluster() -> Iterator[Cluster]:
    """A durable server of the test's own, to kill and restart, even with DATABASE_URL."""
    with throwaway_cluster(fsync="on", log_lock_waits="on", deadlock_timeout="100ms") as cluster:
        yield cluster


def pytest_configure() -> None:
    """Restore Ctrl-C. A shell that runs the tests in the background makes them ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, None, None]:
    """Collect without garbage collection, which would find nothing and take two seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests marked `alone` first, then the folders with the longest tests."""
    items.sort(key=lambda item: (not is_alone(item), [*LONGEST, item.path.parent.name].index(item.path.parent.name)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    with room_for(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Replace characters that UTF-8 cannot encode. Parallel test processes send their reports as UTF-8."""
    report = yield
    report.sections = [(name, text.encode("utf-8", "backslashreplace").decode()) for name, text in report.sections]
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how many orders, restarts and simulations ran."""
    reports = [report for group in terminalreporter.stats.values() for report in group]
    properties = [
        pair for report in reports if getattr(report, "when", "") == "call" for pair in report.user_properties
    ]
    if orders := [value for name, value in properties if name == "orders"]:
        whole = sum(is_whole for _, is_whole in orders)
        count = sum(count for count, _ in orders)
        terminalreporter.write_line(
            f"{count:,} orders of {len(orders)} races ran; of {whole} races every kind of order"
        )
    for title, count, *seconds in (value for name, value in properties if name == "restarts"):
        p50, p99, longest = (f"{value:.1f}" for value in seconds)
        terminalreporter.write_line(f"{title}: {count} restarts, {p50} / {p99} / {longest} s (p50 / p99 / longest)")
    for count, moves in (value for name, value in properties if name == "plays"):
        terminalreporter.write_line(f"{count:,} simulations, {moves:,} moves")
    for years, engine, enqueued, skipped, crashes in (value for name, value in properties if name == "years"):
        terminalreporter.write_line(
            f"{engine}: {years} years of schedules, {enqueued:,} ticks enqueued, {skipped:,} skipped, {crashes} crashes"
        )
    for verb, wrong, by, problem, after in sorted(value for name, value in properties if name == "caught"):
        terminalreporter.write_line(f"caught  {verb:10} {by:42} {after:>20}  {problem}: {wrong}")


def database_url(database: dict[str, Any]) -> str:
    """Convert an entry of DATABASES to a URL for a child process."""
    user, password = quote(database["USER"], safe=""), quote(database["PASSWORD"], safe="")
    options = {"host": database["HOST"], "port": str(database["PORT"]), **database["OPTIONS"]}
    login = f"{user}:{password}" if password else user
    query = urlencode({key: value for key, value in options.items() if value != ""}, quote_via=quote)
    return f"postgresql://{login}@/{quote(database['NAME'])}?{query}"
