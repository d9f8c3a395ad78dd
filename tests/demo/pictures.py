from __future__ import annotations

import io
from typing import Any

from PIL import Image


def picture(
    size: tuple[int, int] = (60, 40),
    *,
    colour: Any = "#c03020",
    mode: str = "RGB",
    file_format: str = "JPEG",
    **save: Any,
) -> bytes:
    """Return the bytes of a picture of one colour."""
    out = io.BytesIO()
    Image.new(mode, size, colour).save(out, file_format, **save)
    return out.getvalue()
