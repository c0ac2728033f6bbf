"""One browser and one service, with the scorers that are served by default, for all tests of the page."""

from collections.abc import Iterator

import pytest
from support.browser import Page, browser_page
from support.server import RunningService, running_service


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningService]:
    """A running service with the default scorers."""
    with running_service(tmp_path_factory.mktemp("service"), arguments=["--device", "cpu"]) as running:
        yield running


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser_page(tmp_path_factory.mktemp("browser")) as page:
        yield page


@pytest.fixture
def page(browser: Page, service: RunningService) -> Iterator[Page]:
    """The service's page, with the first example ranked. Its console must have no error at the end of the test."""
    browser.look(width=1280)
    browser.open(f"{service.url}/")
    browser.wait("document.querySelectorAll('#after > li').length")
    yield browser
    assert browser.errors == []
