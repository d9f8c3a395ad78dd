"""The site of the load test."""
