"""The form that sends a message to an actor."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from django import forms
from django.core.exceptions import ValidationError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobqueue.exceptions import InvalidArguments
from jobqueue.inspect.backends import options_of
from jobqueue.inspect.inbox import actor_of
from jobqueue.models import Task
from jobqueue.serialization.json import encode_message


class MessageForm(forms.Form):
    """A message. It must be JSON and a valid `Message` of the actor, because others fail its polls."""

    body = forms.CharField(
        label=gettext_lazy("Message"),
        strip=False,
        widget=forms.Textarea(attrs={"rows": 4, "class": "jq-json", "spellcheck": "false", "autocomplete": "off"}),
        error_messages={"required": gettext_lazy("A message is JSON. For an empty message write null.")},
    )

    def __init__(self, *args: Any, task: Task, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.task = task

    @property
    def schema(self) -> str:
        """Return the JSON Schema of the actor's `Message`, or nothing if it has none."""
        actor = actor_of(self.task)
        try:
            schema = msgspec.json.schema(actor.Message) if actor else None
        except (TypeError, ValueError, RuntimeError):  # some types have no schema
            return ""
        return json.dumps(schema, indent=2, ensure_ascii=False) if schema else ""

    def clean_body(self) -> Any:
        value = parse(self.cleaned_data["body"])
        try:
            text = encode_message(value, max_bytes=options_of(self.task.backend).max_payload_bytes)
        except InvalidArguments as error:
            raise ValidationError(str(error)) from error
        if actor := actor_of(self.task):
            try:
                actor.decode_body(text)
            except ValueError as error:
                words = _("Not a valid %(actor)s.Message: %(error)s")
                raise ValidationError(words % {"actor": actor.__name__, "error": error}) from error
        return value


def parse(text: str) -> Any:
    """Parse JSON. Raises ValidationError with line and column of the error."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        words = _('Not valid JSON: %(problem)s in line %(line)d, column %(column)d. Strings need quotes: "publish".')
        values = {"problem": error.msg, "line": error.lineno, "column": error.colno}
        raise ValidationError(words % values) from error
    except (ValueError, RecursionError) as error:
        raise ValidationError(_("Unreadable JSON: %(problem)s") % {"problem": error}) from error
