"""The settings of an app: CELERY_... of the site, and what code sets in `app.conf`."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from django.conf import settings

DEFAULTS: Mapping[str, Any] = {
    "beat_schedule": {},
    "broker_url": "",
    "imports": (),
    "task_always_eager": False,
    "task_default_queue": None,
    "task_default_rate_limit": None,
    "task_eager_propagates": False,
    "task_ignore_result": False,
    "task_routes": None,
    "task_soft_time_limit": None,
    "task_time_limit": None,
    "task_track_started": False,
    "timezone": None,
}
# Names of Celery 3, which sites still have, and the time zone of Django, which Celery takes without one of its own.
OLD_NAMES: Mapping[str, str] = {
    "CELERYBEAT_SCHEDULE": "beat_schedule",
    "BROKER_URL": "broker_url",
    "CELERY_IMPORTS": "imports",
    "CELERY_ALWAYS_EAGER": "task_always_eager",
    "CELERY_DEFAULT_QUEUE": "task_default_queue",
    "CELERY_EAGER_PROPAGATES": "task_eager_propagates",
    "CELERY_EAGER_PROPAGATES_EXCEPTIONS": "task_eager_propagates",
    "CELERY_IGNORE_RESULT": "task_ignore_result",
    "CELERY_ROUTES": "task_routes",
    "CELERY_TIMEZONE": "timezone",
    "TIME_ZONE": "timezone",
}


class Conf:
    """Celery's `app.conf`: attributes and items. What code sets wins over the settings, which are read at each use."""

    def __init__(self) -> None:
        vars(self).update({"_own": {}, "_source": settings, "_prefix": "CELERY_"})

    def read_from(self, source: Any, namespace: str | None) -> None:
        """Take settings from an object or a module in place of Django's."""
        if isinstance(source, str):
            module = source.removeprefix("django.conf:")
            source = settings if module == "settings" else import_module(module)
        vars(self).update({"_source": source, "_prefix": f"{namespace}_" if namespace else ""})

    def __getitem__(self, name: str) -> Any:
        if name in self._own:
            return self._own[name]
        current = f"{self._prefix}{name.upper()}" if self._prefix else name
        old = [key for key, new in OLD_NAMES.items() if new == name]
        for key in (current, *old):
            if (value := _read(self._source, key)) is not None:
                return value
        return DEFAULTS[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        self._own[name] = value

    def __setattr__(self, name: str, value: Any) -> None:
        self._own[name] = value

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def get(self, name: str, default: Any = None) -> Any:
        """Return a setting, or the default."""
        try:
            return self[name]
        except KeyError:
            return default

    def update(self, *values: Mapping[str, Any], **more: Any) -> None:
        """Set several."""
        self._own.update(*values, **more)


def _read(source: Any, name: str) -> Any:
    return source.get(name) if isinstance(source, Mapping) else getattr(source, name, None)
