"""The manifest for Kubernetes: as hardened as the stack, and with time to start, to drain and to stop."""

import re

import yaml
from support.deploy import DEPLOY, ROOT, load_yaml

from bandrank.api.only_probes import PROBES
from bandrank.settings import Settings

DEPLOYMENT, SERVICE = yaml.safe_load_all((DEPLOY / "kubernetes.yml").read_text(encoding="utf-8"))
POD = DEPLOYMENT["spec"]["template"]["spec"]
[CONTAINER] = POD["containers"]
STACK = load_yaml(ROOT / "docker-compose.yml")["services"]["bandrank"]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def test_it_has_no_privileges() -> None:
    """The container runs as the image's user, has no capability, and writes to its two volumes alone."""
    pod, own = POD["securityContext"], CONTAINER["securityContext"]

    assert pod["runAsNonRoot"]
    assert f"{pod['runAsUser']}:{pod['runAsGroup']}" == STACK["user"]
    assert own["capabilities"]["drop"] == STACK["cap_drop"]
    assert (own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"]) == (False, True)
    written = {re.findall(r"^VOLUME (\S+)", DOCKERFILE, re.MULTILINE)[0], "/tmp"}  # noqa: S108
    assert {mount["mountPath"] for mount in CONTAINER["volumeMounts"]} == written


def test_it_is_given_time_to_stop() -> None:
    """The grace period covers the drain, in which requests still arrive, and then the longest of these."""
    environment = {each["name"]: each["value"] for each in CONTAINER["env"]}
    settings = Settings.read(environ=environment)

    assert settings.drain_s > 0
    assert POD["terminationGracePeriodSeconds"] >= settings.drain_s + 1 + settings.request_timeout_s + 4


def test_it_is_given_time_to_start() -> None:
    """The pod may start as slowly as the image's own check allows, and probes ask for paths that the service has."""
    probes = [CONTAINER[f"{kind}Probe"] for kind in ("startup", "liveness", "readiness")]
    start = probes[0]
    (port,) = CONTAINER["ports"]

    assert start["periodSeconds"] * start["failureThreshold"] >= 30 * 60
    assert [each["httpGet"]["path"] for each in probes] == ["/healthz", "/healthz", "/readyz"]
    assert {each["httpGet"]["path"] for each in probes} <= PROBES
    assert {each["httpGet"]["port"] for each in probes} == {port["name"], SERVICE["spec"]["ports"][0]["targetPort"]}
    assert f"BANDRANK_PORT={port['containerPort']} " in DOCKERFILE
    assert SERVICE["spec"]["selector"] == DEPLOYMENT["spec"]["template"]["metadata"]["labels"]
