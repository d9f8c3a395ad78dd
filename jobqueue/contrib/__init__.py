"""
Modules for sites that come from another queue, or run in another way. They use public names of this package only.

* `celery/`: Celery's interface on this queue, for the code of a site that leaves Celery
* `embedded`: run tasks in the process of a web server: on a small host, and while developing
* `middleware`: values that travel with a task: language, time zone, request id, and the tenant of django-tenants
"""
