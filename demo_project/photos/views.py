from __future__ import annotations

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.core.files.storage import default_storage
from django.core.paginator import Page, Paginator
from django.db.models import QuerySet
from django.http import FileResponse, Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST, require_safe

from demo_project.photos import albums, fibonacci, gallery, tasks, uploads
from demo_project.photos.forms import FibonacciForm, UploadForm
from demo_project.photos.models import Album, ContactSheet, Photo

PHOTOS_PER_PAGE = 48
RUNS_SHOWN = 8


@require_http_methods(["GET", "HEAD", "POST"])
def index(request: HttpRequest) -> HttpResponse:
    """Show the gallery and the upload form, and receive uploads."""
    form = UploadForm()
    if request.method == "POST":
        form = UploadForm(request.POST, request.FILES)
        if form.is_valid():
            count = len(form.cleaned_data["photos"])
            album = uploads.receive(form.cleaned_data["photos"])
            messages.success(request, "1 photo received." if count == 1 else f"{count} photos received.")
            return redirect(album)
    page = paginated(Photo.objects.select_related("album").order_by("-uploaded_at", "id"), request)
    cards, summary = gallery.cards(page), gallery.summary()
    is_busy = summary.is_busy or any(card.is_busy for card in cards)
    context = {"form": form, "page": page, "cards": cards, "summary": summary, "is_busy": is_busy}
    return render(request, "photos/gallery.html", context, status=422 if form.errors else 200)


def paginated(rows: QuerySet[Any], request: HttpRequest) -> Page[Any]:
    return Paginator(rows, PHOTOS_PER_PAGE).get_page(request.GET.get("page"))


def asked_for(request: HttpRequest) -> QuerySet[Photo]:
    """Return the photos that the page asks to update."""
    try:
        wanted = [UUID(text) for text in request.GET.getlist("photo")[:PHOTOS_PER_PAGE]]
    except ValueError:
        raise Http404("No such photo.") from None
    return Photo.objects.select_related("album").filter(pk__in=wanted)


@require_GET
@never_cache
def live(request: HttpRequest) -> HttpResponse:
    """Render the parts of the gallery that a page updates: the summary and the requested cards."""
    cards = gallery.cards(asked_for(request))
    return render(request, "photos/_live.html", {"cards": cards, "summary": gallery.summary()})


@require_safe
def album_list(request: HttpRequest) -> HttpResponse:
    page = paginated(Album.objects.select_related("contact_sheet").prefetch_related("photos"), request)
    return render(request, "photos/albums.html", {"page": page})


@require_safe
@never_cache
def album(request: HttpRequest, album_id: UUID) -> HttpResponse:
    stand = albums.stand(get_object_or_404(Album, pk=album_id))
    page = paginated(stand.album.photos.order_by("uploaded_at", "name", "id"), request)
    return render(request, "photos/album.html", {"stand": stand, "cards": gallery.cards(page), "page": page})


@require_GET
@never_cache
def album_live(request: HttpRequest, album_id: UUID) -> HttpResponse:
    stand = albums.stand(get_object_or_404(Album, pk=album_id))
    cards = gallery.cards(asked_for(request).filter(album=stand.album))
    return render(request, "photos/_album_live.html", {"stand": stand, "cards": cards})


@require_POST
def decide(request: HttpRequest, album_id: UUID) -> HttpResponse:
    """Send the visitor's decision to the album's actor."""
    album = get_object_or_404(Album, pk=album_id)
    try:
        is_accepted, text = albums.decide(album, request.POST.get("what", ""))
    except KeyError:
        return HttpResponse("Unknown decision. Use publish or discard.", status=400)
    messages.add_message(request, messages.SUCCESS if is_accepted else messages.WARNING, text)
    return redirect(album)


@require_safe
def contact_sheet(request: HttpRequest, album_id: UUID) -> HttpResponseBase:
    return picture(get_object_or_404(ContactSheet, album=album_id).path)


@require_http_methods(["GET", "HEAD", "POST"])
def fibonacci_index(request: HttpRequest) -> HttpResponse:
    """Start a tree, or show a list of trees."""
    form = FibonacciForm(request.POST if request.method == "POST" else None)
    if form.is_valid():
        return redirect("photos:fibonacci-tree", fibonacci.start(**form.cleaned_data))
    context = {"form": form, "runs": fibonacci.runs()[:RUNS_SHOWN]}
    return render(request, "photos/fibonacci.html", context, status=422 if form.errors else 200)


@require_safe
@never_cache
def fibonacci_tree(request: HttpRequest, task_id: UUID) -> HttpResponse:
    """Show the tree. With `?live`, render only the parts that a page updates."""
    tree = fibonacci.tree(get_object_or_404(fibonacci.runs(), pk=task_id))
    context = {"tree": tree, "form": FibonacciForm(), "runs": fibonacci.runs()[:RUNS_SHOWN]}
    page = "photos/_fibonacci_live.html" if "live" in request.GET else "photos/fibonacci.html"
    return render(request, page, context)


@require_safe
def thumbnail(request: HttpRequest, photo_id: UUID) -> HttpResponseBase:
    return picture(get_object_or_404(Photo.objects.exclude(thumbnail=""), pk=photo_id).thumbnail)


def picture(path: str) -> HttpResponseBase:
    """Serve a picture that a task created. Uploaded files are never served: they may be unsafe."""
    try:
        file = default_storage.open(path)
    except FileNotFoundError:
        raise Http404("The picture was removed.") from None
    return FileResponse(file, content_type="image/webp", headers={"Cache-Control": "private, max-age=3600"})


@require_POST
def experiment(request: HttpRequest) -> HttpResponse:
    """Enqueue a task that no upload enqueues."""
    match request.POST.get("what"):
        case "failure":
            tasks.copy_to_old_archive.enqueue()
            text = "A task that always fails was enqueued."
        case "report":
            tasks.report_soon()
            text = "The report of today is due in 5 seconds."
        case _:
            return HttpResponse("Unknown experiment. Use failure or report.", status=400)
    messages.success(request, text)
    return redirect("photos:gallery")
