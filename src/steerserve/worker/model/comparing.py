"""Whether a shorter function of a module is as near to float32 as the module's own code, on the values that the module
gets in natural text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, cast

import structlog
import torch
from torch import Tensor, nn

from steerserve.rules.models.nearness import Functions, RefusedFunction, is_module_near
from steerserve.worker import memory
from steerserve.worker.model import truth

log = structlog.get_logger(__name__)

OTHER_FORM = (RuntimeError, TypeError, ValueError, AttributeError, AssertionError)
"""What a function raises for a module of another form."""

_GIVEN = "_library_kind"
"""The field of a class that has another function: the library's class."""

_REFUSED = "refused_function"
"""The field of a module that keeps the library's code: the function that is too far from float32."""

_SMALL = 1e-3
"""By what the values of natural text are multiplied for norms too. It shows where a norm adds its constant."""


@dataclass(slots=True, eq=False)
class _Candidate:
    name: str
    module: nn.Module
    forward: Callable[..., Any]
    own: list[Tensor] = field(default_factory=list)
    found: list[Tensor] = field(default_factory=list)
    has_other_form: bool = False

    def compare(
        self,
        own: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        made: Tensor,
    ) -> None:
        """Add the distances of both ways, for these inputs, of which the own way has made `made`. Where the ways differ
        by less than a rounding, the own one counts as true, because float32 takes longer than all the rest."""
        short = _value(self.forward(self.module, *args, **kwargs))
        if short.shape != made.shape or short.dtype != made.dtype:
            raise ValueError
        between = truth.off(short, made)
        if bool((between <= truth.rounding(made.dtype)).all()):
            self.own.append(torch.zeros_like(between))
            self.found.append(between)
            return
        with truth.in_float32(self.module):
            true = _value(own(self.module, *truth.widened(args), **truth.widened(kwargs)))
        self.own.append(truth.off(made, true))
        self.found.append(truth.off(short, true))


class Comparison:
    """The candidates of one model, and their comparison in passes of the model's own code."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._candidates: list[_Candidate] = []
        self._is_busy = False

    def add(self, name: str, module: nn.Module, forward: Callable[..., Any]) -> None:
        """A module that may get this function."""
        self._candidates.append(_Candidate(name, module, forward))

    @torch.inference_mode()
    def run(self, read: Callable[[], object]) -> Functions:
        """Compare each candidate while `read` runs, and give its function to each that is near enough. One that `read`
        does not reach keeps its own code, and counts as of another form."""
        if not self._candidates:
            return Functions()
        hooks = [
            each.module.register_forward_hook(self._comparing(each), with_kwargs=True)
            for each in self._candidates
        ]
        try:
            read()
        finally:
            for hook in hooks:
                hook.remove()
        functions = Functions()
        for each in self._candidates:
            if each.has_other_form or not each.own:
                functions.refused.append(RefusedFunction(each.name, None, None))
            else:
                self._decide(each, functions)
        return functions

    def repeat(self, known: Functions) -> Functions:
        """Give the functions as they were given at an earlier load."""
        refused = {each.module for each in known.refused}
        given = [each for each in self._candidates if each.name not in refused]
        for each in given:
            give(each.module, each.forward)
        return replace(known, modules=len(given), layers=0)

    def _decide(self, each: _Candidate, functions: Functions) -> None:
        own, found = (truth.distance(torch.cat(parts)) for parts in (each.own, each.found))
        if is_module_near(found, own, truth.named(self._dtype)):
            give(each.module, each.forward)
            functions.modules += 1
            return
        log.warning(
            "function_refused", module=each.name, off=found.mean, own_off=own.mean, high=found.high
        )
        functions.refused.append(RefusedFunction(each.name, found, own))
        setattr(each.module, _REFUSED, each.forward)

    def _comparing(self, each: _Candidate) -> Callable[..., None]:
        """A hook that compares a module on what it is given. Modules inside it are not compared on what its other
        function gives them."""
        own: Callable[..., Any] = type(each.module).forward
        is_norm = type(each.module).__name__.endswith("Norm")

        def compare(
            module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any
        ) -> None:
            if each.has_other_form or self._is_busy:
                return
            self._is_busy = True
            try:
                each.compare(own, args, kwargs, _value(made))
                if is_norm and args:
                    small = (args[0] * _SMALL, *args[1:])
                    each.compare(own, small, kwargs, _value(own(module, *small, **kwargs)))
            except OTHER_FORM as error:
                if memory.is_exhausted(error):
                    raise
                each.has_other_form = True
            finally:
                self._is_busy = False

        return compare


def give(module: nn.Module, forward: Callable[..., Any]) -> None:
    """Have a module use this function in place of its own."""
    module.__class__ = _kind(cast(Any, type(module)), forward)


@contextmanager
def own_code(model: nn.Module) -> Iterator[None]:
    """While open, the modules of a model run the library's code."""
    given = [(module, type(module)) for module in model.modules() if _GIVEN in vars(type(module))]
    try:
        for module, kind in given:
            module.__class__ = getattr(kind, _GIVEN)
        yield
    finally:
        for module, kind in given:
            module.__class__ = kind


@contextmanager
def with_refused(model: nn.Module) -> Iterator[None]:
    """While open, modules that keep the library's code run the functions that are too far from float32. The functions
    that any module gets while this is open are taken back too."""
    kinds = [(module, type(module)) for module in model.modules()]
    try:
        for module, _ in kinds:
            if (forward := vars(module).get(_REFUSED)) is not None:
                give(module, forward)
        yield
    finally:
        for module, kind in kinds:
            module.__class__ = kind


@cache
def _kind(kind: Any, forward: Callable[..., Any]) -> type[nn.Module]:
    """The same kind of module with another function. Its name and its module stay, because the library looks things up
    by them."""
    fields = {"forward": forward, "__module__": kind.__module__, _GIVEN: kind}
    return type(kind.__name__, (kind,), fields)


def _value(given: Any) -> Tensor:
    return cast(Tensor, given[0] if isinstance(given, tuple) else given)
