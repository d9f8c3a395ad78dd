"""The demo site for gunicorn."""

import os

from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "demo_project.settings")
# In your own site, serve static files with a web server or WhiteNoise.
application = StaticFilesHandler(get_wsgi_application())
