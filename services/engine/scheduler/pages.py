"""The free list of the KV pool."""

from __future__ import annotations


class PageAccountingError(RuntimeError):
    """A page was freed that is free already, or one was asked for where none is: a fault of the scheduler itself."""


class PageAllocator:
    """Hands out the page numbers 0 … num_pages - 1, each to one owner at a time."""

    def __init__(self, num_pages: int) -> None:
        self._free = list(range(num_pages - 1, -1, -1))
        self._is_free = bytearray(b"\x01" * num_pages)

    @property
    def num_pages(self) -> int:
        return len(self._is_free)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        """A free page, the one freed last first. Raises PageAccountingError when there is none."""
        if not self._free:
            raise PageAccountingError("no page is free")
        page = self._free.pop()
        self._is_free[page] = 0
        return page

    def free(self, page: int) -> None:
        """Takes a page back. Raises PageAccountingError if it is free already."""
        if self._is_free[page]:
            raise PageAccountingError(f"page {page} is free already")
        self._is_free[page] = 1
        self._free.append(page)

    def free_pages(self) -> list[int]:
        """The pages that are free, for integrity checks."""
        return list(self._free)
