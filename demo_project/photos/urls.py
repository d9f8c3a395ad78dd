from django.urls import path

from demo_project.photos import views, webhook

app_name = "photos"
urlpatterns = [
    path("", views.index, name="gallery"),
    path("live/", views.live, name="live"),
    path("photos/<uuid:photo_id>/thumbnail/", views.thumbnail, name="thumbnail"),
    path("albums/", views.album_list, name="albums"),
    path("albums/<uuid:album_id>/", views.album, name="album"),
    path("albums/<uuid:album_id>/live/", views.album_live, name="album-live"),
    path("albums/<uuid:album_id>/decide/", views.decide, name="decide"),
    path("albums/<uuid:album_id>/contact-sheet/", views.contact_sheet, name="contact-sheet"),
    path("fibonacci/", views.fibonacci_index, name="fibonacci"),
    path("fibonacci/<uuid:task_id>/", views.fibonacci_tree, name="fibonacci-tree"),
    path("experiments/", views.experiment, name="experiment"),
    path("webhook/", webhook.webhook, name="webhook"),
    path("followers/<int:number>/", webhook.follower, name="follower"),
]
