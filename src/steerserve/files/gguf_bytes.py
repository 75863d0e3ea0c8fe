"""Reads the bytes of a GGUF header in their order, through a window. No length in the file is believed: each is
compared with the file's size and with a limit before memory is allocated.
"""

from __future__ import annotations

import struct
from io import BytesIO, RawIOBase

from steerserve.rules.models.gguf_layout import GGUFError

WINDOW = 1 << 18
_LENGTH = struct.Struct("<Q")


class HeaderBytes:
    """The first `limit` bytes of a file that had `size` bytes when it was opened."""

    def __init__(self, file: RawIOBase | BytesIO, size: int, limit: int) -> None:
        self._file = file
        self._size = size
        self._limit = limit
        self._window = b""
        self._at = 0  # the place in the window
        self._begin = 0  # the place of the window in the file

    @property
    def place(self) -> int:
        return self._begin + self._at

    def go(self, place: int) -> None:
        """Go on at another place, which is within the file and the limit."""
        self._window, self._at, self._begin = b"", 0, place
        self._file.seek(place)

    def read_bytes(self, count: int) -> bytes:
        self._hold(count)
        self._at += count
        return self._window[self._at - count : self._at]

    def skip(self, count: int) -> None:
        if self._at + count <= len(self._window):
            self._at += count
            return
        self._check(count)
        self.go(self.place + count)

    def number(self, letter: str) -> int:
        """A whole number; `letter` is its type in `struct`."""
        return int(self.numbers(letter)[0])

    def numbers(self, letters: str) -> tuple[int | float, ...]:
        """Numbers of the types `letters`, which are those of `struct`."""
        form = f"<{letters}"
        size = struct.calcsize(form)
        self._hold(size)
        self._at += size
        return struct.unpack_from(form, self._window, self._at - size)

    def text(self, most: int) -> bytes:
        """A text, which follows its length.

        Raises:
            GGUFError: it has more than `most` bytes.
        """
        length = self.number("Q")
        if length > most:
            raise GGUFError("a text in the header is too long")
        return self.read_bytes(length)

    def skip_texts(self, count: int, block: int) -> tuple[int, list[int]]:
        """Skip texts. Returns the length of the longest, and the places of every text whose number is a multiple of
        `block`."""
        longest, done, places = 0, 0, list[int]()
        unpack = _LENGTH.unpack_from
        while done < count:
            if len(places) * block == done:
                places.append(self.place)
            until = min(count, len(places) * block)
            window, at = self._window, self._at
            last = len(window) - _LENGTH.size
            while done < until and at <= last:
                (length,) = unpack(window, at)
                at += _LENGTH.size + length
                done += 1
                if length > longest:
                    longest = length
            self._at = min(at, len(window))
            if at > len(window):
                self.skip(at - len(window))
            elif done < until:
                self._hold(_LENGTH.size)
        return longest, places

    def _check(self, count: int) -> None:
        """Raises:
        GGUFError: there are not so many bytes left.
        """
        if count > self._size - self.place:
            raise GGUFError("the header is cut short or damaged")
        if count > self._limit - self.place:
            raise GGUFError("the header is longer than that of any model")

    def _hold(self, count: int) -> None:
        """Get the next `count` bytes into the window."""
        if self._at + count <= len(self._window):
            return
        self._check(count)
        begin, rest = self.place, self._window[self._at :]
        end = min(begin + max(count, WINDOW), self._size, self._limit)
        data = self._file.read(end - begin - len(rest)) or b""
        self._window, self._at, self._begin = rest + data, 0, begin
        if len(self._window) < count:
            raise GGUFError("the file shrank while it was read")
