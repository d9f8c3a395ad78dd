"""compose.yaml, the Dockerfile and docs/deploy.md: each command, flag, variable and path in them exists."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from configparser import ConfigParser
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml
from django.core.management import get_commands, load_command_class
from django.test import Client
from django.urls import resolve

from jobqueue.executor.health.probes import parse_address
from jobqueue.executor.settings import ExecutorSettings
from tests.factories import ago, make_user
from tests.http.client import TaskFactory

CHECKOUT = Path(__file__).parents[2]
GUIDE = (CHECKOUT / "docs/deploy.md").read_text()
DOCKERFILE = (CHECKOUT / "Dockerfile").read_text()
COMPOSE = yaml.safe_load((CHECKOUT / "compose.yaml").read_text())["services"]
PROBES = ("/livez", "/readyz")
RELEASE_SECONDS = 5.0
PATIENCE_SECONDS = 600.0


def fenced(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


MANIFESTS = {value["kind"]: value for text in fenced("yaml") for value in yaml.safe_load_all(text)}
(UNIT,) = fenced("ini")
(PROCFILE,) = fenced("procfile")


def service() -> dict[str, str]:
    parser = ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(UNIT)
    return dict(parser["Service"])


def containers() -> Iterator[dict[str, Any]]:
    for manifest in MANIFESTS.values():
        if manifest["kind"] in ("Deployment", "Job"):
            yield from manifest["spec"]["template"]["spec"]["containers"]


def image_command() -> list[str]:
    (text,) = re.findall(r"^CMD (.*)$", DOCKERFILE, re.MULTILINE)
    command: list[str] = json.loads(text)
    return command


def commands() -> Iterator[list[str]]:
    yield image_command()
    for compose_service in COMPOSE.values():
        if "command" in compose_service:
            yield compose_service["command"]
    for container in containers():
        yield container["command"] + container.get("args", [])
    yield shlex.split(service()["ExecStart"])
    yield from (shlex.split(line.partition(": ")[2]) for line in PROCFILE.splitlines())
    prose = re.sub(r"^```.*?^```", "", GUIDE, flags=re.MULTILINE | re.DOTALL)
    for code in re.findall(r"`([^`]+)`", prose):
        words = shlex.split(code)
        if "manage.py" in words or words[0] in ("gunicorn", "run_executors"):
            yield words


def parse(name: str, arguments: Sequence[str]) -> Any:
    command = load_command_class(get_commands()[name], name)
    return command.create_parser("manage.py", name).parse_args(list(arguments))


def executor_flags(command: Sequence[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return parse("run_executors", command[command.index("run_executors") + 1 :])


@pytest.mark.parametrize("command", [*commands()], ids=shlex.join)
def test_command_and_its_flags_exist(command: list[str]) -> None:
    if "manage.py" in command:
        name, *arguments = command[command.index("manage.py") + 1 :]
        parse(name, arguments)
        return
    program, *arguments = command
    if program == "run_executors":
        parse(program, arguments)
    else:
        assert program == "gunicorn"
        pytest.importorskip("gunicorn.config").Config().parser().parse_args(arguments)


def test_commands_are_found_in_all_files() -> None:
    text = [shlex.join(command) for command in commands()]
    assert len(text) > 12
    for word in ("set_up_demo", "--health", "--shutdown-timeout 20s", "--processes 4", "--worker-tmp-dir", "doctor"):
        assert any(word in line for line in text), word


def test_jobqueue_variables_in_guide_are_flags() -> None:
    command = load_command_class("jobqueue", "run_executors")
    flags = set(re.findall(r"\[(JOBQUEUE_\w+)\]", re.sub(r"\s+", "", command.create_parser("", "").format_help())))
    assert "JOBQUEUE_HEALTH" in flags
    assert set(re.findall(r"JOBQUEUE_[A-Z_]+", GUIDE)) <= flags


def test_variables_in_compose_are_read_by_demo() -> None:
    sources = "".join(path.read_text() for path in (CHECKOUT / "demo_project").rglob("*.py"))
    for name in ("migrate", "web", "executors"):
        for variable in COMPOSE[name]["environment"]:
            assert f'"{variable}"' in sources, variable


def test_compose_health_checks_use_existing_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    *program, port, path = COMPOSE["web"]["healthcheck"]["test"]
    assert program == ["CMD", "python", "-m", "tools.probe"]
    assert f"0.0.0.0:{port}" in image_command()
    assert resolve(path, "demo_project.urls").url_name == "live"

    *program, port, path = COMPOSE["executors"]["healthcheck"]["test"]
    assert program == ["CMD", "python", "-m", "tools.probe"]
    assert executor_flags(COMPOSE["executors"]["command"], {}, monkeypatch).health.port == int(port)
    assert path in PROBES


def test_kubernetes_probes_reach_executor() -> None:
    (container,) = MANIFESTS["Deployment"]["spec"]["template"]["spec"]["containers"]
    (health,) = [entry["value"] for entry in container["env"] if entry["name"] == "JOBQUEUE_HEALTH"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    address = parse_address(health)
    assert address.host == "0.0.0.0"  # kubelet does not use loopback
    for probe, path in (("livenessProbe", "/livez"), ("readinessProbe", "/readyz")):
        get = container[probe]["httpGet"]
        assert (get["path"], ports[get["port"]]) == (path, address.port)


@pytest.mark.django_db(databases=["default", "sqlite"])
def test_scaler_reads_existing_metric(client: Client) -> None:
    (trigger,) = MANIFESTS["ScaledObject"]["spec"]["triggers"]
    assert trigger["authenticationRef"]["name"] == MANIFESTS["TriggerAuthentication"]["metadata"]["name"]
    assert MANIFESTS["ScaledObject"]["spec"]["scaleTargetRef"] == {"name": MANIFESTS["Deployment"]["metadata"]["name"]}
    assert all(isinstance(value, str) for value in trigger["metadata"].values())  # required by the schema of KEDA

    TaskFactory(queue_name="default", enqueued_at=ago(60))
    client.force_login(make_user(is_superuser=True))
    value = client.get(urlsplit(trigger["metadata"]["url"]).path).json()
    where = re.fullmatch(r'(\w+)\.#\((\w+)=="(\w+)"\)\.(\w+)', trigger["metadata"]["valueLocation"])
    assert where is not None
    matching = [entry for entry in value[where[1]] if entry[where[2]] == where[3]]
    assert 60 <= matching[0][where[4]] < 60 + PATIENCE_SECONDS


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


def test_stop_grace_exceeds_shutdown_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    unset = ExecutorSettings().shutdown_timeout
    assert seconds(COMPOSE["executors"]["stop_grace_period"]) >= unset + RELEASE_SECONDS
    assert seconds(service()["TimeoutStopSec"]) >= unset + RELEASE_SECONDS

    (worker,) = [line for line in PROCFILE.splitlines() if line.startswith("worker")]
    heroku = executor_flags(shlex.split(worker), {}, monkeypatch)
    assert heroku.shutdown_timeout + RELEASE_SECONDS <= 30

    pod = MANIFESTS["Deployment"]["spec"]["template"]["spec"]
    environment = {entry["name"]: entry["value"] for entry in pod["containers"][0]["env"]}
    kubernetes = executor_flags(pod["containers"][0]["command"], environment, monkeypatch)
    assert pod["terminationGracePeriodSeconds"] >= kubernetes.shutdown_timeout + RELEASE_SECONDS


def test_systemd_start_timeout_exceeds_connect_timeout() -> None:
    assert service()["Type"] == "notify"
    assert seconds(service()["TimeoutStartSec"]) > ExecutorSettings().connect_timeout


def test_compose_migrates_before_web_and_executors() -> None:
    assert COMPOSE["postgres"]["image"].startswith("postgres:18")
    for name in ("web", "executors"):
        assert COMPOSE[name]["depends_on"]["migrate"] == {"condition": "service_completed_successfully"}
    assert COMPOSE["migrate"]["depends_on"]["postgres"] == {"condition": "service_healthy"}
    assert COMPOSE["executors"]["deploy"]["replicas"] == 2


def test_image_copies_existing_files() -> None:
    ignored = (CHECKOUT / ".dockerignore").read_text().splitlines()
    admitted = [line[1:] for line in ignored if line.startswith("!")]
    copied = [
        source for line in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE) for source in line.split()
    ]
    assert len(copied) >= 7
    for source in copied:
        assert (CHECKOUT / source).exists(), source
        assert any(fnmatch(source, pattern) for pattern in admitted), source
    assert set(admitted) == set(copied)


def test_image_does_not_run_as_root() -> None:
    users = re.findall(r"^USER (\d+)$", DOCKERFILE, re.MULTILINE)
    assert users
    assert users[-1] != "0"


def test_links_in_guide_exist() -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", GUIDE):
        assert (CHECKOUT / "docs" / link).exists(), link
