from __future__ import annotations

from datetime import timedelta
from uuid import UUID

from django.contrib import messages
from django.core.files.storage import default_storage
from django.core.paginator import Paginator
from django.http import FileResponse, Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from demo_project.photos import gallery, tasks, uploads
from demo_project.photos.forms import UploadForm
from demo_project.photos.models import Photo

PHOTOS_PER_PAGE = 48


@require_http_methods(["GET", "HEAD", "POST"])
def index(request: HttpRequest) -> HttpResponse:
    """The gallery, and the form above it."""
    form = UploadForm()
    if request.method == "POST":
        form = UploadForm(request.POST, request.FILES)
        if form.is_valid():
            count = len(form.cleaned_data["photos"])
            uploads.receive(form.cleaned_data["photos"])
            messages.success(request, "1 photo received." if count == 1 else f"{count} photos received.")
            return redirect("photos:gallery")
    page = Paginator(Photo.objects.order_by("-uploaded_at", "id"), PHOTOS_PER_PAGE).get_page(request.GET.get("page"))
    cards, summary = gallery.cards(page), gallery.summary()
    is_busy = summary.is_busy or any(card.is_busy for card in cards)
    context = {"form": form, "page": page, "cards": cards, "summary": summary, "is_busy": is_busy}
    return render(request, "photos/gallery.html", context, status=422 if form.errors else 200)


@require_GET
@never_cache
def live(request: HttpRequest) -> HttpResponse:
    """The pieces of the gallery that a page asks for again: the summary and the cards it names."""
    try:
        wanted = [UUID(text) for text in request.GET.getlist("photo")[:PHOTOS_PER_PAGE]]
    except ValueError:
        raise Http404("No such photo.") from None
    cards = gallery.cards(Photo.objects.filter(pk__in=wanted))
    return render(request, "photos/_live.html", {"cards": cards, "summary": gallery.summary()})


@require_GET
def thumbnail(request: HttpRequest, photo_id: UUID) -> HttpResponseBase:
    """Only pictures that we made are served; what visitors uploaded may be anything."""
    photo = get_object_or_404(Photo.objects.exclude(thumbnail=""), pk=photo_id)
    try:
        file = default_storage.open(photo.thumbnail)
    except FileNotFoundError:
        raise Http404("The thumbnail is gone.") from None
    return FileResponse(file, content_type="image/webp", headers={"Cache-Control": "private, max-age=3600"})


@require_POST
def experiment(request: HttpRequest) -> HttpResponse:
    """Enqueue what no upload causes."""
    match request.POST.get("what"):
        case "failure":
            tasks.copy_to_old_archive.enqueue()
            said = "A task that always fails is on its way."
        case "report":
            soon = tasks.nightly_report.using(run_after=timezone.now() + timedelta(seconds=5))
            soon.enqueue(timezone.localdate().isoformat())
            said = "The report of today is due in 5 seconds."
        case _:
            return HttpResponse("There is no such experiment.", status=400)
    messages.success(request, said)
    return redirect("photos:gallery")
