"""The command that reads values of sites over texts, and gets their files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from steerserve.client import Client
from steerserve.control.inference.capture_views import CapturedTexts
from steerserve.terminal import output
from steerserve.terminal.output import show_facts, show_json, show_table

Dtype = Literal["float32", "float16", "bfloat16"]


def capture(
    name: Annotated[
        str | None, typer.Argument(help="Name of the capture; without it, captures are listed.")
    ] = None,
    site: Annotated[
        list[str] | None,
        typer.Option(help="resid_post:10,14 or mlp_out:all; with heads hook_z:3:0,5."),
    ] = None,
    texts: Annotated[
        Path | None, typer.Option(help="File with one text in each line; - is the input.")
    ] = None,
    corpus: Annotated[str | None, typer.Option(help="Id of a corpus.")] = None,
    local_path: Annotated[
        str | None, typer.Option(help="File of texts on the service's machine.")
    ] = None,
    repo: Annotated[
        str | None, typer.Option(help="owner/repository/file of a data set on the hub.")
    ] = None,
    positions: Annotated[str, typer.Option(help="all, last, or another name.")] = "all",
    dtype: Annotated[Dtype, typer.Option(help="Type of the values.")] = "float32",
    context: Annotated[int, typer.Option(help="Tokens that are read together.")] = 512,
    max_tokens: Annotated[int, typer.Option(help="The most tokens that are read.")] = 1_000_000,
    into: Annotated[
        Path | None, typer.Option(help="Get the files into this folder at the end.")
    ] = None,
    rm: Annotated[str | None, typer.Option(help="Delete the capture with this id.")] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print what the routes answer, as JSON.")
    ] = False,
) -> None:
    """Read the values of sites over many texts into files; the same command carries on a reading that was cut."""
    if (name is None) != (site is None) or (rm is not None and name is not None):
        raise typer.BadParameter("give NAME with --site, or --rm, or nothing to list captures")
    fields: dict[str, Any] = {"corpus_id": corpus, "local_path": local_path}
    if repo is not None:
        owner, _, rest = repo.partition("/")
        repository, _, fields["file_path"] = rest.partition("/")
        fields["repo_id"] = f"{owner}/{repository}"
    if texts is not None:
        fields["texts"] = _lines(texts)
    sent = {field: value for field, value in fields.items() if value is not None}
    with output.refusals(), Client() as client:
        if rm is not None:
            gone = client.captures.delete(rm)
            if as_json:
                show_json(gone)
            else:
                typer.echo(output.readable(f"{gone.capture_id} is deleted"))
            return
        if name is None:
            _list(client, as_json)
            return
        job = client.captures.read(
            name,
            list(map(_site, site or [])),
            positions=positions,
            dtype=dtype,
            context=context,
            max_tokens=max_tokens,
            **sent,
        )
        made = client.jobs.wait(job.id, progress=output.is_lively()).result
        assert isinstance(made, CapturedTexts)
        if into is not None:
            client.captures.download(made.capture_id, into)
        found = client.captures.get(made.capture_id)
        if as_json:
            show_json(found)
        else:
            show_facts(
                {
                    "capture": f"{found.id} {found.name}",
                    "rows": f"{found.rows} of {found.tokens} tokens",
                    "sites": ", ".join(one.tensor for one in found.sites),
                    "files": _size(found.stored_bytes),
                    "folder": "" if into is None else str(into),
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
