"""A site whose tasks are run by django-tasks-db."""
