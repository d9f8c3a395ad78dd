"""The cause of a failure: task, exception class, and message without numbers and ids. It groups failures."""

from __future__ import annotations

import hashlib
import re

MESSAGE_CHARACTERS = 500
UUID = r"[0-9a-fA-F]{8}-?(?:[0-9a-fA-F]{4}-?){3}[0-9a-fA-F]{12}"
HEX = r"0x[0-9a-fA-F]+|\b(?=[0-9a-fA-F]*[0-9])(?=[0-9]*[a-fA-F])[0-9a-fA-F]{8,}\b"
VARYING = re.compile(rf"(?P<id>{UUID}|{HEX})|[0-9]+(?:[.,:][0-9]+)*")


def mask_message(message: str) -> str:
    """Return the first characters of a message, with … in place of ids and # in place of numbers."""
    text = VARYING.sub(lambda match: "…" if match["id"] else "#", message[: 2 * MESSAGE_CHARACTERS])
    return " ".join(text.split())[:MESSAGE_CHARACTERS]


def fingerprint(task_type: str, class_path: str, message: str) -> str:
    """Return the fingerprint of a failure: 16 hexadecimal digits."""
    text = "\0".join((task_type, class_path, mask_message(message)))
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:16]
