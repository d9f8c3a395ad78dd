"""The permissions that the site's users can be given."""

from __future__ import annotations

from pathlib import Path

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission

import jobqueue

PACKAGE = Path(jobqueue.__file__).parent


@pytest.mark.django_db
def test_every_permission_means_something() -> None:
    code = "".join(
        path.read_text(encoding="utf-8")
        for path in PACKAGE.rglob("*.py")
        if "migrations" not in path.parts and not path.name.endswith("models.py")
    )
    pages = {f"view_{model._meta.model_name}" for model in admin.site._registry}
    offered = Permission.objects.filter(content_type__app_label="jobqueue").values_list("codename", flat=True)
    assert len(offered) > 15
    by_action = {f"{action}_task" for action in ("requeue", "cancel", "wake", "delete")}
    unused = [name for name in offered if name not in pages | by_action and f"{name}" not in code]
    assert unused == []
