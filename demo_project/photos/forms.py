from __future__ import annotations

from typing import Any

from django import forms
from django.core.files.uploadedfile import UploadedFile
from django.template.defaultfilters import filesizeformat

from demo_project.photos.fibonacci import LARGEST

LARGEST_FILE = 64 * 1024 * 1024


class PhotosInput(forms.ClearableFileInput):
    allow_multiple_selected = True


class PhotosField(forms.FileField):
    """A field with several files. FileField checks each of them."""

    widget = PhotosInput

    def clean(self, data: Any, initial: Any = None) -> list[UploadedFile[Any]]:
        files = data if isinstance(data, list | tuple) and data else [data]
        cleaned = [super(PhotosField, self).clean(file, initial) for file in files]
        for file in cleaned:
            if file.size > LARGEST_FILE:
                raise forms.ValidationError(
                    "%(name)s is too large: we take files up to %(limit)s.",
                    params={"name": file.name, "limit": filesizeformat(LARGEST_FILE)},
                )
        return cleaned


class UploadForm(forms.Form):
    # The tasks check whether the files are pictures, so that a visitor does not wait for a decoder.
    photos = PhotosField(
        widget=PhotosInput(attrs={"accept": "image/*", "aria-describedby": "photos-help"}),
        error_messages={
            "required": "Choose at least one photo.",
            "empty": "One of the files is empty.",
        },
    )


class FibonacciForm(forms.Form):
    n = forms.TypedChoiceField(
        choices=[(n, f"fib({n})") for n in range(1, LARGEST + 1)], coerce=int, initial=9, label="Number"
    )
    pace = forms.ChoiceField(choices=[("slow", "slowly, to watch it grow"), ("quick", "as fast as possible")])
