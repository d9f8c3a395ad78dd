from django.urls import include, path

urlpatterns = [path("jobqueue/", include("jobqueue.urls"))]
