from django.contrib import admin
from django.templatetags.static import static
from django.urls import include, path
from django.views.generic import RedirectView

urlpatterns = [
    path("favicon.ico", RedirectView.as_view(url=static("photos/icon.svg"))),
    path("admin/", admin.site.urls),
    path("jobqueue/", include("jobqueue.urls")),
    path("", include("demo_project.photos.urls")),
]
