"""Python imports this first where its folder is on PYTHONPATH: the clock of the day is TESTS_CLOCK_OFF seconds off."""

import datetime
import os
import time

OFF_SECONDS = int(os.environ["TESTS_CLOCK_OFF"])
real_time, real_time_ns, real_localtime, real_gmtime = time.time, time.time_ns, time.localtime, time.gmtime
RealDatetime = datetime.datetime


class WrongDatetime(RealDatetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "WrongDatetime":
        return cls.fromtimestamp(time.time(), tz)

    @classmethod
    def utcnow(cls) -> "WrongDatetime":
        return cls.fromtimestamp(time.time(), datetime.UTC).replace(tzinfo=None)

    @classmethod
    def today(cls) -> "WrongDatetime":
        return cls.now()


time.time = lambda: real_time() + OFF_SECONDS
time.time_ns = lambda: real_time_ns() + OFF_SECONDS * 10**9
time.localtime = lambda seconds=None: real_localtime(time.time() if seconds is None else seconds)
time.gmtime = lambda seconds=None: real_gmtime(time.time() if seconds is None else seconds)
datetime.datetime = WrongDatetime  # type: ignore[misc]
