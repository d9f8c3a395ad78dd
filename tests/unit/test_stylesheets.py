"""The stylesheets of the admin."""

import re
from pathlib import Path

STATIC = Path(__file__).parents[2] / "jobqueue" / "static" / "jobqueue"


def test_stylesheet_for_unfold_has_every_color_of_the_pages() -> None:
    """Unfold has no variables of Django's admin. Breadcrumbs have unfold's own template."""
    used = set(re.findall(r"var\((--[a-z-]+)\)", (STATIC / "admin.css").read_text()))
    theirs = set(re.findall(r"(--[a-z-]+):", (STATIC / "unfold.css").read_text()))
    own = set(re.findall(r"(--[a-z-]+):", (STATIC / "admin.css").read_text()))
    assert {name for name in used - theirs - own if not name.startswith("--breadcrumbs")} == set()
    assert {f"--jq-{name}" for name in ("ready", "failed", "running")} <= theirs
