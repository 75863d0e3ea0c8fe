"""The page of the settings is fresh. Every setting is documented and bounded, and no default has a path of this
machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from docs import generate
from pydantic import ValidationError

from steerserve.settings import Settings
from tests.settings.made import made


@pytest.mark.shows("limits.26")
def test_the_page_of_settings_is_what_the_fields_say() -> None:
    stored = (generate.FOLDER / "settings.md").read_text(encoding="utf-8")
    assert stored == generate.settings_page(), "run `make docs`"


def test_the_page_is_the_same_on_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = generate.settings_page()
    monkeypatch.setenv("HOME", "/somebody/else")
    monkeypatch.setenv("STEERSERVE_HOME", "/elsewhere")
    assert generate.settings_page() == before
    assert str(Path.home()) not in before


@pytest.mark.parametrize("name", Settings.model_fields)
def test_a_setting_is_one_sentence_or_more(name: str) -> None:
    description = Settings.model_fields[name].description or ""
    assert description.endswith(".")
    assert "|" not in description


def test_folders_and_database_lie_in_the_home_unless_named(tmp_path: Path) -> None:
    settings = made(steerserve_home=tmp_path)
    assert settings.model_cache_dir == tmp_path / "models"
    assert settings.sae_cache_dir == tmp_path / "saes"
    assert settings.database_url == f"sqlite+aiosqlite:///{tmp_path / 'steerserve.db'}"
    named = made(steerserve_home=tmp_path, model_cache_dir="/m", database_url="sqlite:///x")
    assert (str(named.model_cache_dir), named.database_url) == ("/m", "sqlite+aiosqlite:///x")


@pytest.mark.parametrize(
    ("host", "is_loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("localhost", True),
        ("::1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.5", False),
        ("example.org", False),
    ],
)
def test_a_loopback_address_is_recognised(host: str, is_loopback: bool) -> None:
    assert made(host=host).is_loopback is is_loopback


def test_lists_are_separated_by_commas_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CORS_ORIGINS", "https://a.example, https://b.example,")
    assert made().cors_origins == ["https://a.example", "https://b.example"]
    for origin in (
        "*",
        "http://localhost:5173",
        "http://[::1]:80",
        "chrome-extension://abc",
        "null",
    ):
        assert made(cors_origins=origin).cors_origins == [origin]
    for host in ("gpu.example.org", "my_box", "::1", "[::1]", "10.0.0.2"):
        assert made(allowed_hosts=host).allowed_hosts == [host]
    assert made(gguf_server_bin="").gguf_server_bin is None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("port", 0),
        ("port", 65536),
        ("max_concurrent_requests", 0),
        ("max_pending_requests", -1),
        ("graceful_unload_timeout", -1),
        ("load_timeout", 0),
        ("retry_after_queue_default_s", 0),
        ("ignored_fields_header_max_bytes", 63),
        ("log_level", "LOUD"),
        ("lease_max_ttl_seconds", 10**15),
        ("load_timeout", float("inf")),
        ("graceful_shutdown_timeout", float("nan")),
        ("kv_cache_mb", 10**15),
        ("hf_endpoint", "notaurl"),
        ("hf_endpoint", "ftp://hub.example"),
        ("hf_endpoint", "https://hub.example:port"),
        ("gguf_tensor_split", "a,b"),
        ("gguf_tensor_split", "1,-1"),
        ("gguf_tensor_split", "0,0"),
        ("gguf_tensor_split", "inf"),
    ],
)
def test_a_value_out_of_its_bounds_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValidationError):
        made(**{name: value})


def test_a_split_that_is_none_is_refused_with_an_example() -> None:
    with pytest.raises(ValidationError, match="3,1"):
        made(gguf_tensor_split="a,b")


def test_the_service_is_closed_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOST", "CORS_ORIGINS"):
        monkeypatch.delenv(name, raising=False)
    settings = made()
    assert settings.is_loopback
    assert settings.cors_origins == []


@pytest.mark.shows(
    "document.2 limits.5 limits.17 limits.18 limits.19 limits.23 limits.24 retry-after.8",
    "limits.21",
)
@pytest.mark.parametrize(
    ("name", "default"),
    [
        ("port", 8000),
        ("lease_default_ttl_seconds", 7200),
        ("lease_max_ttl_seconds", 7200),
        ("sae_activations_max_top_k", 64),
        ("sae_activations_max_entries", 65_536),
        ("ignored_fields_header_max_bytes", 1024),
        ("cluster_intensity_min", 0.5),
        ("circuit_intensity_min", 0.0),
        ("queue_duration_window", 50),
        ("retry_after_max_s", 60),
        ("retry_after_queue_default_s", 5),
        ("retry_after_load_s", 15),
        ("retry_after_unload_s", 5),
        ("retry_after_not_loaded_s", 30),
        ("retry_after_memory_s", 30),
        ("retry_after_readiness_s", 5),
        ("retry_after_fallback_s", 10),
    ],
)
def test_a_setting_has_the_default_that_is_promised(name: str, default: Any) -> None:
    assert Settings.model_fields[name].default == default


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_number_is_bounded_on_both_sides(name: str) -> None:
    field = Settings.model_fields[name]
    kinds = set(get_args(field.annotation)) or {field.annotation}
    # the amounts in a JSON object are checked by the setting itself (tests/settings/test_replicas.py)
    if {int, float} & kinds and get_origin(field.annotation) is not dict:
        sides = {
            side for part in field.metadata for side in ("ge", "gt", "le") if hasattr(part, side)
        }
        assert "le" in sides
        assert sides & {"ge", "gt"}


@pytest.mark.parametrize(
    ("url", "stored"),
    [
        ("sqlite:///data/x.db", "sqlite+aiosqlite:///data/x.db"),
        ("sqlite:////srv/x.db", "sqlite+aiosqlite:////srv/x.db"),
        ("sqlite+aiosqlite:////srv/x.db", "sqlite+aiosqlite:////srv/x.db"),
        ("postgres://u:p@h/n", "postgresql+asyncpg://u:p@h/n"),
        ("postgresql://u:p@h:5433/n", "postgresql+asyncpg://u:p@h:5433/n"),
        ("postgresql+psycopg2://u:p@h/n", "postgresql+asyncpg://u:p@h/n"),
        ("postgresql+asyncpg://u:p@h/n", "postgresql+asyncpg://u:p@h/n"),
        ("postgres://u:p@h/n?sslmode=require", "postgresql+asyncpg://u:p@h/n?ssl=require"),
    ],
)
def test_an_ordinary_url_of_a_database_gets_its_driver(url: str, stored: str) -> None:
    assert made(database_url=url).database_url == stored


@pytest.mark.parametrize(
    "url",
    [
        "/srv/sentinel.db",
        "mysql://u:sentinel@h/n",
        "sqlite://sentinel.db",
        "sqlite:///:memory:",
        "postgresql://u:sentinel@/n",
        "postgresql://u:sentinel@h",
        "postgresql://u:sentinel@h:port/n",
        "postgresql://u:sen/tinel@h:5432/n",
        "postgresql://u:[sentinel@h/n",
        "postgresql://u:sentinel@h/n?channel_binding=require",
    ],
)
def test_a_bad_url_of_a_database_is_refused_without_its_text(url: str) -> None:
    with pytest.raises(ValidationError) as refused:
        made(database_url=url)
    assert "sentinel" not in str(refused.value)
    assert "sqlite:///" in str(refused.value) or "'channel_binding'" in str(refused.value)


def test_keys_come_from_a_list_or_from_the_lines_of_a_file(tmp_path: Path) -> None:
    def keys(text: str) -> list[str]:
        return [key.get_secret_value() for key in made(api_keys=text).api_keys]

    with pytest.raises(ValidationError, match="has no key"):
        keys("")
    assert keys("one, two,") == ["one", "two"]
    file = tmp_path / "keys"
    file.write_text("one\n\n two \n")
    assert keys(f"@{file}") == ["one", "two"]
    for bad in ("se ntinel", "sentinel\u00e9"):
        with pytest.raises(ValidationError) as refused:
            made(api_keys=bad)
        assert "sentinel" not in str(refused.value)
    with pytest.raises(ValidationError, match="cannot be read"):
        made(api_keys=f"@{tmp_path / 'missing'}")
    file.write_text("\n")
    with pytest.raises(ValidationError, match="is empty"):
        made(api_keys=f"@{file}")
    assert "sentinel" not in repr(made(api_keys="sentinel"))
