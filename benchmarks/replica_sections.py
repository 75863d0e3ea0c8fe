"""The sections of the page of the performance about replicas, whose engines are simulated."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.markdown import medians, prose, table, tenths, two_columns
from benchmarks.tables import Part, ms, rows, spread


def scaling(_: str, figures: Part) -> Iterator[str]:
    yield prose(
        f"Simulated engines, which wait {figures['step_ms']:g} ms for each step of up to {figures['rows']} rows, "
        f"behind the real service. Each replica has {figures['rows']} requests at once, of {figures['tokens']} tokens "
        "each. The way is the time from the engine to the client. All processes and the client share the cores of one "
        "machine."
    )
    head = (
        "",
        "tokens/s",
        "way p50, ms",
        "p99",
        "first token p50, ms",
        "p99",
        "\u00b5s of the service for a token",
    )
    lines = [
        (
            name,
            spread(cell["tokens_per_s"], 0),
            *(tenths(cell["way_s"][share]) for share in ("p50", "p99")),
            *medians(cell["first_token_s"]),
            spread(cell["service_us_per_token"], 1),
        )
        for name, cell in figures["cells"].items()
    ]
    yield table(head, lines)


def latency(part: str, figures: Part) -> Iterator[str]:
    yield prose(
        f"One request of {figures['tokens']} tokens at a time, at services in turns; a step of "
        f"{figures['step_ms']:g} ms. The added times are medians of the differences to one local engine, turn by turn."
    )
    lines = [
        (
            name,
            ms(first, 2),
            ms(figures["way_s"][name], 3),
        )
        for name, first in figures["first_token_s"].items()
    ]
    yield table(("", "first token, ms", "way of a token, ms"), lines)
    yield two_columns(rows(part, figures))


def steering(part: str, figures: Part) -> Iterator[str]:
    yield prose(
        f"{figures['changes']} changes one after the other, without requests and beside 2 requests for each replica. "
        f"An engine carries a change out between two steps of {figures['step_ms']:g} ms, so a change beside requests "
        "waits for the step that runs, and with several replicas for the last of their steps."
    )
    head = ("", "alone p50, ms", "p99", "beside requests p50, ms", "p99")
    lines = [
        (
            name,
            *(
                f"{cell[key][share] * 1e3:.1f}"
                for key in ("alone_s", "beside_requests_s")
                for share in ("p50", "p99")
            ),
        )
        for name, cell in figures["cells"].items()
    ]
    yield table(head, lines)
    yield two_columns(rows(part, figures)[-1:])


def limit(_: str, figures: Part) -> Iterator[str]:
    yield prose(
        f"{figures['requests']} requests at once to engines that make "
        f"{figures['demanded_tokens_per_s']:,.0f} tokens/s. The service runs on one core."
    )
    head = (
        "",
        "tokens/s",
        "\u00b5s of the service for a token",
        "of them in the system",
        "cores: service",
        "client",
    )
    lines = [
        (
            name,
            spread(cell["tokens_per_s"], 0),
            spread(cell["service_us_per_token"], 1),
            spread(cell["system_us_per_token"], 1),
            f"{cell['service_share_of_a_core']:.2f}",
            f"{cell['client_share_of_a_core']:.2f}",
        )
        for name, cell in figures["cells"].items()
    ]
    yield table(head, lines)
    yield "Where the processor time of the service goes:"
    names = list(figures["profile"])
    parts = dict.fromkeys(part for shares in figures["profile"].values() for part in shares)
    yield table(
        ("", *names),
        [
            (part, *(f"{figures['profile'][name].get(part, 0.0):.0%}" for name in names))
            for part in parts
        ],
    )
