"""The C++ compilers with which an engine compiles functions of its model on a processor."""

COMPILERS = ("c++", "g++", "clang++")
"""The names by which a compiler is looked for, in this order."""
