"""All cases by their worlds."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain, cycle
from typing import Any

from tests.net.answers import options, refused
from tests.net.answers.case import CHAT, COMPARE, EMBEDDINGS, RESPONSES, TEXT, Case, body_of
from tests.net.answers.options import Options

ROUTES = {"chat": CHAT, "completions": TEXT, "responses": RESPONSES, "embeddings": EMBEDDINGS}
PATHS = ROUTES | {"compare": COMPARE}
STREAMED = {"stream": True}
STRICT = {"X-Service-Strict": "true"}


def whole(group: str, route: str, of: Options, **more: Any) -> Iterator[Case]:
    """Each option in an answer of one body."""
    path = PATHS[route]
    return (Case(name, group, path, body_of(path, one), **more) for name, one in of.items())


def streamed(group: str, route: str, of: Options, **more: Any) -> Iterator[Case]:
    """Each option in a stream."""
    path = PATHS[route]
    for name, one in of.items():
        yield Case(f"{name}, streamed", group, path, body_of(path, one) | STREAMED, **more)


def both(group: str, route: str, of: Options, **more: Any) -> Iterator[Case]:
    """Each option in an answer of one body, and in a stream."""
    return chain(whole(group, route, of, **more), streamed(group, route, of, **more))


def in_turn(group: str, route: str, of: Options, turn: int, **more: Any) -> Iterator[Case]:
    """Every second option in a stream, and the others in an answer of one body. The next turn has it the other way
    round, so that two routes together have each option in both forms."""
    for at, (name, one) in enumerate(of.items()):
        form = streamed if (at + turn) % 2 else whole
        yield from form(group, route, {name: one}, **more)


def shared_out(routes: Collection[str], of: Options) -> dict[str, Options]:
    """Options that no route reads otherwise than another: each has its turn at one of these routes."""
    found: dict[str, Options] = {route: {} for route in routes}
    for (name, one), route in zip(of.items(), cycle(routes), strict=False):
        found[route][name] = one
    return found


# ---------------------------------------------------------------- the checkpoint engine


def _headers(group: str, route: str) -> Iterator[Case]:
    """Headers and queries that are taken."""
    path = ROUTES[route]
    unused = body_of(path, {"user": "anna"})
    for value in ("true", "1"):
        sent = {"X-Service-Strict": value}
        yield Case(f"strict: {value}", group, path, body_of(path, {}), headers=sent)
    for value in ("false", "0"):
        sent = {"X-Service-Strict": value}
        yield Case(f"strict: {value}", group, path, unused, headers=sent)
    misspelled = body_of(path, {"sae_stering": {}})
    lenient = {"X-Service-Strict": "false"}
    yield Case("not strict, a nearly right name", group, path, misspelled, headers=lenient)
    for name, value in (
        ("X-Service-Load-Policy", "refuse"),
        ("X-Service-Load-Policy", "auto"),
        ("X-Service-Lease", "lease_nobody"),
        ("X-Request-Id", "net:1"),
        ("Content-Type", "application/vnd.api+json"),
    ):
        plain = body_of(path, {})
        yield Case(f"{name}: {value}", group, path, plain, headers={name.lower(): value})
    yield Case("a query", group, path, body_of(path, {}), query="api-version=1&b=")


_IN_STREAMS_OF_RESPONSES = (
    *("greedy", "a seed", "several stops", "unused fields", "metadata", "report"),
    *("sae_steering, reported", "return_logprobs, steered and plain", "return_readings, steered"),
    *("activations, stream_positions, readings", "activations, rank without corpora"),
    *("items", "include with top_logprobs", "include, steered", "text", "json_object"),
)
"""Each event of these streams is long, so few options are streamed."""


def _checkpoint_answers() -> Iterator[Case]:
    chat, text, responses = "checkpoint-chat", "checkpoint-completions", "checkpoint-responses"
    yield from in_turn(chat, "chat", options.SHARED | options.DIAL, 0)
    yield from both(chat, "chat", options.CHAT)
    yield from in_turn(text, "completions", options.SHARED, 1)
    yield from both(text, "completions", options.TEXT)
    yield from whole(responses, "responses", options.SHARED | options.DIAL)
    known = options.SHARED | options.RESPONSES
    few = {name: known[name] for name in _IN_STREAMS_OF_RESPONSES}
    yield from streamed(responses, "responses", few)
    yield from whole(responses, "responses", options.RESPONSES)
    yield from in_turn("checkpoint-scores-chat", "chat", options.CHAT_SCORES, 0)
    yield from in_turn("checkpoint-scores-completions", "completions", options.TEXT_SCORES, 1)
    edited = shared_out(("chat", "completions"), options.EDITS)
    yield from whole("checkpoint-edits", "chat", edited["chat"])
    yield from whole(
        "checkpoint-edits", "completions", _renamed("completions", edited["completions"])
    )
    yield from whole("checkpoint-embeddings", "embeddings", options.EMBEDDINGS)
    yield from both("checkpoint-compare", "compare", options.COMPARE)
    for route in ROUTES:
        yield from _headers(f"checkpoint-{route}", route)


def _checkpoint_refusals() -> Iterator[Case]:
    everywhere = refused.SAMPLING | refused.STEERING
    inside = shared_out(("chat", "completions", "responses"), refused.INSIDE)
    for route, of in {
        "chat": everywhere | inside["chat"] | refused.DIAL | refused.LIMITS | refused.CHAT,
        "completions": everywhere | inside["completions"] | refused.LIMITS | refused.TEXT,
        "responses": everywhere | inside["responses"] | refused.DIAL | refused.RESPONSES,
        "embeddings": refused.EMBEDDINGS,
    }.items():
        group, path = f"refused-{route}", ROUTES[route]
        yield from whole(group, route, of)
        for name, body in refused.BODIES.items():
            yield Case(name, group, path, body)
        for name, sent in refused.HEADERS.items():
            yield Case(name, group, path, body_of(path, {}), headers=sent)
        yield from whole(group, route, refused.STRICT, headers=STRICT)
    named_as_in_chats = body_of(RESPONSES, {}) | {"max_tokens": 4}
    yield Case("max_tokens", "refused-responses", RESPONSES, named_as_in_chats)


def _scenes() -> Iterator[Case]:
    """What requests get beside what an operator has set."""
    for at, scene in enumerate(("bare", "live", "active", "both", "circuit", "measured")):
        more: Mapping[str, Any] = {"scene": scene}
        group = f"scene-{scene}"
        # a scene that has an option in a chat has it in no stream of a text; the next scene has it the other way round
        ways = shared_out(("chat", "completions")[:: 1 if at % 2 else -1], options.BESIDE)
        yield from whole(group, "chat", ways["chat"] | options.BESIDE_IN_CHATS, **more)
        for name, one in ways["completions"].items():
            yield from streamed(group, "completions", {f"{name}, of a text": one}, **more)
        for route in ("responses", "embeddings"):
            yield from whole(group, route, {route: {}}, **more)


# ---------------------------------------------------------------- other ways of serving

COUNTING: dict[str, dict[str, Any]] = {
    "chat": {"model": "counting", "messages": [{"role": "user", "content": "count"}]},
    "completions": {"model": "counting", "prompt": "one two"},
    "responses": {"model": "counting", "input": "count"},
    "embeddings": {"model": "counting", "input": "one two"},
}
"""What the counting model is asked."""
_UNSEEDED = ("a seed", "top_p", "top_p of zero", "temperature of two")


def _counting(route: str, of: Options) -> Options:
    """Options for the counting model. A body keeps its own prompt where it has one, and the profile in its name."""
    plain, found = COUNTING[route], {}
    for name, one in of.items():
        model = str(one.get("model", "")).replace("demo", plain["model"])
        found[name] = plain | one | {"model": model or plain["model"]}
    return found


def _gguf() -> Iterator[Case]:
    cold: Options = {
        "top_p": {"temperature": 0.1, "top_p": 0.5},
        "temperature": {"temperature": 0.01},
        "to the end": {"max_tokens": 40},
        "unseeded, refused": options.SAMPLING["a seed"],
    }
    sampling = {n: one for n, one in options.SAMPLING.items() if n not in _UNSEEDED} | cold
    more: Mapping[str, Any] = {"world": "gguf", "scene": "bare"}
    of = {
        "chat": sampling | options.CHAT,
        "completions": sampling | options.TEXT,
        "responses": options.RESPONSES | {"greedy": {}},
    }
    told = shared_out(of, options.STEERING | options.TOLD)
    for turn, (route, plain) in enumerate(of.items()):
        yield from in_turn(f"gguf-{route}", route, _counting(route, plain), turn, **more)
        yield from whole(f"gguf-{route}", route, _counting(route, told[route]), **more)
    scores = {"chat": options.CHAT_SCORES, "completions": options.TEXT_SCORES}
    for route, scored in scores.items():
        yield from whole("gguf-scores", route, _renamed(route, _counting(route, scored)), **more)
    yield from whole("gguf-chat", "chat", _counting("chat", options.DIAL), **more)
    embedded = _counting("embeddings", options.EMBEDDINGS)
    yield from whole("gguf-embeddings", "embeddings", embedded, **more)


def _renamed(route: str, of: Options) -> Options:
    return {f"{route}: {name}": one for name, one in of.items()}


def _other(world: str) -> Iterator[Case]:
    """A few of each kind, where the demo model is served another way."""
    more: Mapping[str, Any] = {"world": world}
    names = ("greedy", "a seed", "stop", "unused fields", "sae_steering, reported")
    few = {name: options.SHARED[name] for name in names}
    told = ("return_logprobs, steered and plain", "return_readings", "activations, all")
    few |= {name: options.SHARED[name] for name in told}
    chats = ("profile", "an intensity", "n", "n, greedy", "extra_messages", "json_object")
    chat = {name: (options.DIAL | options.CHAT)[name] for name in chats}
    for turn, (route, of) in enumerate(
        {
            "chat": few | chat | {"logprobs": options.CHAT_SCORES["top_logprobs"]},
            "completions": few | options.TEXT | {"echo": options.TEXT_SCORES["echo"]},
            "responses": few,
        }.items()
    ):
        yield from in_turn(f"{world}-{route}", route, of, turn, **more)
    yield from whole(f"{world}-embeddings", "embeddings", {"a text": {}}, **more)


def _recorded() -> Iterator[Case]:
    """Answers that are recorded, their records, and what they are when they are made again."""
    told = ("return_logprobs, steered and plain", "return_readings, steered", "activations, all")
    steered = ("sae_steering, reported", "sae_steering, seeded", "interventions, add", "report")
    shared = {name: options.SHARED[name] for name in (*told, *steered)}
    asked = {
        "chat": {"n": options.CHAT["n"], **shared, "profile": options.DIAL["profile"]},
        "completions": {
            **shared,
            "several prompts": options.TEXT["several prompts"],
            "no store": options.SAMPLING["no store"],
            "unused fields": options.SAMPLING["unused fields"],
            "echo": options.TEXT_SCORES["echo"],
        },
        "responses": {"greedy": {}, "instructions": options.RESPONSES["instructions"]},
    }
    for route, of in asked.items():
        ways = whole if route == "chat" else both
        for at, case in enumerate(ways(f"recorded-{route}", route, of)):
            sent = f"net-{route}-{at}"
            run = f"/api/runs/{sent}"
            then = (("GET", run), ("POST", f"{run}/replay"))
            yield Case(
                case.name,
                case.group,
                case.path,
                case.body,
                "recorded",
                headers={"X-Request-Id": sent},
                then=then,
            )


def _by_world(*cases: Iterator[Case]) -> dict[str, list[Case]]:
    """Cases by their worlds, those of one scene behind each other."""
    found: dict[str, list[Case]] = {}
    for case in chain(*cases):
        found.setdefault(case.world, []).append(case)
    for made in found.values():
        scenes = list(dict.fromkeys(case.scene for case in made))
        made.sort(key=lambda case: scenes.index(case.scene))
    return found


CASES = _by_world(
    _checkpoint_answers(),
    _checkpoint_refusals(),
    _scenes(),
    _gguf(),
    _other("batching"),
    _recorded(),
    _other("replicas"),
)
"""World -> its cases."""
