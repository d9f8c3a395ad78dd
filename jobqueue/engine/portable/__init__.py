"""Every verb on Django's ORM, correct on any database that Django supports."""
