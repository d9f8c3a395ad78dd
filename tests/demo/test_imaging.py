from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image
from PIL.ExifTags import Base

from demo_project.photos import imaging
from tests.demo.pictures import picture

pytestmark = pytest.mark.slow

SAMPLE = Path(imaging.__file__).parent.parent / "photos_sample"
GOOD = sorted(path for path in SAMPLE.iterdir() if path.name not in ("SOURCES.txt", "cut-off.jpg", "shopping-list.jpg"))


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.name)
def test_every_good_sample_gives_a_thumbnail_and_facts(path):
    data = path.read_bytes()

    small, facts = opened(imaging.thumbnail(data)), imaging.facts(data)

    assert max(small.size) <= imaging.THUMBNAIL_SIDE
    assert small.width / small.height == pytest.approx(facts.width / facts.height, rel=0.02)


def test_sources_name_every_sample():
    sources = (SAMPLE / "SOURCES.txt").read_text()

    assert [path.name for path in SAMPLE.iterdir() if path.name not in sources] == ["SOURCES.txt"]


def test_rotated_picture_is_turned_upright():
    exif = Image.Exif()
    exif[Base.Orientation] = 6
    data = picture((60, 40), exif=exif)

    assert opened(imaging.thumbnail(data)).size == (40, 60)
    assert (imaging.facts(data).width, imaging.facts(data).height) == (40, 60)


@pytest.mark.parametrize(("count", "columns", "rows"), [(1, 1, 1), (2, 2, 1), (5, 3, 2), (6, 3, 2), (13, 5, 3)])
def test_contact_sheet_has_a_cell_for_each_picture(count, columns, rows):
    (wide, high), gap = imaging.CELL, imaging.GAP

    data, size = imaging.contact_sheet([lambda: picture((40, 30), colour="#ff0000")] * count)

    sheet = opened(data)
    assert sheet.size == size == (columns * (wide + gap) + gap, rows * (high + gap) + gap)
    cells = [(gap + x * (wide + gap), gap + y * (high + gap)) for y in range(rows) for x in range(columns)]
    reds = sheet.getchannel("R")
    lit = [max(reds.crop((left, top, left + wide, top + high)).tobytes()) for left, top in cells]
    assert [brightest > 200 for brightest in lit] == [True] * count + [False] * (columns * rows - count)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "empty"),
        (b"just words", "not a picture"),
        ((SAMPLE / "cut-off.jpg").read_bytes(), "ends too early"),
        ((SAMPLE / "shopping-list.jpg").read_bytes(), "not a picture"),
    ],
)
@pytest.mark.parametrize("look", [imaging.thumbnail, imaging.facts])
def test_bad_file_is_refused_with_a_reason(look, data, reason):
    with pytest.raises(imaging.Unreadable, match=reason):
        look(data)


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "GIF", "TIFF", "WEBP"])
def test_cut_off_file_of_any_format_is_unreadable_or_whole(file_format):
    out = io.BytesIO()
    Image.effect_noise((200, 200), 60).convert("RGB").save(out, file_format)
    data = out.getvalue()

    for share in (0.05, 0.3, 0.6, 0.9):
        with pytest.raises(imaging.Unreadable):
            imaging.thumbnail(data[: int(len(data) * share)])


def test_decompression_bomb_is_refused_before_it_is_decoded():
    bomb = picture((12_000, 12_000), mode="1", colour=1, file_format="PNG")

    with pytest.raises(imaging.Unreadable, match="too large: we take up to 120 megapixels"):
        imaging.thumbnail(bomb)
