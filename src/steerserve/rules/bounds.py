"""Bounds on what clients give, and on what is kept of it: the rule, the numbers, and one table of all of them.

The rule has four parts:

1. Whatever a client gives is bounded before it is looked at: bytes before they are parsed, values before they become
   objects, names before a loop reads their characters, conditions, texts and tokens before they are worked on.
2. No turn of the event loop, and no turn of the engine's main thread, lasts longer than TURN_SECONDS because of what
   one client gave. Longer work goes to a thread (where it is C that releases the lock), to a helper process, or is cut
   into slices.
3. Memory is bounded in all, and not only for each request: where one client may hold some memory, all clients together
   have a bound too.
4. What was cancelled stops. Work that reads or computes for long looks at its cancellation.

A constant here has a docstring that names its unit. A row of BOUNDS names constants and settings in braces, as
`{HEAD_BYTES:bytes}`; after the colon comes the unit in which the page shows the number: nothing for a plain number,
`bytes`, `s`, `MiB`, `MB`, or `name` for a setting without its default. `python -m docs.generate` writes the rows of
each group into the table of that group in docs/limits.md. The tests check that every constant is in a row, and that the
test that a row names exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

TURN_SECONDS: Final = 0.05
"""Seconds that one turn of the event loop or of the engine's main thread may last because of one client's input."""

TURNS_SHOWN: Final = 8
"""Longest turns of a thread that health shows."""

# ------------------------------------------------------------------------------------------------------- connections

HEAD_BYTES: Final = 65_536
"""Bytes of the head of a request (its first line and its headers), and bytes of its trailers."""
PIPELINED_REQUESTS: Final = 16
"""Requests on one connection that may wait for the answer before them."""
IGNORED_BODIES: Final = 2
"""What may still arrive of a body after its request was answered, as a multiple of MAX_BODY_BYTES."""
KEEP_ALIVE_SECONDS: Final = 75
"""Seconds that a connection without a request stays open."""
UNREAD_BYTES: Final = 256 << 20
"""Bytes of answers that all clients together may leave unread in this process."""
RESERVED_CONNECTIONS: Final = 64
"""Connections above the limit that are answered: probes get their answer, other requests a 503."""
LIVE_MESSAGE_BYTES: Final = 10_000
"""Bytes of one message of a client of live events."""
LIVE_BURST_BYTES: Final = 16_384
"""Bytes that a client of live events may send at once."""
LIVE_BYTES_PER_SECOND: Final = 2048
"""Bytes that a client of live events may send in each further second."""
LIVE_FRAGMENTS: Final = 100
"""Fragments of one message of a client of live events."""
LIVE_POLL_BYTES: Final = 10_000
"""Bytes of packets in one polling request of live events."""
LIVE_POLL_PACKETS: Final = 16
"""Packets in one polling request of live events; the library reads no more."""
LIVE_QUERY_BYTES: Final = 1000
"""Bytes of the query of an address of live events."""
LIVE_UNREAD_EVENTS: Final = 1000
"""Events that may wait for one client. A client that is further behind is disconnected, and can read the state anew."""

# ------------------------------------------------------------------------------------------------------------ bodies

MANAGEMENT_BODY_VALUES: Final = 50_000
"""Commas and opening brackets in the body of a management request, those in its texts included."""
INFERENCE_BODY_VALUES: Final = 200_000
"""Values in the body of an inference request, without the commas and brackets in its texts."""
UNUSED_FIELDS: Final = 10_000
"""Fields inside one field of an inference request that the route does not use."""
FORM_BYTES: Final = 1 << 16
"""Bytes that a form with a file may have beside the file."""
NAME_CHARACTERS: Final = 512
"""Characters of a name of a model, with the profile after its `@`, of a profile, or of an id of an SAE."""
SMALL_BODY_BYTES: Final = 64 << 10
"""Bytes of a body that does not count among those that share REQUEST_BODIES_MB."""
STEERED_FEATURES: Final = 1000
"""Features in one body that steers, and in one profile."""
EDITS: Final = 64
"""Edits of one request, of the live interventions, and of one profile."""
SITE_EDITS: Final = 16
"""Edits of one list at one site that are not `add`."""
CONDITIONS: Final = 64
"""Conditions of all edits of one list, without the `any` and `all` that hold them."""
CONDITION_CHOICES: Final = 16
"""Conditions in one `any` or `all`."""
CONDITION_LEVELS: Final = 4
"""`any` and `all` that may stand inside each other."""
EDIT_LIST_ENTRIES: Final = 1000
"""Entries of a list of positions, tokens, layers or heads of an edit."""
EDIT_SOURCES: Final = 16
"""Texts that the edits of one list read the values of a `replace` in."""
EDIT_SOURCE_TOKENS: Final = 32_768
"""Tokens of all texts that the edits of one list read."""
EDIT_TEXT_CHARACTERS: Final = 1000
"""Characters of a text of an edit, or of the name of its vector."""
EDIT_VECTOR_BYTES: Final = 64 << 10
"""Bytes of a vector inside a request, before base64."""
RECORDED_LISTS: Final = 2
"""Lists of edits that the record of an answer holds: those of its request, and the live ones beside them."""

# --------------------------------------------------------------------------------------------------------- documents

DOCUMENT_BYTES: Final = 1 << 20
"""Bytes of the body of an import."""
DOCUMENT_LEVELS: Final = 32
"""Objects and lists of a document that may stand inside each other."""
PROFILE_EDITS_BYTES: Final = 1 << 20
"""Bytes of the edits of a profile, as JSON."""
CIRCUIT_LAYERS: Final = 16
"""Layers of a circuit."""
CIRCUIT_EDGES: Final = 200
"""Edges of a circuit."""
CIRCUIT_ENTRIES: Final = 1000
"""Entries in the `members` of a circuit. An entry may repeat features of other entries, so that a circuit may have more
entries than features."""
CLUSTER_MEMBERS: Final = 20
"""Members of a cluster, and features of one layer of a circuit."""
BUNDLE_DEFINITIONS: Final = 50
"""Definitions in a bundle of clusters."""
LABELS_VALUES: Final = 1_000_000
"""Values in the body of an import of labels."""
ATTRIBUTION_TOKENS: Final = 4096
"""Tokens up to the position of an attribution by gradients."""
ATTRIBUTION_POSITIONS: Final = 4096
"""Positions times steps of an attribution by gradients."""
ATTRIBUTION_STEPS: Final = 256
"""Steps of an attribution by integrated gradients."""
PATCH_CELLS: Final = 65_536
"""Cells of a patch sweep."""
PATCH_GROUPS: Final = 16_384
"""Positions, groups of positions, positions of a group, and pairs of `align` of a patch sweep."""
PATCH_NOISE_REPEATS: Final = 64
"""Patches of a text into itself in a patch sweep."""
LENS_INDEX_BYTES: Final = 64 << 10
"""Bytes of the index of the file of a lens, which requests may name. A lens has one or two tensors for each layer."""
VECTOR_FILE_BYTES: Final = 32 << 20
"""Bytes of a file of vectors, or of a probe. 80 layers of 16,384 float32 numbers are a sixth of this."""
VECTOR_NUMBERS: Final = 2_000_000
"""Numbers in a JSON file of vectors. 80 layers of 8,192 numbers are a third of this."""
VECTOR_PARTS: Final = 50_000
"""Objects, lists and texts in a JSON file of vectors, and values in the header of a safetensors file."""
VECTOR_WIDTH: Final = 1 << 16
"""Numbers of one direction."""
RUN_VALUES: Final = 500_000
"""Values in one record of a run that is imported, and in one JSON body with records."""
IMPORT_LINES: Final = 100_000
"""Lines in one import of records of runs."""
BATCH_LINE_BYTES: Final = 8192
"""Bytes of a line of a batch beside its body."""
LOCAL_FOLDER_ENTRIES: Final = 20_000
"""Files and folders in a folder of this machine that a request names. All are looked at for links."""
CLIENT_ANSWER_BYTES: Final = 1 << 29
"""Bytes of one answer, or of one stream, that the Python client reads."""
PACK_DEFINITIONS: Final = 200
"""Definitions of a pack that are listed."""

# ------------------------------------------------------------------------------------------------- files of numbers

ARCHIVE_ENTRIES: Final = 10_000
"""Entries of an archive with vectors, probes or weights."""
ARCHIVE_LIST_BYTES: Final = 2 << 20
"""Bytes of the list of entries of an archive with weights."""
PICKLE_INSTRUCTIONS: Final = 100_000
"""Instructions in all pickles of a file. A tensor takes about thirty."""
PICKLED_INDEX_BYTES: Final = 1 << 20
"""Bytes of the pickle of a file of vectors or probes. A tensor takes about two hundred."""
WEIGHTS_INDEX_BYTES: Final = 4 << 20
"""Bytes of the index of a file of weights: of the header of safetensors, and of each pickle."""
DIRECTIONS: Final = 1024
"""Directions of a vector."""

CORPUS_TEXT_BYTES: Final = 16 << 20
"""Bytes of one line of a corpus, and of one text of a text file."""
CORPUS_HUB_BYTES: Final = 64 << 20
"""Bytes of a file of a corpus that is read from the hub."""

# ----------------------------------------------------------------------------------------------------------- answers

PAGE_ROWS: Final = 200
"""Rows in one answer of a list of stored documents."""
MONITORING_ANSWER_BYTES: Final = 1 << 24
"""Bytes of the records, or of the features, in one answer of monitoring."""

STORED_READ_BYTES: Final = 256 << 10
"""Bytes that are read from the database at once for an answer that is a file."""

LABEL_ANSWER_SECONDS: Final = 60.0
"""Seconds that an endpoint of LABEL_ENDPOINTS has for a whole answer."""
LABEL_ANSWER_BYTES: Final = 1 << 20
"""Bytes of an answer of such an endpoint."""
LABEL_ANSWER_PARTS: Final = 10_000
"""Parts in which such an answer may come."""
JOBS_RUNNING: Final = 4
"""Jobs that run at once; further ones wait for their turn."""
JOBS_OF_CLIENT: Final = 3
"""Jobs of one client that run at once."""
JOBS_UNFINISHED: Final = 32
"""Jobs that run or wait."""

# ------------------------------------------------------------------------------------------------------ what is kept

HISTORY_RECORDS: Final = 1000
"""Records of monitoring that are kept."""
HISTORY_ACTIVATIONS: Final = 200_000
"""Activations in all records of monitoring that are kept. A record counts its features and its strongest features, and
itself as one."""
LABELS_KEPT: Final = 400_000
"""Labels that are kept in memory, about 80 MB. The labels that were read last are kept in any case."""
LABELLED_SAES_KEPT: Final = 1000
"""SAEs whose labels are kept in memory. An SAE without labels counts too."""
PROFILES_KEPT: Final = 64
"""Profiles that are kept in memory."""
PACK_ANSWERS_KEPT: Final = 64
"""Answers of the hub about packs that are kept in memory."""
HUB_HEADERS_KEPT: Final = 8
"""Headers of files at the hub that are kept, so that a download after a look at a file does not read its beginning
again."""
HUB_HEADER_KEPT_BYTES: Final = 128 << 10
"""Bytes of one header that is kept; larger ones are not kept."""
WAITING_CHOICES: Final = 1000
"""Choices whose sensing events wait to be written; the events of further choices are lost."""
SCHEMAS_KEPT: Final = 64
"""Schemas that are remembered as good."""
ACCOUNTS_KEPT: Final = 1000
"""Clients whose used time is remembered after a cleaning, which comes when there are twice as many."""
LOG_LINES_KEPT: Final = 500
"""Lines of the log that are kept in memory."""
DURATIONS_KEPT: Final = 1000
"""Durations of the latest requests, from which the percentiles are computed."""

# --------------------------------------------------------------------------------------------------------- the table

Group = Literal["connections", "bodies", "documents", "files", "stored", "kept", "links"]


@dataclass(frozen=True)
class Bound:
    """One row of the table."""

    group: Group
    what: str
    """What a client does, or what is kept."""
    bound: str
    """Constants and settings in braces, with their units; the words around them."""
    beyond: str
    """What happens beyond the bound."""
    test: str
    """The test that shows it, as `path::function`; of the web page as `path::title`."""


_CONNECTIONS = "tests/http/test_connections.py"
_LIVE = "tests/http/test_live_link.py"
_IMPORTS = "tests/api/steering/test_import_limits.py::test_a_document_at_a_limit_leaves_liveness"
_DEEP = "tests/api/steering/test_import_limits.py::test_a_document_that_is_nested_too_deep_is_refused_by_name"
_FILES = "tests/files/directions/test_vectors.py"
_TOO_MUCH = f"{_FILES}::test_what_a_file_has_too_much_of_is_refused_before_objects_are_made_of_it"
_HOSTILE = "tests/worker/sae/test_files.py::test_a_hostile_file_is_refused_by_name_and_fault"
_STORED = "tests/api/steering/test_stored_documents.py"

BOUNDS: Final[tuple[Bound, ...]] = (
    Bound(
        "bodies",
        "sends anything within the bounds below",
        "{TURN_SECONDS:s} of the event loop at a time",
        "longer work is done in a thread, in a process, or in slices",
        "tests/openai/test_counts.py::test_a_body_at_the_bounds_leaves_the_event_loop_free",
    ),
    Bound(
        "connections",
        "sends a large head (first line and headers), large trailers, or large chunk extensions",
        "{HEAD_BYTES:bytes}",
        "431 `HEADERS_TOO_LARGE`, and the connection is closed",
        f"{_CONNECTIONS}::test_bytes_beside_the_body_are_bounded",
    ),
    Bound(
        "connections",
        "sends the head slowly, or connects and sends nothing",
        "{REQUEST_HEADERS_TIMEOUT:s}",
        "408 `REQUEST_TIMEOUT` once something came, and the connection is closed",
        f"{_CONNECTIONS}::test_headers_that_do_not_arrive_end_the_connection",
    ),
    Bound(
        "connections",
        "sends a large body",
        "{MAX_BODY_BYTES:MB}",
        "413 `PAYLOAD_TOO_LARGE`",
        "tests/api/test_envelope.py::test_a_document_that_is_too_large_is_not_read",
    ),
    Bound(
        "connections",
        "sends a body in UTF-16 or UTF-32",
        "",
        "415 `UNSUPPORTED_ENCODING`",
        "tests/api/steering/test_import_limits.py::test_a_body_that_is_not_utf_8_is_refused",
    ),
    Bound(
        "connections",
        "sends the body slowly",
        "{REQUEST_BODY_TIMEOUT:s}",
        "408 `REQUEST_TIMEOUT`, and the connection is closed",
        f"{_CONNECTIONS}::test_a_body_that_does_not_arrive_is_refused_with_a_code",
    ),
    Bound(
        "connections",
        "goes on sending a body after its answer",
        "{IGNORED_BODIES} times {MAX_BODY_BYTES:name}, or {REQUEST_BODY_TIMEOUT:name}",
        "the connection is closed",
        f"{_CONNECTIONS}::test_a_body_that_nobody_reads_is_not_taken_without_end",
    ),
    Bound(
        "connections",
        "sends what is not HTTP",
        "",
        "400 `MALFORMED_REQUEST`, and the connection is closed",
        f"{_CONNECTIONS}::test_what_is_not_http_is_refused_with_a_code",
    ),
    Bound(
        "connections",
        "sends requests before the answers of earlier ones",
        "{PIPELINED_REQUESTS} requests",
        "the connection is closed",
        f"{_CONNECTIONS}::test_requests_that_wait_on_one_connection_are_answered_in_order_and_bounded",
    ),
    Bound(
        "connections",
        "reads nothing of an answer",
        "{ANSWER_STALL_TIMEOUT:s}",
        "the connection is cut",
        f"{_CONNECTIONS}::test_a_client_that_reads_nothing_is_cut_and_one_that_reads_slowly_is_not",
    ),
    Bound(
        "connections",
        "leaves large answers unread on many connections",
        "{UNREAD_BYTES:bytes} in all",
        "the connections that have waited longest for their client are cut, until the rest is within the limit",
        f"{_CONNECTIONS}::test_answers_that_nobody_reads_are_bounded_over_all_clients",
    ),
    Bound(
        "connections",
        "asks while no [replica](replicas.md) serves and none finds a place",
        "{REPLICA_WAIT_S:s}",
        "503 `ENGINE_UNAVAILABLE` with `Retry-After`",
        "tests/engines/fleet/test_requests.py::test_without_a_replica_that_can_be_placed_the_wait_is_bounded",
    ),
    Bound(
        "connections",
        "makes no further request on a connection",
        "{KEEP_ALIVE_SECONDS:s}",
        "the connection is closed",
        f"{_CONNECTIONS}::test_headers_that_do_not_arrive_end_the_connection",
    ),
    Bound(
        "connections",
        "opens many connections",
        "{MAX_CONNECTIONS}; {RESERVED_CONNECTIONS} more are answered 503",
        "see [below](#when-all-connections-are-in-use)",
        f"{_CONNECTIONS}::test_above_the_limit_probes_are_answered_and_other_requests_are_refused",
    ),
    Bound(
        "connections",
        "opens many sessions of live events",
        "{MAX_LIVE_CLIENTS}",
        "503 `TOO_MANY_CONNECTIONS`; the oldest session that never joined is ended for a new one",
        f"{_LIVE}::test_sessions_are_bounded_and_those_that_never_join_make_room",
    ),
    Bound(
        "connections",
        "sends large or many messages as a client of live events",
        "{LIVE_MESSAGE_BYTES:bytes} and {LIVE_FRAGMENTS} fragments a message; {LIVE_BURST_BYTES:bytes} at once, then "
        "{LIVE_BYTES_PER_SECOND:bytes} a second",
        "the connection is closed with code 1008 or 1009",
        f"{_LIVE}::test_a_message_a_fragment_and_a_flood_are_bounded",
    ),
    Bound(
        "connections",
        "sends large or many packets in one polling request of live events",
        "{LIVE_POLL_BYTES:bytes}, {LIVE_POLL_PACKETS} packets, {LIVE_QUERY_BYTES:bytes} of query",
        "413 `PAYLOAD_TOO_LARGE`, 400 `INVALID_PARAMETER`",
        "tests/events/test_packets.py::test_a_request_with_many_or_large_packets_is_refused",
    ),
    Bound(
        "connections",
        "does not fetch its live events",
        "{LIVE_UNREAD_EVENTS} events",
        "its session is ended",
        f"{_LIVE}::test_a_client_that_fetches_no_events_is_disconnected",
    ),
    Bound(
        "bodies",
        "sends many large bodies at once",
        "{REQUEST_BODIES_MB:MiB} of all requests until they are answered, half of it of one client; bodies of up to "
        "{SMALL_BODY_BYTES:bytes} do not count",
        "the slowest body that is still arriving, of the client that has most, is refused with 503 `TOO_MANY_BODIES` "
        "and `Retry-After`",
        "tests/http/test_bodies.py::test_bodies_that_stand_still_make_room_for_others",
    ),
    Bound(
        "bodies",
        "sends many values to a route of `/api`",
        "{MANAGEMENT_BODY_VALUES} commas and opening brackets; imports have bounds of their own",
        "413 `PAYLOAD_TOO_LARGE` before the body is parsed",
        "tests/api/test_envelope.py::test_a_body_of_very_many_values_is_refused_before_it_is_read",
    ),
    Bound(
        "bodies",
        "sends many values to a route of `/v1`",
        "{INFERENCE_BODY_VALUES} values",
        "413 `PAYLOAD_TOO_LARGE` before the body is parsed",
        "tests/openai/test_counts.py::test_a_body_of_very_many_values_is_not_read",
    ),
    Bound(
        "bodies",
        "sends very many unknown fields inside `messages`, `input` or another field of a `/v1` request",
        "{UNUSED_FIELDS}",
        "400 `invalid_parameter`",
        "tests/openai/test_counts.py::test_a_count_over_its_limit_is_refused_before_it_is_validated",
    ),
    Bound(
        "bodies",
        "sends much beside the file in a form",
        "{FORM_BYTES:bytes}",
        "413 `PAYLOAD_TOO_LARGE`",
        "tests/openai/test_batches.py::test_batches_have_bounds",
    ),
    Bound(
        "bodies",
        "sends a long name of a model, of a profile, or of an SAE; also in the lines of a batch",
        "{NAME_CHARACTERS} characters",
        "400 `invalid_parameter` before the name is looked for; a line of a batch fails the check",
        "tests/openai/test_counts.py::test_a_long_name_is_refused_before_it_is_looked_for",
    ),
    Bound(
        "bodies",
        "steers many features in one request",
        "{STEERED_FEATURES} features",
        "422 `VALIDATION_ERROR`; under `/v1` 400",
        "tests/openai/test_counts.py::test_a_count_over_its_limit_is_refused_before_it_is_validated",
    ),
    Bound(
        "bodies",
        "sends many edits, in a request, as live interventions or in a profile",
        "{EDITS} edits, {SITE_EDITS} at one site that are not `add`; {EDIT_LIST_ENTRIES} entries of a list, "
        "{EDIT_TEXT_CHARACTERS} characters of a text, {EDIT_VECTOR_BYTES:bytes} of a vector; {EDIT_SOURCES} texts as "
        "sources of values, with {EDIT_SOURCE_TOKENS} tokens together",
        "422 `TOO_MANY_EDITS` before an edit is read, 422 `INVALID_INTERVENTION`; under `/v1` 400",
        "tests/rules/steering/test_interventions.py::test_more_than_64_edits_are_refused_before_any_is_read",
    ),
    Bound(
        "bodies",
        "sends many conditions of edits",
        "{CONDITIONS} in all edits together; {CONDITION_CHOICES} in one `any` or `all`, {CONDITION_LEVELS} of these "
        "inside each other",
        "422 `TOO_MANY_EDITS` before an edit is read; profiles of before are kept, and refused when they are used",
        "tests/rules/steering/test_interventions.py"
        "::test_more_than_64_conditions_are_refused_before_any_is_read",
    ),
    Bound(
        "bodies",
        "imports or replays a recorded answer with many edits",
        "{RECORDED_LISTS} times the edits and conditions of a request",
        "422 `TOO_MANY_EDITS`, `INVALID_INTERVENTION`",
        "tests/nouns/runs/test_rules.py"
        "::test_edits_that_no_request_can_have_are_refused_by_place_at_the_import_and_the_replay",
    ),
    Bound(
        "bodies",
        "sends a long text, or a conversation that is long once rendered, to `/api/tokenize`",
        "{TOKENIZE_MAX_CHARACTERS}",
        "413 `PAYLOAD_TOO_LARGE`",
        "tests/api/inference/test_tokens.py::test_what_cannot_be_answered_is_refused",
    ),
    Bound(
        "bodies",
        "asks for many positions and layers at `/api/lens`",
        "{LENS_MAX_DISTRIBUTIONS}, {LENS_MAX_ENTRIES}",
        "400 `INVALID_PARAMETER` before any pass",
        "tests/nouns/lens/test_routes.py::test_bounds_and_what_needs_a_model_or_an_sae",
    ),
    Bound(
        "bodies",
        "asks for gradients over many positions or steps at `/api/attribution`",
        "{ATTRIBUTION_TOKENS} tokens up to the position, {ATTRIBUTION_STEPS} steps, {ATTRIBUTION_POSITIONS} positions "
        "times steps",
        "400 `INVALID_PARAMETER` (422 for the steps) before any pass; the work is done in parts beside other rows",
        "tests/worker/rows/test_gradients.py::test_gradients_that_cannot_be_taken_are_refused_before_any_pass",
    ),
    Bound(
        "bodies",
        "asks for a large patch sweep at `/api/patches`",
        "{PATCH_CELLS} cells, {PATCHES_MAX_TOKENS} cells times tokens; {PATCH_GROUPS} positions, groups and positions "
        "of a group; {PATCH_NOISE_REPEATS} patches of a text into itself",
        "400 `INVALID_PARAMETER` (422 for the lists) before the job; the job runs in parts beside requests",
        "tests/nouns/patches/test_routes.py::test_a_sweep_that_is_too_large_is_refused_with_its_arithmetic",
    ),
    Bound(
        "documents",
        "circuit, cluster, bundle, definition of a pack",
        "{DOCUMENT_BYTES:bytes}, {DOCUMENT_LEVELS} objects and lists inside each other",
        "`PAYLOAD_TOO_LARGE`, `VALIDATION_ERROR`, with status 200",
        _DEEP,
    ),
    Bound(
        "documents",
        "profile",
        "{DOCUMENT_BYTES:bytes}, {DOCUMENT_LEVELS} levels",
        "413 `PAYLOAD_TOO_LARGE`, 422 `VALIDATION_ERROR`",
        _DEEP,
    ),
    Bound(
        "documents",
        "profile",
        "{STEERED_FEATURES} features, {PROFILE_EDITS_BYTES:bytes} of edits",
        "`VALIDATION_ERROR` with status 200",
        _IMPORTS,
    ),
    Bound(
        "documents",
        "circuit",
        "{CIRCUIT_ENTRIES} entries of `members`, {CIRCUIT_LAYERS} layers, {CLUSTER_MEMBERS} features of a layer, "
        "{CIRCUIT_EDGES} edges",
        "`VALIDATION_ERROR` with status 200",
        _IMPORTS,
    ),
    Bound(
        "documents",
        "cluster",
        "{CLUSTER_MEMBERS} members; {BUNDLE_DEFINITIONS} definitions in a bundle",
        "`VALIDATION_ERROR` with status 200",
        _IMPORTS,
    ),
    Bound(
        "documents",
        "labels",
        "{MAX_BODY_BYTES:MB}, {LABELS_VALUES} values, {DOCUMENT_LEVELS} levels",
        "413 `PAYLOAD_TOO_LARGE`, 422 `VALIDATION_ERROR`",
        _IMPORTS,
    ),
    Bound(
        "documents",
        "file of vectors, or of a probe",
        "{VECTOR_FILE_BYTES:bytes}, {VECTOR_WIDTH} numbers of a direction; in JSON {VECTOR_NUMBERS} numbers, and "
        "{VECTOR_PARTS} objects, lists and texts",
        "422 `INVALID_VECTOR`, `INVALID_PROBE` before the values are read",
        "tests/files/directions/test_vectors.py::test_a_file_beyond_a_bound_is_refused_before_its_values_are_made",
    ),
    Bound(
        "documents",
        "records of runs",
        "{MAX_BODY_BYTES:MB}, {IMPORT_LINES} lines; {RUN_VALUES} values of a record, and of a JSON body with records",
        "413 `PAYLOAD_TOO_LARGE` before a record is read",
        "tests/nouns/runs/test_routes.py::test_an_import_is_measured_before_its_records_are_read",
    ),
    Bound(
        "documents",
        "line of a batch",
        "{MAX_BODY_BYTES:MB} and {INFERENCE_BODY_VALUES} values, as a request; {BATCH_LINE_BYTES:bytes} beside the "
        "body",
        "the batch fails with `body_too_large` and the number of the line",
        "tests/rules/inference/test_batches.py::test_a_line_is_measured_before_its_values_are_read",
    ),
    Bound(
        "documents",
        "manifest of a pack",
        "{DOCUMENT_BYTES:bytes}, {PACK_DEFINITIONS} definitions",
        "further definitions are not listed",
        "tests/api/steering/test_import_limits.py::test_the_largest_manifest_of_a_pack_leaves_liveness",
    ),
    Bound(
        "files",
        "adds a vector or a probe with a long direction, or many directions",
        "{VECTOR_WIDTH} numbers, {DIRECTIONS} directions",
        "400 `INVALID_VECTOR` or `INVALID_PROBE` before a number of it is read",
        _TOO_MUCH,
    ),
    Bound(
        "files",
        "adds a `.pt` file of directions with a large index",
        "{PICKLED_INDEX_BYTES:bytes}, {PICKLE_INSTRUCTIONS} instructions, {ARCHIVE_ENTRIES} entries",
        "400 `INVALID_VECTOR` or `INVALID_PROBE` before objects are made of it",
        _TOO_MUCH,
    ),
    Bound(
        "files",
        "names a file of weights (an SAE or a lens) with a large index",
        "{WEIGHTS_INDEX_BYTES:bytes}, {PICKLE_INSTRUCTIONS} instructions, {ARCHIVE_ENTRIES} entries in a list of "
        "{ARCHIVE_LIST_BYTES:bytes}",
        "400 `SAE_LOAD_FAILED` or `INVALID_LENS` before objects are made of it",
        _HOSTILE,
    ),
    Bound(
        "files",
        "names a file of a lens with a large index, or in the layout of PyTorch before 1.6",
        "{LENS_INDEX_BYTES:bytes}",
        "422 `INVALID_LENS`; lenses are read in a thread beside the passes of the model",
        "tests/worker/rows/test_lens_files.py::test_a_lens_has_a_small_index",
    ),
    Bound(
        "files",
        "reads a corpus with a long line or a long text",
        "{CORPUS_TEXT_BYTES:bytes}; of JSON {INFERENCE_BODY_VALUES} values",
        "the job fails with `VALIDATION_ERROR` and the number of the line, before the line is parsed; a longer text of "
        "a text file is several texts",
        "tests/nouns/corpora/test_rules.py::test_values_of_a_line_are_counted_before_it_is_read",
    ),
    Bound(
        "files",
        "reads a corpus of the hub",
        "{CORPUS_HUB_BYTES:bytes}",
        "the job fails with `DOWNLOAD_FAILED`",
        "tests/hub/test_client.py::test_a_file_of_a_repository_of_data_sets_is_read",
    ),
    Bound(
        "files",
        "cancels a corpus that is read",
        "",
        "no further line is read; corpora have threads of their own",
        "tests/nouns/corpora/test_routes.py::"
        "test_cancelled_corpora_stop_reading_and_take_no_thread_of_others",
    ),
    Bound(
        "stored",
        "profiles, clusters, circuits, vectors, probes, kept effects and trained lenses, in all",
        "{MAX_STORED_DOCUMENTS}, {STORED_DOCUMENTS_MB:MiB}",
        "507 `DOCUMENT_STORE_FULL`; a bundle is stored whole or not at all",
        f"{_STORED}::test_no_document_is_stored_beyond_the_number",
    ),
    Bound(
        "stored",
        "files and batches, in all, and the answers of batches",
        "{MAX_BATCH_DOCUMENTS}, {BATCH_STORAGE_MB:MiB}, {BATCH_FILE_MB:MiB} for one file",
        "507 `DOCUMENT_STORE_FULL`, 413 `PAYLOAD_TOO_LARGE`; batches that run wait",
        "tests/openai/test_batches.py::test_a_full_store_refuses_files",
    ),
    Bound(
        "stored",
        "reads the output of a batch, or an export of runs",
        "{STORED_READ_BYTES:bytes} at once, or one record of a run",
        "the rest is read when the client has taken what was sent",
        "tests/database/test_by_bytes.py::test_stored_lines_are_read_by_their_bytes",
    ),
    Bound(
        "stored",
        "answer of an endpoint of {LABEL_ENDPOINTS:name}",
        "{LABEL_ANSWER_SECONDS:s} in all, {LABEL_ANSWER_BYTES:bytes}, {LABEL_ANSWER_PARTS} parts",
        "the job fails with `LABEL_ENDPOINT_FAILED`",
        "tests/hub/test_chats.py::test_an_answer_has_bounds_in_time_bytes_and_parts",
    ),
    Bound(
        "stored",
        "jobs",
        "{JOBS_RUNNING} run, {JOBS_OF_CLIENT} of them of one client; {JOBS_UNFINISHED} run or wait",
        "clients take turns; the newest waiting job of the client with most jobs makes room, else 409 `TOO_MANY_JOBS`",
        "tests/control/test_jobs.py::test_a_client_with_many_jobs_leaves_room_for_those_of_others",
    ),
    Bound(
        "stored",
        "batches that are not over",
        "{MAX_UNFINISHED_BATCHES}",
        "409 `TOO_MANY_BATCHES`",
        "tests/openai/test_batches.py::test_batches_have_bounds",
    ),
    Bound(
        "stored",
        "free space on the disk of a SQLite database, after an import or a new profile",
        "{DISK_RESERVE_MB:MiB}",
        "507 `INSUFFICIENT_DISK`",
        f"{_STORED}::test_an_import_leaves_the_reserve_of_the_disk_free",
    ),
    Bound(
        "stored",
        "rows in one answer of `GET /api/profiles`, `/api/clusters` and `/api/circuits`",
        "`limit`, at most {PAGE_ROWS}",
        "`total` counts all rows; `offset` reads on",
        f"{_STORED}::test_a_list_is_answered_page_by_page",
    ),
    Bound(
        "stored",
        "records in one answer of `GET /api/monitoring/history`",
        "{MONITORING_ANSWER_BYTES:bytes}",
        "the field `left_out` counts the older records that did not fit",
        f"{_STORED}::test_the_history_of_monitoring_is_bounded_in_bytes",
    ),
    Bound(
        "stored",
        "features in one answer of `GET /api/monitoring/statistics`",
        "{MONITORING_ANSWER_BYTES:bytes}",
        "the field `left_out` counts the features that did not fit; they have larger indices",
        f"{_STORED}::test_the_statistics_of_monitoring_are_bounded_in_bytes",
    ),
    Bound(
        "kept",
        "records of monitoring",
        "`history_size` of its configuration, at most {HISTORY_RECORDS}, with at most {HISTORY_ACTIVATIONS} "
        "activations",
        "the oldest records are forgotten",
        "tests/nouns/monitoring/test_rules.py::test_the_ring_keeps_as_many_activations_as_it_may",
    ),
    Bound(
        "kept",
        "labels of features",
        "{LABELS_KEPT} labels of at most {LABELLED_SAES_KEPT} SAEs",
        "the labels of the SAE that was read longest ago are read from the database again",
        "tests/nouns/labels/test_store.py::test_however_many_saes_are_read_each_has_its_own_and_few_labels_are_kept",
    ),
    Bound(
        "kept",
        "clients whose requests ended last, for the last free slot",
        "{MAX_CONCURRENT_REQUESTS} times the replicas",
        "the oldest are forgotten",
        "tests/control/inference/test_queue.py::test_the_last_slot_waits_for_a_client_that_was_here_lately",
    ),
    Bound(
        "kept",
        "profiles that were used last",
        "{PROFILES_KEPT}",
        "the others are read from the database",
        "tests/nouns/profiles/test_store.py::test_the_profiles_that_were_used_last_are_kept",
    ),
    Bound(
        "kept",
        "hub answers about cluster packs",
        "{PACK_ANSWERS_KEPT}",
        "the hub is asked again",
        "tests/nouns/cluster_packs/test_owner.py::test_only_the_latest_answers_are_kept",
    ),
    Bound(
        "kept",
        "beginnings of files at the hub that were looked at",
        "{HUB_HEADERS_KEPT}, each of at most {HUB_HEADER_KEPT_BYTES:bytes}",
        "they are read again",
        "tests/hub/test_headers.py::test_the_headers_that_were_read_last_are_kept",
    ),
    Bound(
        "kept",
        "sensing events that wait for the database",
        "the events of {WAITING_CHOICES} choices. A request for events first waits until all earlier events are "
        "written, at most one second",
        "further events are lost, and counted",
        "tests/control/sensing/test_recorder.py"
        "::test_a_read_waits_no_longer_than_its_bound_for_a_database_that_is_slow",
    ),
    Bound(
        "kept",
        "ids of ended leases, as digests",
        "{LEASE_ENDED_MEMORY}",
        "older ids are unknown",
        "tests/control/residency/test_leases.py::test_ended_leases_are_remembered_up_to_the_setting",
    ),
    Bound(
        "kept",
        "digests of response schemas that passed the check",
        "{SCHEMAS_KEPT}",
        "the schema is checked again",
        "tests/engines/sandbox/test_schemas.py::test_schemas_that_passed_are_remembered_up_to_a_bound",
    ),
    Bound(
        "kept",
        "clients whose use of the helper processes is remembered",
        "twice {ACCOUNTS_KEPT}",
        "those that used least are forgotten",
        "tests/rules/inference/test_fairness.py::test_the_clients_that_used_most_are_remembered",
    ),
    Bound(
        "kept",
        "sessions of live events",
        "{MAX_LIVE_CLIENTS}, each with at most {LIVE_UNREAD_EVENTS} unread events",
        "the session is ended",
        f"{_LIVE}::test_a_client_that_fetches_no_events_is_disconnected",
    ),
    Bound(
        "kept",
        "log lines for `GET /api/health/log`",
        "{LOG_LINES_KEPT}",
        "`dropped` counts the older ones",
        "tests/logs/test_recent.py::test_the_cursor_gives_each_line_once_and_counts_the_lines_that_went",
    ),
    Bound(
        "kept",
        "durations for the percentiles",
        "{DURATIONS_KEPT}",
        "the percentiles are those of the latest requests",
        "tests/control/test_metrics.py::test_the_percentiles_are_those_of_the_latest_requests",
    ),
    Bound(
        "kept",
        "series of metrics",
        "routes times statuses, never a name from a request",
        "",
        "tests/control/test_metrics.py::test_requests_are_counted_by_route_and_status_and_timed",
    ),
    Bound(
        "kept",
        "state that a crash took from a model",
        "one for each owner and registered model",
        "a load of another model over the management forgets it",
        "tests/control/residency/test_restoring.py::test_another_model_over_the_management_forgets",
    ),
    Bound(
        "documents",
        "a folder of this machine (`local_path`)",
        "{LOCAL_FOLDER_ENTRIES} files and folders in it, at every depth",
        "`INVALID_LOCAL_PATH`",
        "tests/files/test_client_paths.py::test_a_folder_with_too_many_files_is_refused",
    ),
    Bound(
        "documents",
        "an answer or a stream that the Python client reads",
        "{CLIENT_ANSWER_BYTES:bytes}",
        "the client raises `UNEXPECTED_ANSWER`",
        "tests/client/test_odd_answers.py::test_an_answer_without_end_is_given_up",
    ),
    Bound(
        "links",
        "features of Steer",
        "100, with values in [-200, 200]",
        "the part is left out, with a notice",
        "ui/src/pages/Steer.test.tsx::a link with more features than the page steers",
    ),
    Bound(
        "links",
        "messages of the conversation of Steer",
        "200",
        "the part is left out, with a notice",
        "ui/src/rules/steer.test.ts::bounds the features and the messages of a link",
    ),
    Bound(
        "links",
        "intensities of a sweep",
        "16",
        "the part is left out, with a notice",
        "ui/src/rules/steer.test.ts",
    ),
    Bound(
        "links",
        "SAEs to attach",
        "16, with layers from 0 to 999",
        "the part is left out, with a notice",
        "ui/src/pages/Saes.test.tsx::values of a link that cannot be",
    ),
    Bound(
        "links",
        "pinned features of Live",
        "6",
        "the part is left out, with a notice",
        "ui/src/rules/places.test.ts",
    ),
    Bound(
        "links",
        "text of Tokens, repository of the hub",
        "none",
        "read, or asked about, after a click",
        "ui/src/pages/Tokens.test.tsx::a text of a link is read when a person asks for it",
    ),
)
"""Every bound on what clients give, and on what is kept of it."""
