"""Log lines as a site's collector gets them; apart, since settings name it before any model may be imported."""

import json
import logging


class AsJson(logging.Formatter):
    STANDARD = set(vars(logging.makeLogRecord({})))

    def format(self, record: logging.LogRecord) -> str:
        extra = {key: value for key, value in vars(record).items() if key not in self.STANDARD}
        return json.dumps({"level": record.levelname, "message": record.getMessage(), **extra}, default=str)
