from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from django.conf import settings
from django.core.files.uploadedfile import SimpleUploadedFile
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection
from django.template.defaultfilters import pluralize

from demo_project import account
from demo_project.photos import albums, fibonacci, imaging, tasks, uploads
from demo_project.photos.forms import LARGEST_FILE
from demo_project.photos.models import Photo
from tools.processes import HOST, Processes, admin_password, database, free_port, interruptible, only_demo
from tools.progress import ProgressLine

SAMPLE = Path(__file__).resolve().parents[3] / "photos_sample"
FIBONACCI = 10
PHOTOS_OF_ALBUM = 6
MEANT_TO_FAIL = {"cut-off.jpg", "shopping-list.jpg"}


class Command(BaseCommand):
    help = "Save photographs as the demo site does, let executors do the work, and show what happened."
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--photos", type=Path, default=SAMPLE, metavar="FOLDER", help="use your own photographs")
        parser.add_argument(
            "--patience",
            type=float,
            default=90,
            metavar="SECONDS",
            help="stop with an error when no task ends for this long (90)",
        )

    def handle(self, *args: Any, photos: Path, patience: float, **options: Any) -> None:
        paths = self.choose(photos)
        with interruptible():
            try:
                self.run(paths, patience)
            except KeyboardInterrupt:
                raise CommandError("Interrupted.", returncode=130) from None
        self.stdout.write("\nTo look at the site and the admin, run:  make serve")

    def choose(self, folder: Path) -> list[Path]:
        """Return the files of a folder. Print each file that is left out, with the reason."""
        if not folder.is_dir():
            raise CommandError(f"There is no folder {folder}.")
        paths = []
        for path in sorted(folder.iterdir()):
            if path.is_dir() or path.name.startswith(".") or path.name == "SOURCES.txt":
                continue
            size = path.stat().st_size
            if 0 < size <= LARGEST_FILE:
                paths.append(path)
            else:
                self.stdout.write(f"Left out: {path.name} ({'empty' if size == 0 else 'larger than the site allows'})")
        if not paths:
            raise CommandError(f"There are no files in {folder}.")
        return paths

    def run(self, paths: list[Path], patience: float) -> None:
        self.stdout.write("Starting the database, the site and the executors ...")
        with only_demo(self.stdout.write), database(), Processes(f"http://{HOST}:{free_port()}") as processes:
            admin_password()
            processes.start_executors()
            processes.start_site()
            processes.wait_for_executors()
            run = account.Run(began=account.database_time())
            self.enqueue(paths)
            self.wait(run, processes, patience)
            codes = processes.stop()
            self.report(run, processes, paths)
            if codes["executors"] != 0:
                log = processes.tail("executors")
                raise CommandError(f"The executors ended with exit code {codes['executors']}:\n{log}")

    def enqueue(self, paths: list[Path]) -> None:
        for at in range(0, len(paths), PHOTOS_OF_ALBUM):
            batch = paths[at : at + PHOTOS_OF_ALBUM]
            uploads.receive([SimpleUploadedFile(path.name, path.read_bytes()) for path in batch])
        tasks.copy_to_old_archive.enqueue()
        tasks.report_soon()
        fibonacci.start(FIBONACCI, "quick")
        megabytes = sum(path.stat().st_size for path in paths) / 1e6
        self.stdout.write(f"Uploaded {counted(len(paths), 'photo')}, {megabytes:.1f} MB.")

    def wait(self, run: account.Run, processes: Processes, patience: float) -> None:
        """Publish each album as soon as it asks for a decision. Return when no task is left that can run."""
        progress = ProgressLine(sys.stdout)
        published: set[UUID] = set()
        most_done, deadline = -1, 0.0
        while unfinished := run.unfinished():
            processes.check()
            for album in run.to_publish().exclude(pk__in=published):
                albums.decide(album, "publish")
                published.add(album.pk)
            total = run.tasks.count()
            done = total - sum(unfinished.values())
            if done > most_done:
                most_done, deadline = done, time.monotonic() + patience
            if time.monotonic() > deadline:
                raise CommandError(self.stuck(run, processes, patience))
            words = ", ".join(f"{count} {status}" for status, count in sorted(unfinished.items()))
            progress.show(done, total, words)
            time.sleep(0.2)
        progress.finish("All tasks that can run have ended.")

    def stuck(self, run: account.Run, processes: Processes, patience: float) -> str:
        left = "\n".join(f"  {task.status:<10} {task}" for task in run.waiting()[:20])
        log = processes.tail("executors")
        return f"No task has ended for {patience:.0f} s. Remaining tasks:\n{left}\nEnd of the executors' log:\n{log}"

    def report(self, run: account.Run, processes: Processes, paths: list[Path]) -> None:
        self.stdout.write("")
        for line in account.report_lines(run):
            self.stdout.write(line)
        self.stdout.write("\nWhere the results are")
        server = connection.settings_dict
        for name, address in {
            "rows": f"table jobqueue_task, database {server['NAME']} at {server['HOST'] or 'localhost'}",
            "pictures": str(settings.MEDIA_ROOT),
            "logs": str(processes.logs),
        }.items():
            self.stdout.write(f"  {name:<9} {address}")
        is_picture = is_good_sample if paths[0].parent == SAMPLE else is_readable
        if wrong := list(account.complaints(run, len(paths), is_picture)):
            raise CommandError("The results are wrong:\n  " + "\n  ".join(wrong))
        bad = sum(not is_picture(photo) for photo in run.photos)
        self.stdout.write(
            f"\nAll results are right: {how_they_fared(len(paths) - bad, bad)};\n"
            f"the albums are published with their contact sheets, and fib({FIBONACCI}) is correct."
        )


def counted(count: int, noun: str) -> str:
    return f"{count} {noun}{pluralize(count)}"


def how_they_fared(good: int, bad: int) -> str:
    done = f"{counted(good, 'photo')} {pluralize(good, 'is,are')} done"
    if not bad:
        return f"{done}, none was bad, and what failed is the task that always fails"
    return f"{done}, {counted(bad, 'bad one')} failed with a reason, and so did the task that always fails"


def is_good_sample(photo: Photo) -> bool:
    return photo.name not in MEANT_TO_FAIL


def is_readable(photo: Photo) -> bool:
    """Return whether a file of the user is a picture, without its task."""
    try:
        with photo.original.open() as file:
            imaging.facts(file.read())
    except imaging.Unreadable:
        return False
    return True
