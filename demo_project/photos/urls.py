from django.urls import path

from demo_project.photos import views, webhook

app_name = "photos"
urlpatterns = [
    path("", views.index, name="gallery"),
    path("live/", views.live, name="live"),
    path("photos/<uuid:photo_id>/thumbnail/", views.thumbnail, name="thumbnail"),
    path("experiments/", views.experiment, name="experiment"),
    path("webhook/", webhook.webhook, name="webhook"),
    path("followers/<int:number>/", webhook.follower, name="follower"),
]
