"""`manage.py jobqueue`: each verb is a function of the console, which writes, and the flags, read by `arguments`."""
