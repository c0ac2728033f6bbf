"""The page in a real browser, in front of the real service. Run with `make test-page`."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.browser import CONTROL, Page
from support.keys import KEYS, write_keys
from support.listening import listening
from support.server import RunningService

from bandrank.metrics import SECONDS
from bandrank.settings import Settings

pytestmark = pytest.mark.page

QUERY = "who took the oldest photograph"
TEXTS = ["A camera 🎞 is a dark room.", "Niépce took the oldest 🎞 photograph.", "Bees are insects.", "The oldest tree."]
WIDTHS = [360, 640, 820, 1080, 1600]
ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "build" / "page"
AXE = ROOT / "build" / "axe.min.js"
SHOWN = "[...document.querySelectorAll('#after > li .text')].map(text => text.lastChild.data)"


def ranked(service: RunningService) -> list[dict[str, Any]]:
    """Returns the service's results for QUERY and TEXTS."""
    body = {"query": QUERY, "candidates": TEXTS}
    results: list[dict[str, Any]] = httpx.post(f"{service.url}/rerank", json=body, trust_env=False).json()["results"]
    return results


def rank(page: Page, query: str, typed: str) -> None:
    """Types a request and waits for its answer."""
    page.run("document.querySelector('#query').focus()")
    page.type(query)
    page.run("document.querySelector('#candidates').focus()")
    page.type(typed)
    page.run("document.querySelector('#after').replaceChildren()")
    page.press("Enter", CONTROL)
    page.wait("document.querySelectorAll('#after > li').length || !document.querySelector('#problem').hidden")


def explain_first(page: Page) -> None:
    """Opens the first result, and waits for its explanation."""
    page.run("document.querySelector('#after button').click()")
    page.wait("document.querySelector('#after .words')")


def test_a_request_by_keyboard_alone(page: Page, service: RunningService) -> None:
    """Tab, Enter and the arrow keys lead from the top of the page to the explanation of a result."""
    page.run("document.activeElement.blur()")
    page.tab_to("it.id === 'query'")
    page.type(QUERY)
    page.tab_to("it.id === 'candidates'")
    page.type("\n".join(TEXTS))
    page.tab_to("it.id === 'run'")
    page.press("Enter")
    page.wait("document.querySelector('#headline').textContent.startsWith('4 candidates in')")
    results = ranked(service)

    assert page.run(SHOWN) == [TEXTS[result["index"]] for result in results]
    scores = page.run("[...document.querySelectorAll('#after .score')].map(score => score.textContent)")
    assert scores == [f"{result['relevance_score']:.4f}" for result in results]
    page.tab_to("it.matches('#after button')")
    page.press("Enter")
    page.wait("document.querySelector('#after .words')")
    assert page.run("document.activeElement.getAttribute('aria-expanded')") == "true"
    page.press("ArrowDown")
    assert page.run("document.activeElement.querySelector('.rank').textContent") == "2"
    page.press("ArrowUp")
    page.press("Enter")
    assert page.run("document.querySelector('#after .why').hidden") is True


def test_moves_are_told_and_drawn(page: Page) -> None:
    """Each result says in words how many places it has moved, and a line leads to it from where it was."""
    rank(page, QUERY, "\n".join(TEXTS))
    rows = page.run(
        "[...document.querySelectorAll('#after > li')].map(row => "
        "[row.className, row.querySelector('.move').title, row.querySelector('.text').textContent])"
    )
    for place, (kind, said, text) in enumerate(rows):
        before = TEXTS.index(text)
        steps = before - place
        assert kind == ("up" if steps > 0 else "down" if steps < 0 else "same")
        assert (f" {abs(steps)}," in said) == (steps != 0)
    assert page.run("document.querySelectorAll('#moves path[d]').length") == len(TEXTS)


def test_the_words_of_a_result_are_those_of_its_text(page: Page, service: RunningService) -> None:
    """Words are marked correctly behind characters of two UTF-16 units too, and the strongest is that of /explain."""
    rank(page, QUERY, "\n".join(TEXTS))
    best = TEXTS[ranked(service)[0]["index"]]
    explain_first(page)
    body = {"query": QUERY, "candidate": best}
    spans = httpx.post(f"{service.url}/explain", json=body, trust_env=False).json()["words"]["spans"]
    strongest = max(spans, key=lambda span: abs(span["contribution"]))

    assert page.run("document.querySelector('#after .words').textContent") == best
    assert strongest["text"] in page.run("[...document.querySelectorAll('#after mark')].map(mark => mark.textContent)")
    assert page.run("document.querySelector('.strongest tbody th').textContent") == strongest["text"]


def test_json_and_what_is_wrong_with_it(page: Page) -> None:
    """Candidates are objects with or without ids, JSON lines, or texts that begin like JSON; a faulty one is named."""
    rank(page, QUERY, json.dumps([{"id": "a-1", "text": TEXTS[1]}, TEXTS[2], {"id": "nobody"}]))
    assert page.run("document.querySelector('#after small').textContent") == "a-1"
    assert page.run("document.querySelectorAll('#before .unranked').length") == 1

    rank(page, QUERY, '{"id": "a", "text": "one"}\n{"id": "b", "text": "two"}')
    assert sorted(page.run("[...document.querySelectorAll('#after small')].map(id => id.textContent)")) == ["a", "b"]

    rank(page, QUERY, json.dumps([{"text": TEXTS[0]}, {"text": TEXTS[1], "id": None, "score": 2.5}]))
    assert sorted(page.run(SHOWN)) == sorted(TEXTS[:2])
    assert '"score": 2.5' in page.run("document.querySelector('#sample').textContent")

    rank(page, QUERY, '{"text": "one"}\n{"text": "two"}')
    assert sorted(page.run(SHOWN)) == ["one", "two"]

    rank(page, QUERY, "[sic] the oldest\n{curly} photograph")
    assert sorted(page.run(SHOWN)) == ["[sic] the oldest", "{curly} photograph"]

    rank(page, QUERY, '["a", 7]')
    problem = page.run("document.querySelector('#problem').textContent")
    assert problem == "candidate 2 is neither a text nor an object whose text or id is one"


def test_a_refusal_is_shown(page: Page) -> None:
    """The page shows the service's own message."""
    rank(page, " ", "one")
    page.errors.clear()  # the browser logs every answer that is no 200

    assert page.run("document.querySelector('#problem').textContent") == "query must not be empty"


def test_a_text_stays_a_text(page: Page) -> None:
    """Markup in a candidate or a query is shown, and does nothing."""
    nasty = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script> photograph"
    rank(page, nasty, nasty)
    explain_first(page)

    assert page.run(SHOWN) == [nasty]
    assert page.run("document.querySelector('#after .words').textContent") == nasty
    assert page.run("[document.title, document.querySelectorAll('main img').length]") == ["bandrank", 0]


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_wider_than_the_window(page: Page, width: int) -> None:
    """One result is open, and one candidate is a single very long word."""
    page.look(width=width)
    rank(page, QUERY, "\n".join([*TEXTS, "x" * 300]))
    explain_first(page)
    page.run("document.querySelectorAll('details').forEach(each => { each.open = true })")

    assert page.run("document.documentElement.scrollWidth") <= width


def test_the_current_request_runs_as_code(page: Page, service: RunningService) -> None:
    """The samples for curl and Python get the answer that the page shows; the other two are valid Python."""
    odd = ["quotes ' \" \\ and $HOME `id`", "null", "constructor"]
    rank(page, QUERY, "\n".join([*TEXTS, *odd]))

    def sample(index: int) -> str:
        page.run(f"document.querySelector('#tab-{index}').click()")
        return str(page.run("document.querySelector('#sample').textContent"))

    def output(command: list[str], code: str) -> str:
        environment = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
        ended = subprocess.run(command, input=code, env=environment, capture_output=True, text=True, check=True)
        return ended.stdout

    by_curl = json.loads(output(["bash"], sample(0)))
    by_python = output([sys.executable, "-"], sample(1))
    expected = [(result["relevance_score"], result["index"]) for result in by_curl["results"]]
    assert page.run("document.querySelectorAll('#after > li').length") == len(expected) == len(TEXTS) + len(odd)
    assert [tuple(map(float, line.split())) for line in by_python.splitlines()] == expected
    for index in (2, 3):
        assert service.url in sample(index)
        ast.parse(sample(index))


def test_percentiles_are_those_of_the_buckets(page: Page) -> None:
    """By hand: of 10 values, 4 are up to 1 and 6 in (1, 3], so the 5th is a sixth into the second bucket."""
    script = """import('/page/metrics.js').then(({histograms, percentile, since, total}) => {
        const scrape = '# HELP x\\na_bucket{le="1.0",path="/\\\\"x"} 4.0\\na_bucket{le="3.0",path="/\\\\"x"} 10.0\\n' +
            'a_bucket{le="+Inf",path="/\\\\"x"} 10.0\\na_count 10.0';
        const [[name, buckets]] = [...histograms(scrape)];
        const later = buckets.map(([bound, count]) => [bound, 2 * count]);
        return [name, total(buckets), percentile(buckets, 0.4), percentile(buckets, 0.5), percentile(buckets, 1),
            total(since(later, buckets)), total(since(buckets, later)),
            String(percentile([[1, 0], [Infinity, 0]], 0.5)), String(percentile([[1, 0], [Infinity, 2]], 0.5))];
    })"""

    name, *numbers = page.run(script)
    assert name == 'a{path=/\\"x}'
    assert numbers == [10, 1, pytest.approx(1 + 2 / 6), 3, 10, 10, "NaN", "Infinity"]


def test_what_changes_is_told(page: Page) -> None:
    """A screen reader announces the service's state, an answer, a fault, and whether something was copied."""
    told = {"#status": "status", "#headline": "status", "#problem": "alert"}
    roles = page.run(f"{json.dumps([*told])}.map(each => document.querySelector(each).getAttribute('role'))")
    page.run("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    said = [
        page.run(
            f"document.execCommand = () => {copies}; document.querySelector('.copy').click(); "
            "new Promise(setTimeout).then(() => document.querySelector('.copy[aria-live]').textContent)"
        )
        for copies in ("true", "false")
    ]

    assert roles == [*told.values()]
    assert said == ["Copied", "Selected"]


def test_latency_is_read_from_the_metrics(page: Page) -> None:
    """Once the latencies are in sight, the page asks for the metrics, and names the range of all buckets."""
    page.run("document.querySelector('#latency-note').scrollIntoView()")
    page.wait("!document.querySelector('#latency').hidden")

    assert page.run("document.querySelector('#latency thead th:last-child').textContent") == (
        f"{1000 * SECONDS[0]:g} ms to {SECONDS[-1]:g} s"
    )
    names = page.run("[...document.querySelectorAll('#latency tbody th')].map(row => row.textContent)")
    assert names[:2] == ["/rerank", "/explain"]
    assert {"fast", "accurate", "tokenize", "queue", "score"} <= set(names)


def test_a_key_is_kept_in_memory_alone(browser: Page, tmp_path: Path) -> None:
    """The page asks for a key and sends it, but puts it into no storage, address, cookie or sample."""
    settings = Settings(device="cpu", keys=write_keys(tmp_path / "keys.toml"))
    with listening(settings, patience_s=10.0) as secured:
        browser.look(width=1280)
        browser.open(f"{secured.url}/")
        browser.wait("document.querySelector('#status').textContent === 'asks for a key'")
        assert browser.run("document.activeElement.id") == "key"
        browser.type(KEYS["rank"])
        browser.press("Enter")
        browser.wait("document.querySelectorAll('#after > li').length")
        browser.run("document.querySelector('#latency-note').scrollIntoView()")
        browser.wait("document.querySelector('#latency-note').textContent === 'Shown to keys with the scope admin.'")
        browser.run(
            "window.asked = 0; window.fetch = (send => (...all) => { window.asked++; return send(...all) })(fetch)"
        )
        browser.run("import('/page/latency.js').then(latency => latency.refresh())")
        assert browser.run("window.asked") == 0, "the key is refused each time that it is asked"
        kept = browser.run(
            "[location.href, document.cookie, localStorage.length, sessionStorage.length, "
            "document.documentElement.outerHTML, document.querySelector('#sample').textContent].join('\\n')"
        )
        browser.open("about:blank")

    assert KEYS["rank"] not in kept
    assert "$BANDRANK_KEY" in kept
    assert kept.splitlines()[:4] == [f"{secured.url}/", "", "0", "0"]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1600])
def test_axe_finds_nothing(page: Page, width: int, dark: bool) -> None:
    """A result and its tokens are open, the latencies are in sight, and a fault is shown."""
    if not AXE.exists():
        pytest.skip(f"there is no {AXE.relative_to(ROOT)}; `make test-page` fetches it where there is npm")
    page.look(width=width, dark=dark)
    explain_first(page)
    page.run("document.querySelectorAll('details').forEach(each => { each.open = true })")
    page.run("document.querySelector('#latency-note').scrollIntoView()")
    page.wait("!document.querySelector('#latency').hidden")
    page.run(
        "document.querySelector('#problem').hidden = false; document.querySelector('#problem').textContent = 'a fault'"
    )
    page.send("Runtime.evaluate", expression=AXE.read_text(encoding="utf-8"))
    found = page.run(
        "axe.run().then(({violations, passes}) => ({passed: passes.length, violations: violations.map("
        "each => `${each.id}: ${each.nodes.map(node => node.html + ' ' + node.failureSummary).join(' ')}`)}))"
    )

    assert found["violations"] == []
    assert found["passed"] > 20


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 820, 1280, 1600])
def test_pictures(page: Page, width: int, dark: bool) -> None:
    """The pictures in build/page are for people to look at."""
    page.look(width=width, dark=dark)
    explain_first(page)
    page.run("document.querySelector('#latency-note').scrollIntoView()")
    page.wait("!document.querySelector('#latency').hidden")
    file = PICTURES / f"{width}-{'dark' if dark else 'light'}.png"
    page.screenshot(file)

    assert file.stat().st_size > 50_000
