"""Fixtures: one browser and one demo for the whole run, and tabs that fail a test with their faults."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest
from playwright.sync_api import Browser, BrowserContext, sync_playwright

from tests.browser.service import Demo
from tests.browser.visit import Visit

WIDE = {"width": 1280, "height": 900}
TEST_SECONDS = 900
"""The bound of one test. A busy machine draws and writes slowly, and every wait inside has a bound of its own."""


class Served(Protocol):
    """A service that a browser visits."""

    @property
    def url(self) -> str: ...


class Tab(Protocol):
    def __call__(self, demo: Served | None = None, **options: Any) -> Visit: ...


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            item.add_marker(pytest.mark.timeout(TEST_SECONDS))


def chromium() -> str | None:
    """The Chromium of this machine, or the one that the environment variable CHROMIUM names."""
    return shutil.which(os.environ.get("CHROMIUM") or "chromium")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    path = chromium()
    if path is None:
        pytest.skip("there is no Chromium here (apt-get install chromium, or CHROMIUM=path)")
    # Chromium has no sandbox for the superuser, who runs the tests in containers
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=arguments)
        yield started
        started.close()


@pytest.fixture(scope="session")
def running_demo(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Demo]:
    served = Demo(tmp_path_factory.mktemp("demo"))
    yield served
    served.close()


@pytest.fixture
def served(running_demo: Demo) -> Iterator[Demo]:
    """The demo of the whole run. What a test changes is taken back after it."""
    yield running_demo
    running_demo.reset()


@pytest.fixture
def tab(browser: Browser, served: Demo) -> Iterator[Tab]:
    """Opens a tab of its own, as a person with an empty browser would. All tabs are checked at the end."""
    contexts: list[BrowserContext] = []
    visits: list[Visit] = []

    def make(demo: Served | None = None, **options: Any) -> Visit:
        # without motion, no colour is read amid a transition
        context = browser.new_context(**{"viewport": WIDE, "reduced_motion": "reduce"} | options)
        contexts.append(context)
        visits.append(Visit(context.new_page(), (demo or served).url))
        return visits[-1]

    yield make
    for context in contexts:
        context.close()
    for visit in visits:
        visit.check()
