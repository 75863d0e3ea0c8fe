"""The Python client of a service. It needs no part of the service itself, only the classes of its answers.

`Client` returns answers, `AsyncClient` has the same methods and awaits them. `calls.py` has the one way in which both
make requests, `nouns.py` the methods of the management API, a route for each, and `answers.py` the answers to texts.
"""

from steerserve.client.answers import Answer, AsyncStream, Stream
from steerserve.client.calls import Listing
from steerserve.client.client import AsyncClient, Client
from steerserve.client.faults import ServiceError, ServiceUnreachable

__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncStream",
    "Client",
    "Listing",
    "ServiceError",
    "ServiceUnreachable",
    "Stream",
]
