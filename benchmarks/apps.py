"""The app of the measured site."""

from django.apps import AppConfig

from benchmarks import claims


class BenchmarksConfig(AppConfig):
    name = "benchmarks"

    def ready(self) -> None:
        claims.record_if_asked()
