"""The page of the API: /docs has the whole API, and loads nothing from elsewhere."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from steerserve import demo
from tests.service import Running

VOID = {"meta"}


class Page(HTMLParser):
    """The tags of a page, which must be balanced, its links, its anchors and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.anchors: list[str] = []
        self.text = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        for name, value in attrs:
            if name == "href":
                self.links.append(str(value))
            if name == "id":
                self.anchors.append(str(value))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def page(live: Running, path: str) -> Page:
    answer = live.http.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    return Page(answer.text)


@pytest.mark.shows("versioning.2", "overview.3", "overview.4")
def test_inference_is_under_v1_and_management_under_api_without_a_version(shared: Running) -> None:
    for path in shared.http.get("/openapi.json").json()["paths"]:
        begin, *rest = path.strip("/").split("/")
        assert begin in ("v1", "api")
        assert not [part for part in rest if re.fullmatch(r"v\d+", part)]


@pytest.mark.shows("document.4", "authentication.7")
def test_no_field_header_or_path_has_the_name_of_the_product_or_a_secret(shared: Running) -> None:
    described = shared.http.get("/openapi.json").json()
    schemas = described["components"]["schemas"].values()
    names = {field for schema in schemas for field in schema.get("properties", {})}
    for path, operations in described["paths"].items():
        names.add(path)
        for operation in operations.values():
            names |= {one["name"] for one in operation.get("parameters", ())}
    assert len(names) > 100
    body = {"model": demo.MODEL_NAME, "prompt": "One day", "max_tokens": 1, "user": "u", "seed": 1}
    answer = shared.post("/v1/completions", body)
    names |= set(answer.headers)
    assert {"x-service-seed", "x-service-ignored-fields", "x-service-backend"} <= names
    assert [name for name in names if "steerserve" in name.lower()] == []
    assert [name for name in names if "{lease" in name] == []


def test_the_page_of_the_api_has_every_route_and_field(shared: Running) -> None:
    seen = page(shared, "/docs")
    described = shared.http.get("/openapi.json").json()
    for path, operations in described["paths"].items():
        for method in operations:
            assert f"{method.upper()} {path} " in seen.text
    for schema in described["components"]["schemas"].values():
        for field in schema.get("properties", {}):
            assert field in seen.text


def test_the_page_loads_nothing_and_its_links_lead_somewhere(shared: Running) -> None:
    seen = page(shared, "/docs")
    assert not seen.tags & {"script", "link", "img", "iframe", "object"}
    assert seen.links
    for link in seen.links:
        if link.startswith("#"):
            assert link[1:] in seen.anchors
        else:
            assert "//" not in link
            assert shared.http.get(f"/{link}").status_code == 200


def test_the_page_is_read_and_nothing_else(shared: Running) -> None:
    refused = shared.http.post("/docs")
    assert refused.status_code == 405
    assert refused.headers["allow"] == "GET, HEAD"


def test_a_method_that_the_description_does_not_take_names_those_that_it_takes(
    shared: Running,
) -> None:
    answer = shared.http.post("/openapi.json")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")
