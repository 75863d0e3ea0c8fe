"""The C++ compilers with which an engine compiles functions of its model on a processor."""

from collections.abc import Callable

COMPILERS = ("c++", "g++", "clang++")
"""The names by which a compiler is looked for, in this order."""


def compiler(which: Callable[[str], str | None]) -> str | None:
    """The path of the first compiler that `which` finds; None where it finds none."""
    return next((path for name in COMPILERS if (path := which(name))), None)
