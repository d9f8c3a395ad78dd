from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from demo_project import account
from demo_project.photos.actors import Fibonacci, Publish
from demo_project.photos.models import Album, Photo
from jobqueue import send
from jobqueue.models import Task
from jobqueue.testing import run_until_idle
from tests.demo.pictures import picture
from tools import processes

pytestmark = pytest.mark.slow


def written(folder: Path, *names: str, data: bytes | None = None) -> list[Path]:
    for name in names:
        (folder / name).write_bytes(picture() if data is None else data)
    return [folder / name for name in names]


def test_taken_port_is_skipped():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]

        assert processes.free_port(port) != port


@pytest.mark.django_db
def test_admin_of_the_embedded_database_has_the_printed_password(monkeypatch, client):
    monkeypatch.delenv("DATABASE_URL", raising=False)

    assert [processes.admin_password() for _ in range(2)] == ["admin", "admin"]
    assert client.login(username="admin", password="admin")


@pytest.mark.django_db
def test_own_database_gets_no_default_password(monkeypatch, client):
    monkeypatch.setenv("DATABASE_URL", "postgresql://elsewhere")

    password = processes.admin_password()

    assert client.login(username="admin", password=password)
    assert password != "admin"
    assert processes.admin_password() is None


@pytest.mark.django_db
class TestAccount:
    def test_complete_album_with_photos_is_published(self, make_album):
        run = account.Run(began=account.database_time())
        good, bad = make_album(picture()), make_album(b"no picture")
        assert not run.to_publish()
        assert run.unfinished() == {"ready": 2}

        run_until_idle()

        assert list(run.to_publish()) == [good]
        assert list(run.waiting()) == [Task.objects.get(pk=str(good.task_id))]
        assert list(account.complaints_about_album(bad, good=0)) == [
            f"The {bad} is GATHERING, not WAITING.",
        ]

    def test_missing_contact_sheet_is_a_complaint(self, make_album):
        album = make_album(picture())
        send(album.task_id, Publish())
        run_until_idle()
        album.refresh_from_db()
        album.contact_sheet.delete()

        (complaint,) = account.complaints_about_album(album, 1)

        assert complaint.endswith("has 1 photos to show, and none on its contact sheet.")

    def test_tree_with_a_missing_task_is_a_complaint(self):
        Fibonacci.enqueue(4)
        run_until_idle()
        nodes = list(Task.objects.order_by("pk"))
        assert list(account.complaints_about_tree(nodes)) == []

        assert list(account.complaints_about_tree(nodes[:-1])) == ["fib(4) is 3, by 4 actors: SUCCESSFUL"]


@pytest.mark.parametrize(("folder", "complaint"), [("", "There are no files"), ("nowhere", "There is no folder")])
def test_demo_refuses_a_folder_without_photos(tmp_path, folder, complaint):
    written(tmp_path, "SOURCES.txt", ".hidden")

    with pytest.raises(CommandError, match=complaint):
        call_command("demo", photos=tmp_path / folder)


@pytest.mark.django_db(transaction=True)
def test_demo_runs_to_its_end_with_real_processes(process_environment, tmp_path):
    photos = tmp_path / "my photos"
    photos.mkdir()
    written(photos, 'good "one".jpg', "second.jpg")
    written(photos, "bad.jpg", data=b"no picture")
    environment = {"DJANGO_SETTINGS_MODULE": "demo_project.settings", "DEMO_FOLDER": str(tmp_path / "demo")}

    demo = subprocess.run(
        [sys.executable, "manage.py", "demo", "--photos", str(photos), "--patience", "30"],
        env=process_environment | environment,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )

    assert demo.returncode == 0, demo.stdout + demo.stderr
    assert demo.stdout.splitlines()[-1].endswith("make serve")
    assert "2 photos are done, 1 bad one failed with a reason, and so did the task that always fails" in demo.stdout
    assert "1 published; 2 photos on 1 contact sheet\n" in demo.stdout
    assert "fib(10) = 55, by 109 actors" in demo.stdout
    assert "nightly-report  At 02:00, UTC " in demo.stdout
    assert "probe-archive   Every 10 seconds " in demo.stdout
    assert Photo.objects.exclude(thumbnail="").count() == 2
    assert Album.objects.get().state == Album.State.PUBLISHED
