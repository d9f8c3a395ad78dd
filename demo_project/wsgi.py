"""The demo site for gunicorn."""

import os

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "demo_project.settings")
# A site of your own leaves its static files to a web server or to WhiteNoise.
application = StaticFilesHandler(get_wsgi_application())
