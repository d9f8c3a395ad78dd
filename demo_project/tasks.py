"""The schedules of the demo. The tests of the photo app run without them."""

from __future__ import annotations

from demo_project.photos.tasks import PROBE_SECONDS, check_files, nightly_report, probe_archive
from jobqueue import Cron, Every, schedule

schedule("nightly-report", nightly_report, Cron("0 2 * * *"))
schedule("check-files", check_files, Every(minutes=1))
schedule("probe-archive", probe_archive, Every(seconds=PROBE_SECONDS))
