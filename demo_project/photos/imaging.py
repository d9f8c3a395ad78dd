"""Functions on the bytes of a picture. They use neither the database nor the queue."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.ExifTags import Base

MAX_PIXELS = 120_000_000
TOO_LARGE = "The picture is too large: we take up to 120 megapixels."
THUMBNAIL_SIDE = 640
CELL, GAP = (280, 210), 14  # of a contact sheet
# Pillow warns above this limit and refuses twice as many pixels. `opened` refuses above the limit.
Image.MAX_IMAGE_PIXELS = MAX_PIXELS

# Exceptions of Pillow's decoders on broken files. They read memory, so an OSError never comes from the disk.
BROKEN = (OSError, SyntaxError, ValueError, EOFError, IndexError, KeyError, TypeError, struct.error)


class Unreadable(Exception):
    """The file cannot be read as a picture. The message is shown to the visitor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about a picture. All values can be stored as JSON."""

    width: int
    height: int
    file_format: str


@contextmanager
def opened(data: bytes) -> Iterator[Image.Image]:
    """
    Yield the picture with its header read, and its pixels not yet read.

    Raises Unreadable, also for errors in the pixels inside the `with` block.
    """
    if not data:
        raise Unreadable("The file is empty.")
    try:
        with Image.open(io.BytesIO(data)) as image:
            if image.width * image.height > MAX_PIXELS:
                raise Unreadable(TOO_LARGE)
            yield image
    except UnidentifiedImageError:
        raise Unreadable("This is not a picture in a format we know (JPEG, PNG, WebP, GIF, TIFF and others).") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise Unreadable(TOO_LARGE) from None
    except BROKEN as error:
        if "truncated" in str(error).lower():
            raise Unreadable(
                "The file ends too early: part of the picture is missing. Please upload it again."
            ) from error
        raise Unreadable(f"The picture is damaged and cannot be read ({error}).") from error


def upright(image: Image.Image, side: int) -> Image.Image:
    """Decode the picture, rotate it upright, and fit it into a square of `side` pixels."""
    image.draft(None, (2 * side, 2 * side))  # lets JPEG decode at a fraction of its size
    turned = eight_bit(ImageOps.exif_transpose(image))
    turned.thumbnail((side, side), Image.Resampling.LANCZOS)
    return turned


def eight_bit(image: Image.Image) -> Image.Image:
    """Convert to RGB, or RGBA where pixels may be transparent."""
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        lowest, highest = (float(bound) for bound in image.convert("F").getextrema())  # type: ignore[arg-type]
        if lowest >= 0 and highest <= 65535 and image.mode != "F":
            lowest, highest = 0.0, 65535.0
        scale = 255 / max(highest - lowest, 1e-9)
        image = image.convert("F").point(lambda value: value * scale - lowest * scale).convert("L")
    return image.convert("RGBA" if image.has_transparency_data else "RGB")


def thumbnail(data: bytes) -> bytes:
    """Return a small WebP of the picture. Raises Unreadable."""
    with opened(data) as image:
        small = upright(image, THUMBNAIL_SIDE)
    out = io.BytesIO()
    small.save(out, "WEBP", quality=82)
    return out.getvalue()


def contact_sheet(pictures: Sequence[Callable[[], bytes]]) -> tuple[bytes, tuple[int, int]]:
    """
    Arrange pictures on one sheet. Return it as WebP, with its width and height.

    pictures: functions that read one picture each, to save memory. Raises Unreadable.
    """
    columns = min(len(pictures), math.ceil(math.sqrt(len(pictures) * 4 / 3)))
    rows = math.ceil(len(pictures) / columns)
    wide, high = CELL
    sheet = Image.new("RGB", (columns * (wide + GAP) + GAP, rows * (high + GAP) + GAP), "#16181d")
    for at, read in enumerate(pictures):
        with opened(read()) as image:
            small = ImageOps.contain(image.convert("RGBA"), CELL, Image.Resampling.LANCZOS)
        left = GAP + at % columns * (wide + GAP) + (wide - small.width) // 2
        top = GAP + at // columns * (high + GAP) + (high - small.height) // 2
        sheet.paste(small, (left, top), small)
    out = io.BytesIO()
    sheet.save(out, "WEBP", quality=85)
    return out.getvalue(), sheet.size


def facts(data: bytes) -> Facts:
    """Return size and format of a picture, and decode it. Raises Unreadable."""
    with opened(data) as image:
        width, height = image.size
        if image.getexif().get(Base.Orientation, 1) in (5, 6, 7, 8):
            width, height = height, width
        image.load()
        return Facts(width=width, height=height, file_format=image.format or "")
