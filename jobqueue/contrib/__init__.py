"""
Modules for sites that come from another queue, or run in another way. They use public names of this package only.

* `middleware`: values that travel with a task: language, time zone, request id, and the tenant of django-tenants
"""
