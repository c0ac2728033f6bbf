"""Prometheus' and Grafana's files agree with each other and with what the service really exposes."""

import json
import math
import re
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client import CollectorRegistry
from starlette.routing import Route
from support.app import running_app
from support.deploy import DEPLOY, ROOT, load_yaml, needs_program, run
from support.plain_http import get
from support.prometheus import PACKAGE, prometheus
from support.scorers import lookup

from bandrank.api import embeddings
from bandrank.api.dialects import DIALECTS
from bandrank.metrics import Metrics

RULES = DEPLOY / "prometheus" / "rules" / "bandrank.yml"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
GRAFANA_VARIABLES = {"$__rate_interval": "5m", "$__interval": "1m", "$job": ".*", "$instance": ".*"}
SCRAPE_LABELS = {"job", "instance"}  # what Prometheus adds to every series


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields every panel, including those inside collapsed rows."""
    for panel in dashboard["panels"]:
        yield panel
        yield from panel.get("panels", [])


def dashboard_expressions(dashboard: dict[str, Any], job: str = ".*") -> Iterator[tuple[str, str]]:
    """Yields (where, PromQL) of every panel and annotation, with Grafana's variables filled in. job: the chosen one."""
    written = [
        (f"{panel['title']} {t['refId']}", t["expr"]) for panel in panels(dashboard) for t in panel.get("targets", [])
    ]
    written += [(f"annotation {a['name']}", a["expr"]) for a in dashboard["annotations"]["list"]]
    for where, expression in written:
        for placeholder, value in (GRAFANA_VARIABLES | {"$job": job}).items():
            expression = expression.replace(placeholder, value)  # noqa: PLW2901 -- the same expression, filled in
        yield where, expression


def exposition() -> CollectorRegistry:
    """Returns the metrics of a service that has loaded a model and has had no requests but some that failed."""
    metrics = Metrics()
    for stage in ("fast", "accurate"):
        metrics.declare_stage(stage)
    metrics.declare_shadow("m", "next")
    metrics.proxy.unranked.labels("deadline_exceeded")
    for path in ("/explain", "/v1/embeddings"):
        metrics.http_request_seconds.labels(path)
        metrics.http_requests.labels(path, "500")
    metrics.build_info.labels(version="1.0", model="m", device="cpu", dtype="float32").set(1)
    return metrics.registry


def exposed_labels() -> dict[str, set[str]]:
    """Returns the labels of each exposed series by its name."""
    labels: dict[str, set[str]] = {}
    for family in exposition().collect():
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    return labels


@pytest.fixture(scope="module", params=DASHBOARDS, ids=lambda path: path.stem)
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(request.param.read_text(encoding="utf-8"))
    return content


class TestPrometheusFiles:
    def test_configuration_is_valid(self) -> None:
        run(needs_program("promtool", PACKAGE), "check", "config", DEPLOY / "prometheus" / "prometheus.yml")

    def test_rules_do_what_they_say(self) -> None:
        """Recorded shares and quantiles have the values worked out by hand, and each alert fires when it should."""
        run(needs_program("promtool", PACKAGE), "test", "rules", Path(__file__).with_name("bandrank.rules.test.yml"))

    def test_rules_name_exposed_series(self) -> None:
        """A rule refers only to series that the service exposes or that a rule records."""
        rules = [rule for group in load_yaml(RULES)["groups"] for rule in group["rules"]]
        known = set(exposed_labels()) | {rule["record"] for rule in rules if "record" in rule} | {"up"}
        named = re.compile(r"\b(?:job_instance:|bandrank_)[\w:]+|\bup\b")
        used = {name for rule in rules for name in named.findall(rule["expr"])}

        assert used <= known

    def test_every_alert_is_explained(self) -> None:
        """Whoever is woken by an alert finds it in the docs, with what helps."""
        alerts = {rule["alert"] for group in load_yaml(RULES)["groups"] for rule in group["rules"] if "alert" in rule}
        docs = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")

        assert {alert for alert in alerts if f"`{alert}`" not in docs} == set()

    async def test_every_path_of_work_alerts(self) -> None:
        """Each path that takes bodies either ranks, and shares one alert, or is in the alert of single paths."""
        async with running_app(lookup()) as running:
            routes = [route for route in running.app.routes if isinstance(route, Route)]
        rules = [rule for group in load_yaml(RULES)["groups"] for rule in group["rules"]]
        (expression,) = (rule["expr"] for rule in rules if rule.get("alert") == "BandrankPathFailing")
        over, under = re.findall(r'path=~"([^"]+)"', expression)

        assert over == under
        assert {route.path for route in routes if re.fullmatch(over, route.path)} == {
            route.path
            for route in routes
            if {*(route.methods or ())} & {"POST", "PUT", "DELETE"} and route.path not in DIALECTS
        }

    def test_addresses_are_services_of_the_stack(self) -> None:
        """Prometheus scrapes and Grafana asks hosts of the compose file, and Grafana knows the scrape interval."""
        services = load_yaml(ROOT / "docker-compose.yml")["services"]
        prometheus = load_yaml(DEPLOY / "prometheus" / "prometheus.yml")
        source = load_yaml(DEPLOY / "grafana" / "provisioning" / "datasources" / "prometheus.yml")["datasources"][0]
        targets = [
            t for job in prometheus["scrape_configs"] for static in job["static_configs"] for t in static["targets"]
        ]

        assert {target.split(":")[0] for target in targets} - {"localhost"} <= set(services)
        assert httpx.URL(source["url"]).host in services
        assert source["jsonData"]["timeInterval"] == prometheus["global"]["scrape_interval"]


class TestDashboards:
    def test_there_is_one(self) -> None:
        assert DASHBOARDS

    def test_structure(self, dashboard: dict[str, Any]) -> None:
        """A dashboard has a uid and no id of one Grafana; panels have ids, titles and places of their own."""
        every = list(panels(dashboard))
        ids = [panel["id"] for panel in every]
        cells = [
            (x, y)
            for panel in every
            for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
            for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
        ]

        assert re.fullmatch(r"[a-z0-9-]{3,40}", dashboard["uid"])
        assert dashboard.get("id") is None
        assert len(set(ids)) == len(ids)
        assert all(panel["title"] for panel in every)
        assert max(x for x, _ in cells) < 24
        assert len(set(cells)) == len(cells)  # no two panels overlap

    def test_asks_the_chosen_data_source(self, dashboard: dict[str, Any]) -> None:
        """Every query goes to the data source variable, its own or its panel's, so that the dashboard can be moved to
        another Grafana.
        """
        chosen = {"type": "prometheus", "uid": "${datasource}"}
        asking = [panel for panel in panels(dashboard) if panel["type"] != "row"]
        asking += [panel | target for panel in asking for target in panel["targets"]]
        asking += dashboard["annotations"]["list"]
        asking += [variable for variable in dashboard["templating"]["list"] if variable["type"] == "query"]

        assert all(part["datasource"] == chosen for part in asking)
        assert ("datasource", "prometheus") in {
            (v["name"], v["query"]) for v in dashboard["templating"]["list"] if v["type"] == "datasource"
        }

    def test_names_exposed_series(self, dashboard: dict[str, Any]) -> None:
        """Every selector, written with braces throughout, names an exposed series and labels that this series has."""
        exposed = exposed_labels() | {"ALERTS": {"alertname", "alertstate"}, "up": set()}
        selectors = [
            s for _, e in dashboard_expressions(dashboard) for s in re.findall(r"([a-zA-Z_:][\w:]*)\{([^}]*)\}", e)
        ]

        assert selectors
        for name, matchers in selectors:
            assert name in exposed
            assert set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers)) <= exposed[name] | SCRAPE_LABELS

    def test_every_expression_finds_data(self, dashboard: dict[str, Any], prometheus_url: str) -> None:
        """A real Prometheus that holds all that the service exposes answers every panel's expression with numbers."""
        for where, expression in dashboard_expressions(dashboard):
            response = get(f"{prometheus_url}/api/v1/query", params={"query": expression})

            assert response.status_code == 200, f"{where}: {response.text}"
            found = [
                each for each in response.json()["data"]["result"] if "proxy" not in str(each["metric"])
            ]  # a proxy ranks nothing
            values = [float(series["value"][1]) for series in found]
            if not where.startswith("annotation"):  # no alert fires here
                assert values, f"{where}: no data for {expression}"
                assert not any(math.isnan(value) for value in values), f"{where}: NaN for {expression}"

    def test_only_rates_are_shown_per_second(self, dashboard: dict[str, Any]) -> None:
        """A series that is no rate, in a panel of rates, has a unit of its own."""
        counts = [
            (panel["title"], target["legendFormat"], json.dumps(panel["fieldConfig"]["overrides"]))
            for panel in panels(dashboard)
            for target in panel.get("targets", [])
            if panel["fieldConfig"]["defaults"]["unit"] in {"reqps", "ops"} and "rate(" not in target["expr"]
        ]

        assert counts
        for title, series, overrides in counts:
            assert f'"options": "{series}"' in overrides, f"{title}: {series}"
            assert '"id": "unit"' in overrides, f"{title}: {series}"

    def test_latency_of_every_path_of_embeddings(self, dashboard: dict[str, Any]) -> None:
        """The panel of latency by path shows every path of embeddings."""
        (expression,) = (e for where, e in dashboard_expressions(dashboard) if where.startswith("Latency by path"))
        (shown,) = re.findall(r'path=~"([^"]+)"', expression)

        assert all(re.fullmatch(shown, path) for path in (embeddings.PATH, *embeddings.OTHER_PATHS))

    def test_shares_of_a_search_proxy(self, dashboard: dict[str, Any], prometheus_url: str) -> None:
        """A share lies between 0 and 1, or is missing, even for a proxy, which ranks without requests to rank."""
        shares = {panel["title"] for panel in panels(dashboard) if "percentunit" in json.dumps(panel)}
        asked = [
            (where, expression)
            for where, expression in dashboard_expressions(dashboard, job="proxy")
            if where.rpartition(" ")[0] in shares
        ]

        assert asked
        for where, expression in asked:
            response = get(f"{prometheus_url}/api/v1/query", params={"query": expression})
            for series in response.json()["data"]["result"]:
                assert not float(series["value"][1]) > 1, f"{where}: {series} for {expression}"

    def test_replicas_that_are_gone_are_counted(self, dashboard: dict[str, Any], prometheus_url: str) -> None:
        """No replica is ready where none answers, and one that Prometheus cannot reach counts as not ready."""
        asked = [e for w, e in dashboard_expressions(dashboard, job="bandrank-away") if w.startswith("Ready replicas ")]
        answers = [get(f"{prometheus_url}/api/v1/query", params={"query": each}).json() for each in asked]

        assert [answer["data"]["result"][0]["value"][1] for answer in answers] == ["0", "1"]

    def test_batches_of_one_task(self, dashboard: dict[str, Any], prometheus_url: str) -> None:
        """The panel shows one task, not the half that a quantile between 0 and the first bound would be."""
        asked = [e for w, e in dashboard_expressions(dashboard, job="proxy") if w.startswith("Tasks per batch ")]
        answers = [get(f"{prometheus_url}/api/v1/query", params={"query": each}).json() for each in asked]

        assert [answer["data"]["result"][0]["value"][1] for answer in answers[:2]] == ["1", "1"]


def history(registry: CollectorRegistry, end: int) -> Iterator[str]:
    """Yields ten minutes of OpenMetrics in which every counter and bucket rises and every gauge is 1. In the job
    "proxy", no request to rank is counted, as in `bandrank proxy`, and batches have one task; one more replica answers
    no scrape.
    """
    for family in registry.collect():
        yield f"# TYPE {family.name} {family.type}"
        samples = [s for s in family.samples if not s.name.endswith("_created")]
        still = family.name in {"bandrank_requests", "bandrank_request_seconds"}
        for (position, sample), job in product(enumerate(samples, start=1), ("bandrank", "proxy")):
            labels = {**sample.labels, "job": job, "instance": f"{job}:8000"}
            written = ",".join(f"{name}={json.dumps(value)}" for name, value in labels.items())
            slope = len(samples) if sample.name.endswith("_count") else position  # a count equals its last bucket
            if job == "proxy":
                slope = 0 if still else len(samples) if family.name == "bandrank_batch_tasks" else slope
            for step in range(61):
                value = 1 if family.type == "gauge" else slope * step
                yield f"{sample.name}{{{written}}} {value} {end - 600 + 10 * step}"
    yield "# TYPE up gauge"
    yield from (f'up{{job="bandrank-away",instance="away:8000"}} 0 {end - 600 + 10 * step}' for step in range(61))
    yield "# EOF"


@pytest.fixture(scope="module")
def prometheus_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yields the URL of a Prometheus server that holds ten minutes of every exposed series."""
    promtool = needs_program("promtool", PACKAGE)
    folder = tmp_path_factory.mktemp("prometheus")
    samples, blocks, config = folder / "history.txt", folder / "blocks", folder / "prometheus.yml"
    samples.write_text("\n".join(history(exposition(), end=int(time.time()))) + "\n", encoding="utf-8")
    run(promtool, "tsdb", "create-blocks-from", "openmetrics", samples, blocks)
    config.write_text("global: {}\n", encoding="utf-8")
    with prometheus(config, blocks) as url:
        yield url
