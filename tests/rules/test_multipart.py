"""Forms with files: what curl and browsers send, and what is no form."""

from __future__ import annotations

import pytest

from steerserve.rules import multipart
from tests.refusals import refusal_of

KIND = "multipart/form-data; boundary=xyz"


def form(*parts: bytes, end: bytes = b"--xyz--\r\n") -> bytes:
    return b"".join(b"--xyz\r\n" + part + b"\r\n" for part in parts) + end


def named(name: str, content: bytes, more: str = "") -> bytes:
    head = f'Content-Disposition: form-data; name="{name}"{more}\r\n\r\n'
    return head.encode() + content


def test_fields_and_files_keep_every_byte() -> None:
    content = bytes(range(256)) + b"\r\n--xy\r\n\r\n--"
    file = named("file", content, '; filename="a \\"b\\".pt"\r\nContent-Type: x/y')
    parts = multipart.parts(KIND, form(named("name", "caf\u00e9".encode()), file, named("e", b"")))
    assert parts["name"].text == "caf\u00e9"
    assert (parts["file"].content, parts["file"].filename) == (content, 'a "b".pt')
    assert (parts["e"].content, parts["e"].filename) == (b"", None)


@pytest.mark.parametrize("searched", [1, 5, 64])
def test_a_border_is_found_wherever_the_search_is_paused(
    searched: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multipart, "_SEARCHED", searched)
    body = bytearray(form(named("a", b"-" * 50), named("b", b"\r\n--xy")))
    parts = multipart.parts(KIND, body)
    assert {name: part.content for name, part in parts.items()} == {
        "a": b"-" * 50,
        "b": b"\r\n--xy",
    }


def test_a_boundary_may_be_quoted_and_text_may_stand_around_the_form() -> None:
    quoted = 'Multipart/Form-Data; charset=utf-8; boundary="xyz"'
    assert multipart.is_form(quoted)
    body = b"preamble\r\n" + form(named("a", b"1")) + b"epilogue"
    assert multipart.parts(quoted, body)["a"].text == "1"


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("multipart/form-data", form(named("a", b"1"))),
        (KIND, b""),
        (KIND, form(named("a", b"1"), end=b"")),
        (KIND, form(named("a", b"1"), named("a", b"2"))),
        (KIND, form(b"Content-Disposition: form-data\r\n\r\n1")),
        (KIND, form(b"1")),
        (KIND, form(*(named(f"a{i}", b"1") for i in range(40)))),
        (KIND, form(b"X: " + b"y" * 5000 + b"\r\n" + named("a", b"1"))),
        (KIND, form(b'Content-Disposition: form-data; name="\xff"\r\n\r\n1')),
    ],
)
def test_what_is_no_complete_form_is_refused(kind: str, body: bytes) -> None:
    refused = refusal_of(multipart.parts, kind, body)
    assert refused.code == "VALIDATION_ERROR"
