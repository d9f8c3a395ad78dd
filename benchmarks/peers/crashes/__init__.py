"""Inject the same faults into this queue and two others, and count the results."""
