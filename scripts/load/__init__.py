"""The site that the load test loads."""
