"""What a process of the pool begins with: nothing here imports models, which needs Django to be set up."""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

import django

if TYPE_CHECKING:
    from jobqueue.engine.base import Engine
    from tests.interleavings.orders import Explored, Plan


def set_up(environment: Mapping[str, str]) -> None:
    os.environ.update(environment)
    django.setup()
    gc.freeze()
    gc.set_threshold(50_000)  # collecting what Django has loaded took an eighth of the time


def run(scenario: str, kind: type[Engine], plan: Plan) -> Explored:
    from tests.interleavings import runner

    return runner.run(scenario, kind, plan)
