"""What `manage.py jobqueue` does and shows: data to stdout, talk to stderr."""
