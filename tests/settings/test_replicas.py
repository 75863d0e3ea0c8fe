"""The settings of replicas are checked at the start, and nothing but the processes of Ray imports Ray."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from steerserve.app.serve import run
from steerserve.rules.residency.replicas import COUNT_MAXIMUM
from steerserve.settings import replicas as setting_replicas
from steerserve.settings.replicas import PortRange
from tests.processes import run_program
from tests.settings.made import made

SOURCES = Path(setting_replicas.__file__).parents[1]
OF_RAY = {"engines/ray/placer.py", "engines/ray/actor.py"}
"""The files that may import Ray. They run in other processes than the service."""


def test_one_engine_on_this_machine_is_the_default() -> None:
    settings = made()
    assert (settings.engine_backend, settings.engine_replicas) == ("local", 1)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"engine_replicas": 2}, "needs ENGINE_BACKEND=ray"),
        ({"engine_backend": "ray", "engine_min_replicas": 2}, "is above ENGINE_REPLICAS"),
        ({"engine_backend": "kubernetes"}, "'local' or 'ray'"),
        ({"engine_backend": "ray", "engine_replicas": 65}, "less than or equal to 64"),
        ({"ray_address": "ray://head:10001"}, "join this machine to the cluster"),
        ({"ray_address": "local"}, "host and the port"),
        ({"ray_address": "head"}, "host and the port"),
        ({"ray_address": "head:70000"}, "host and the port"),
        ({"engine_resources": "CPU=4"}, "a JSON object"),
        ({"engine_resources": "[1]"}, "a JSON object"),
        ({"engine_resources": '{"CPU": 0}'}, "not a number above 0"),
        ({"engine_resources": '{"CPU": true}'}, "not a number above 0"),
        ({"engine_resources": '{"CPU": 1e999}'}, "not a number above 0"),
        ({"engine_resources": '{"CPU": 1.5}'}, "whole number"),
        ({"engine_resources": '{"GPU": 1}'}, "ENGINE_CARDS"),
        ({"engine_resources": '{"object_store_memory": 1}'}, "leave object_store_memory out"),
        ({"engine_ports": "20100-20000"}, "a range from 1024 to 65535"),
        ({"engine_ports": "80"}, "a range from 1024 to 65535"),
        ({"engine_ports": "20000-70000"}, "a range from 1024 to 65535"),
        ({"engine_ports": "20000,20001"}, "a range from 1024 to 65535"),
        ({"engine_resources": '{"a b": 1}'}, "the name of a resource"),
    ],
)
def test_a_setting_that_places_nothing_is_refused_with_a_sentence(
    changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ValidationError, match=sentence):
        made(**changes)


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("", None),
        ("20000-20100", (20000, 20100)),
        (" 20000 - 20100 ", (20000, 20100)),
        ("1024", (1024, 1024)),
    ],
)
def test_ports_are_a_range_one_port_or_any(text: str, ports: tuple[int, int] | None) -> None:
    assert PortRange.from_text(made(engine_ports=text).engine_ports) == ports


def test_resources_and_the_address_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ENGINE_BACKEND", "ray")
    monkeypatch.setenv("ENGINE_RESOURCES", '{"CPU": 4, "accelerator_type:A100": 0.001}')
    monkeypatch.setenv("RAY_ADDRESS", "[fd00::1]:6379")
    settings = made()
    assert settings.engine_resources == {"CPU": 4, "accelerator_type:A100": 0.001}
    assert settings.ray_address == "[fd00::1]:6379"
    assert made(ray_address="").ray_address == "auto"


def test_without_the_extra_the_start_is_refused_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(setting_replicas, "PACKAGES", ("ray-that-nobody-installed",))
    assert run(made(steerserve_home=tmp_path, engine_backend="ray")) == 2
    told = capsys.readouterr().err
    assert "ENGINE_BACKEND=ray needs the extra `ray`" in told
    assert "pip install 'steerserve[ray]'" in told
    assert not list(tmp_path.iterdir())


def test_only_the_processes_of_ray_import_ray() -> None:
    importing = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.rglob("*.py")
        if re.search(r"import.*\bray\b|\bray\b.*import", text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if any(name.partition(".")[0] == "ray" for name in _imported(node))
    }
    assert importing <= OF_RAY


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module or ""] if isinstance(node, ast.ImportFrom) else []


def test_no_library_of_the_service_imports_ray_or_the_cryptography_of_links() -> None:
    code = """if True:
        import sys
        class NoRay:
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] in ("ray", "cryptography"):
                    raise AssertionError(f"{name} was imported")
        sys.meta_path.insert(0, NoRay())
        import steerserve.app.service, steerserve.cli, steerserve.app.doctor
    """
    ran = run_program("-c", code, ENGINE_BACKEND="local")
    assert ran.returncode == 0, ran.stderr


def test_the_setting_and_the_route_have_the_same_largest_number() -> None:
    assert setting_replicas.REPLICAS_MAXIMUM == COUNT_MAXIMUM
