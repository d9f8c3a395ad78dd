from collections.abc import Iterator

import pytest

from tests.acceptance.harness import Fleet, fleet_of


@pytest.fixture
def fleet(transactional_db: None, process_environment: dict[str, str]) -> Iterator[Fleet]:
    """Executors on the tests' own database, ended before its rows are deleted."""
    with fleet_of(process_environment) as fleet:
        yield fleet
