"""When there are compiled functions of the processor, and when they are compiled again."""

from __future__ import annotations

import ctypes
import os
import shutil
from enum import IntEnum
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from steerserve.app import doctor
from steerserve.rules.models import compilers
from steerserve.worker.model import native
from steerserve.worker.model.native import compiling, structs
from tests.worker.compiled import COMPILED


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the compiled libraries, which is not there yet."""
    monkeypatch.setattr(compiling.platformdirs, "user_cache_dir", lambda _: str(tmp_path))
    # nothing is computed here, and without optimisation a compiler is done in a fraction of the time
    plain = tuple("-O0" if flag == "-O3" else flag for flag in compiling._FLAGS)
    monkeypatch.setattr(compiling, "_FLAGS", plain)
    return tmp_path / "kernels"


def loaded() -> tuple[native.Kernels | None, str]:
    """The functions as a new engine would get them, and the reason that the log has too where there are none."""
    with capture_logs() as logs:
        found, why = native.found.__wrapped__()
    # threads of earlier tests may log too
    told = [entry["why"] for entry in logs if entry["event"] == "kernels_not_compiled"]
    assert told == ([] if found else [why])
    return found, why


def test_without_a_compiler_the_log_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    assert loaded() == (None, "there is no C++ compiler (c++, g++, clang++)")


@COMPILED
def test_a_source_that_does_not_compile_is_no_error_of_the_load(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "native.cpp").write_text("int broken(\n")
    monkeypatch.setattr(compiling, "SOURCES", sources)
    monkeypatch.setattr(structs, "TWINS", {})
    found, why = loaded()
    assert found is None
    assert "native.cpp" in why
    assert list(folder.iterdir()) == []


@COMPILED
def test_a_library_is_compiled_once_and_not_loaded_where_others_may_write(folder: Path) -> None:
    assert loaded()[0] is not None
    (kept,) = folder.iterdir()
    before = kept.stat().st_mtime_ns
    assert loaded()[0] is not None
    assert kept.stat().st_mtime_ns == before
    folder.chmod(0o777)
    found, why = loaded()
    assert found is None
    assert why == f"others may write into {folder}"
    folder.chmod(0o700)
    folder.parent.chmod(0o777)
    found, why = loaded()
    assert found is None
    assert why == f"others may write into {folder.parent}, a folder above {folder}"
    # in a folder like /tmp nobody renames what others own
    folder.parent.chmod(0o1777)
    assert loaded()[0] is not None


@COMPILED
def test_the_data_folder_keeps_the_library_where_the_cache_cannot_be_written(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    # no permission stops the root account, so the question to the system is answered here
    closed = [tmp_path]
    monkeypatch.setattr(os, "access", lambda place, mode: place not in closed)
    monkeypatch.setattr(compiling, "data_folder", str(data))
    assert loaded()[0] is not None
    assert [kept.suffix for kept in (data / "kernels").iterdir()] == [".so"]
    closed += [data / "kernels"]
    with capture_logs() as logs:
        _, why = native.found.__wrapped__()
    assert why.startswith(compilers.NO_FOLDER)
    assert str(folder) in why
    (line,) = (entry for entry in logs if entry["event"] == "kernels_not_compiled")
    assert line["log_level"] == "warning"
    assert compilers.NO_FOLDER in doctor.compiler(data)


@COMPILED
def test_a_library_is_of_all_its_sources_and_of_its_flags(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources = tmp_path / "sources"
    sources.mkdir()
    (sources / "native.cpp").write_text('#include "one.h"\nextern "C" int one() { return ONE; }\n')
    monkeypatch.setattr(compiling, "SOURCES", sources)
    monkeypatch.setattr(structs, "TWINS", {})
    monkeypatch.setattr(structs, "ENUMS", {})

    def one() -> int:
        return int(compiling.library().one())

    for value in (1, 2):
        (sources / "one.h").write_text(f"#ifndef ONE\n#define ONE {value}\n#endif\n")
        assert one() == value
    monkeypatch.setattr(compiling, "_FLAGS", (*compiling._FLAGS, "-DONE=3"))
    assert one() == 3
    assert len(list(folder.iterdir())) == 3


@COMPILED
def test_functions_are_not_used_where_python_counts_steps_in_another_way(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    swapped = IntEnum("swapped", {**structs.Step.__members__, "HEADS": 1, "ATTENDED": 0})
    monkeypatch.setitem(structs.ENUMS, "Step", swapped)
    found, why = loaded()
    assert found is None
    assert "Step.HEADS" in why


@COMPILED
def test_functions_are_not_used_where_python_has_another_struct(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Swapped(ctypes.Structure):
        _fields_ = (*structs.Draw._fields_[1:], structs.Draw._fields_[0])

    monkeypatch.setitem(structs.TWINS, "Draw", Swapped)
    found, why = loaded()
    assert found is None
    assert "Draw.row" in why
    assert list(folder.iterdir()) == []
