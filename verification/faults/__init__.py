"""Test the promise: kill, freeze and disconnect real processes and servers, then check the history."""
