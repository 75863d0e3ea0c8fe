"""Waits for downloads, loads and jobs, with a progress bar where tqdm is installed."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar, get_args

import msgspec

from steerserve.client.calls import (
    Call,
    Pause,
    Reply,
    Steps,
    answered,
    data,
    either,
    fault,
    path_part,
)
from steerserve.client.faults import ServiceError, UnexpectedAnswer
from steerserve.control.inference.views import JobRecord, JobResult
from steerserve.nouns.models.form import ModelRecord
from steerserve.nouns.saes.form import SaeDetails
from steerserve.rules.jobs import JobFacts

Seen = Callable[[float, float], None]
"""Is told how much is done, and of how much; 0 of 0 where it is not known."""
Record = TypeVar("Record", ModelRecord, SaeDetails)
Result = TypeVar("Result")

PERIOD = 0.5
"""Seconds between two looks at a record."""
_BYTES = {"unit": "B", "unit_scale": True, "unit_divisor": 1024}
_SHARE = {"bar_format": "{l_bar}{bar}| {elapsed}"}


@contextmanager
def bar(title: str, form: Mapping[str, object], *, is_shown: bool) -> Iterator[Seen]:
    """A progress bar while the block runs. It appears with the first look at what is not done yet."""
    tqdm = _tqdm() if is_shown else None
    with ExitStack() as stack:
        shown: Any = None

        def see(done: float, total: float) -> None:
            nonlocal shown
            if tqdm is None:
                return
            if shown is None:
                shown = stack.enter_context(tqdm(desc=title, leave=False, **form))
            if total:
                shown.total, shown.n = total, done
            shown.refresh()

        yield see


def _tqdm() -> Any:
    try:
        with warnings.catch_warnings():
            # a notebook without widgets gets a bar of text
            warnings.simplefilter("ignore")
            return importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return None


def _until(
    path: str, kind: type[Record], busy: Sequence[str], title: str, retries: int, *, progress: bool
) -> Steps[Record]:
    """The record at a path, once its status is none of `busy`."""
    with bar(title, _BYTES, is_shown=progress) as see:
        while True:
            record = data((yield from answered(Call("GET", path), retries)), kind)
            if record.status not in busy:
                return record
            fetched = record.download
            see(*((fetched.downloaded_bytes, fetched.total_bytes) if fetched else (0, 0)))
            yield Pause(PERIOD)


def until_fetched(model_id: int, retries: int, *, progress: bool) -> Steps[ModelRecord]:
    """The record of a model once no download of it runs. Its status is `error` where the download failed, and also
    where the model is here and its last load failed."""
    path, title = f"/api/models/{path_part(model_id)}", f"model {model_id}"
    return (
        yield from _until(path, ModelRecord, ["downloading"], title, retries, progress=progress)
    )


def until_stored(model_id: int, retries: int, *, progress: bool) -> Steps[ModelRecord]:
    """The record of a model that was just registered, once its download has ended.

    Raises:
        ServiceError: DOWNLOAD_FAILED with the reason.
    """
    record = yield from until_fetched(model_id, retries, progress=progress)
    if record.status == "error":
        why = record.error_message or "the download failed"
        raise fault("DOWNLOAD_FAILED", why, model_id=model_id)
    return record


def until_loaded(model_id: int, retries: int, *, progress: bool) -> Steps[ModelRecord]:
    """The record of a model once it is loaded.

    Raises:
        ServiceError: MODEL_LOAD_FAILED with the reason.
    """
    path, title = f"/api/models/{path_part(model_id)}", f"loading model {model_id}"
    busy = ["downloading", "loading", "unloading"]
    record = yield from _until(path, ModelRecord, busy, title, retries, progress=progress)
    if record.status != "loaded":
        why = record.error_message or f"the model is {record.status} and not loaded"
        raise fault("MODEL_LOAD_FAILED", why, model_id=model_id)
    return record


def until_cached(sae_id: str, retries: int, *, progress: bool) -> Steps[SaeDetails]:
    """The record of an SAE once its download has ended.

    Raises:
        ServiceError: the code with which the download ended.
    """
    path = f"/api/saes/{path_part(sae_id)}"
    record = yield from _until(
        path, SaeDetails, ["downloading"], sae_id, retries, progress=progress
    )
    if record.status == "error":
        why = record.error_message or "the download failed"
        raise fault(record.error_code or "DOWNLOAD_FAILED", why, sae_id=sae_id)
    return record


class _RawJob(JobFacts, frozen=True, kw_only=True):
    """A job before it is known which form its result has."""

    result: object


class _RawJobAnswer(msgspec.Struct):
    job: _RawJob


def job_of(reply: Reply) -> JobRecord:
    """The job of an answer."""
    raw = data(reply, _RawJobAnswer).job
    facts = {name: getattr(raw, name) for name in JobFacts.__struct_fields__}
    forms = [one for one in get_args(JobResult) if one is not type(None)]
    return JobRecord(**facts, result=None if raw.result is None else either(raw.result, forms))


def job_result(
    call: Call, kind: type[Result], name: str, retries: int, *, progress: bool
) -> Steps[Result]:
    """The result of the job that a call begins, once it is done. `name` is what the result should be.

    Raises:
        ServiceError: as `until_over`.
        UnexpectedAnswer: the result is something else.
    """
    begun = job_of((yield from answered(call, retries)))
    job = yield from until_over(begun.id, retries, progress=progress)
    if not isinstance(job.result, kind):
        raise UnexpectedAnswer(f"the job has no {name} as its result")
    return job.result


def until_over(job_id: str, retries: int, *, progress: bool) -> Steps[JobRecord]:
    """The job, once it is done.

    Raises:
        ServiceError: the code with which the job failed; UNKNOWN for a job that was cancelled.
    """
    with bar(job_id, _SHARE, is_shown=progress) as see:
        while True:
            job = job_of(
                (yield from answered(Call("GET", f"/api/jobs/{path_part(job_id)}"), retries))
            )
            if job.is_over:
                break
            see(job.progress, 1)
            yield Pause(PERIOD)
    if job.error is not None:
        raise fault(job.error.code, job.error.message, **job.error.details)
    if job.state == "cancelled":
        raise ServiceError("the job was cancelled", details={"job_id": job_id})
    return job
