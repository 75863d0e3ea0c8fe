"""The command that reads values of sites over texts, and gets their files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from steerserve.client import Client
from steerserve.client.calls import drop_none
from steerserve.nouns.captures.form import CaptureDetails, CapturedTexts
from steerserve.terminal import output
from steerserve.terminal.output import show_facts, show_json, show_table

Dtype = Literal["float32", "float16", "bfloat16"]
Name = Annotated[
    str | None, typer.Argument(help="Name of the capture; without it, captures are listed.")
]
Sites = Annotated[
    list[str] | None,
    typer.Option("--site", help="resid_post:10,14 or mlp_out:all; with heads hook_z:3:0,5."),
]
Lines = Annotated[
    Path | None, typer.Option("--texts", help="File with one text in each line; - is the input.")
]
Corpus = Annotated[str | None, typer.Option(help="Id of a corpus.")]
LocalPath = Annotated[str | None, typer.Option(help="File of texts on the service's machine.")]
Repo = Annotated[
    str | None, typer.Option(help="owner/repository/file of a data set on the model hub.")
]
Positions = Annotated[str, typer.Option(help="all, last, or another name.")]
Context = Annotated[int, typer.Option(help="Tokens that are read together.")]
Into = Annotated[Path | None, typer.Option(help="Get the files into this folder at the end.")]
Gone = Annotated[str | None, typer.Option("--rm", help="Delete the capture with this id.")]
Json = Annotated[bool, typer.Option("--json", help="Print what the routes answer, as JSON.")]


def capture(
    name: Name = None,
    sites: Sites = None,
    lines: Lines = None,
    corpus: Corpus = None,
    local_path: LocalPath = None,
    repo: Repo = None,
    positions: Positions = "all",
    dtype: Annotated[Dtype, typer.Option(help="Type of the values.")] = "float32",
    context: Context = 512,
    max_tokens: Annotated[int, typer.Option(help="The most tokens that are read.")] = 1_000_000,
    into: Into = None,
    rm: Gone = None,
    as_json: Json = False,
) -> None:
    """Read the values of sites over many texts into files; the same command carries on a reading that was cut."""
    if (name is None) != (not sites) or (rm is not None and name is not None):
        raise typer.BadParameter("give NAME with --site, or --rm, or nothing to list captures")
    places, fields = list(map(_site, sites or [])), _source(lines, corpus, local_path, repo)
    with output.refusals(), Client() as client:
        if rm is not None:
            gone = client.captures.delete(rm)
            show_json(gone) if as_json else typer.echo(f"{gone.capture_id} is deleted")
        elif name is None:
            _list(client, as_json)
        else:
            fields |= {"positions": positions, "dtype": dtype, "context": context}
            job = client.captures.read(name, places, max_tokens=max_tokens, **fields)
            made = client.jobs.wait(job.id, progress=output.is_lively()).result
            assert isinstance(made, CapturedTexts)
            if into is not None:
                client.captures.download(made.capture_id, into)
            _show(client.captures.get(made.capture_id), into, as_json)


def _source(
    lines: Path | None, corpus: str | None, local_path: str | None, repo: str | None
) -> dict[str, Any]:
    """The fields that name the texts."""
    fields = drop_none(corpus_id=corpus, local_path=local_path)
    if repo is not None:
        owner, _, rest = repo.partition("/")
        repository, _, fields["file_path"] = rest.partition("/")
        fields["repo_id"] = f"{owner}/{repository}"
    if lines is not None:
        fields["texts"] = _lines(lines)
    return fields


def _show(found: CaptureDetails, into: Path | None, as_json: bool) -> None:
    if as_json:
        show_json(found)
        return
    show_facts(
        {
            "capture": f"{found.id} {found.name}",
            "rows": f"{found.rows}, of {found.tokens} tokens",
            "sites": ", ".join(one.tensor for one in found.sites),
            "size": _size(found.stored_bytes),
            "folder": into and str(into),
        }
    )


def _list(client: Client, as_json: bool) -> None:
    listed = client.captures.list()
    if as_json:
        show_json(listed)
        return
    show_table(
        ["id", "capture", "model", "sites", "rows", "size", "state"],
        [
            (
                one.id,
                one.name,
                one.model,
                len(one.sites),
                one.rows,
                _size(one.stored_bytes),
                one.state,
            )
            for one in listed
        ],
    )


def _site(text: str) -> dict[str, object]:
    """Raises:
    typer.BadParameter: the text is no site with its layers.
    """
    name, _, rest = text.partition(":")
    layers, _, heads = rest.partition(":")
    try:
        made: dict[str, object] = {"site": name, "layers": layers}
        if layers != "all":
            made["layers"] = [int(one) for one in layers.split(",")]
        if heads:
            made["heads"] = [int(one) for one in heads.split(",")]
    except ValueError:
        raise typer.BadParameter(f"{text!r} is no site such as resid_post:10,14") from None
    return made


def _lines(file: Path) -> list[str]:
    """The texts of a file."""
    if str(file) == "-":
        read = sys.stdin.read()
    else:
        try:
            read = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise typer.BadParameter(f"{file} cannot be read: {error}") from None
    return [line for line in read.splitlines() if line.strip()]


def _size(size: int) -> str:
    return output.megabytes(-(-size // 2**20))
