"""The commands of compose.yaml other than site and executors."""

from __future__ import annotations

import socket

import pytest
from django.contrib.auth import authenticate, get_user_model
from django.core.management import call_command

from jobqueue.executor.health.probes import Address, listen, serving
from jobqueue.executor.health.status import HealthProblem, HealthStatus
from tools import probe


@pytest.mark.django_db
def test_set_up_creates_admin_once_and_keeps_password(monkeypatch):
    monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", "first")
    call_command("set_up_demo", verbosity=0)
    monkeypatch.setenv("DJANGO_SUPERUSER_PASSWORD", "second")
    call_command("set_up_demo", verbosity=0)

    (user,) = get_user_model().objects.all()
    assert user.is_superuser
    assert authenticate(username="admin", password="first") == user


@pytest.mark.parametrize(("path", "code"), [("/livez", 0), ("/readyz", 1), ("/else", 1)])
def test_probe_exit_code_is_0_only_when_healthy(path, code, capsys):
    status = HealthStatus(unready=(HealthProblem("web.1", "It is stopping."),))
    with listen(Address("127.0.0.1", 0)) as listener, serving(listener, lambda: status):
        assert probe.main(str(listener.getsockname()[1]), path) == code
    assert ("It is stopping." in capsys.readouterr().out) == (path == "/readyz")


def test_probe_of_unused_port_fails(capsys):
    with socket.socket() as taken:  # another test may use the port by now
        taken.bind(("127.0.0.1", 0))

        assert probe.main(str(taken.getsockname()[1]), "/livez") == 1

    assert "refused" in capsys.readouterr().out
