"""manage.py jobqueue: the list of verbs, and what becomes of their errors."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser, no_translations
from django.db import DatabaseError

from jobqueue.conf.compat import InvalidTask
from jobqueue.exceptions import JobQueueError
from jobqueue.management.cli import (
    bulk,
    doctor,
    enqueue,
    executors,
    import_celery_beat,
    limits,
    listing,
    migrate_from,
    queues,
    schedules,
    show,
    status,
    tail,
    workflows,
)
from jobqueue.management.cli.console import EXIT_INTERRUPTED, Console, first_line
from jobqueue.management.cli.verbs import add_verbs

EXIT_PIPE = 141  # as a shell reports SIGPIPE
VERBS = (
    status.VERB,
    show.VERB,
    listing.VERB,
    tail.VERB,
    doctor.VERB,
    *bulk.VERBS,
    *queues.VERBS,
    executors.VERB,
    *enqueue.VERBS,
    schedules.VERB,
    limits.VERB,
    *workflows.VERBS,
    import_celery_beat.VERB,
    migrate_from.VERB,
)


class Command(BaseCommand):
    help = (
        "Show the queue and change it. 'jobqueue VERB --help' lists the options of a verb. Results go to stdout, "
        "messages to stderr. Exit codes: 0 success, 1 failure or an exceeded limit of status, 2 wrong usage, "
        "130 Ctrl-C."
    )
    requires_system_checks = ()  # `doctor` runs ours; a timer that runs each minute needs no warnings each minute

    def add_arguments(self, parser: CommandParser) -> None:
        add_verbs(parser, VERBS)

    @no_translations
    def handle(self, *args: Any, **options: Any) -> None:
        flags = Namespace(**options)
        try:
            flags.run(Console(self.stdout, self.stderr, flags.json), flags)
            self.stdout.flush()
        except BrokenPipeError:  # `| head` has read enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or Python complains when it flushes
            sys.exit(EXIT_PIPE)
        except (JobQueueError, InvalidTask, ImproperlyConfigured) as error:
            raise CommandError(" ".join(str(error).split())) from error
        except DatabaseError as error:
            raise CommandError(f"Database error: {first_line(error)} (run: manage.py jobqueue doctor)") from error
        except KeyboardInterrupt:
            raise CommandError("Interrupted.", returncode=EXIT_INTERRUPTED) from None
