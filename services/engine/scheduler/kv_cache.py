"""Which page of the KV pool belongs to whom: free, cached in the prefix tree, or a sequence's own.

A running sequence's page table is a path through the prefix tree, then at most one page of its own that is not full
yet. A page goes into the tree when the step that fills it is planned. That is sound because steps run in order, each
writes the keys and values of all its sequences before any attends, and a failed step empties the cache.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from services.engine.scheduler.counters import Counters
from services.engine.scheduler.pages import PageAllocator
from services.engine.scheduler.prefix_tree import PageKey, PrefixNode, PrefixTree
from services.engine.scheduler.sequence import Sequence


class KvReadOut(NamedTuple):
    """The KV pool at one moment; free + cached + private = total. Meanings: `postroad.v1.KvReadOut`."""

    total_pages: int
    free_pages: int
    cached_pages: int
    cached_pages_in_use: int
    private_pages: int  # those that a step in flight still writes and that are freed after it included
    page_size: int


class KvCache:
    """Page ownership of all sequences of an engine."""

    def __init__(self, num_pages: int, page_size: int, counters: Counters) -> None:
        self.page_size = page_size
        self._counters = counters
        self._allocator = PageAllocator(num_pages)
        self._tree = PrefixTree()

    @property
    def num_available(self) -> int:
        """Pages that `grow` can hand out: free, or cached and unused."""
        return self._allocator.num_free + self._tree.num_evictable

    def pages_for(self, num_tokens: int) -> int:
        """Pages that hold this many tokens."""
        return -(-num_tokens // self.page_size)

    def open(self, sequence: Sequence) -> None:
        """Lets a sequence without pages hold some from now on, until `release`."""
        sequence.path.append(self._tree.acquire_root(sequence.cache_salt))

    def take_shared(self, sequence: Sequence) -> int:
        """Extends a sequence's pages by those that the tree holds of its tokens; returns the tokens gained.

        A page of its own that it has filled in part gives way to the full one. What
        `Sequence.num_skippable` leaves out is always left to compute.
        """
        before = sequence.num_computed
        limit = self._shareable_pages(sequence)
        while sequence.num_full_pages < limit:
            key = self._page_key(sequence, sequence.num_full_pages)
            node = self._tree.acquire_child(sequence.path[-1], key)
            if node is None:
                break
            self._free_private(sequence)
            sequence.page_table.append(node.page)
            sequence.path.append(node)
            sequence.num_computed = sequence.num_full_pages * self.page_size
        return sequence.num_computed - before

    def count_shared_in_use(self, sequence: Sequence) -> int:
        """Pages that `take_shared` would give a waiting sequence and that others use, so that they cost nothing."""
        node = self._tree.find_root(sequence.cache_salt)
        count = 0
        while node is not None and count < self._shareable_pages(sequence):
            node = node.children.get(self._page_key(sequence, count))
            if node is None or node.references == 0:
                break
            count += 1
        return count

    def grow(self, sequence: Sequence) -> bool:
        """Adds a page to a sequence's table, evicting a cached one if none is free. False: there is none of either."""
        if self._allocator.num_free:
            sequence.page_table.append(self._allocator.allocate())
            return True
        page = self._tree.evict()
        if page is None:
            return False
        self._counters.evicted_pages += 1
        sequence.page_table.append(page)
        return True

    def commit(self, sequence: Sequence, end: int) -> list[int]:
        """Takes note that the step being planned computes a sequence's tokens up to position `end` (exclusive).

        Pages that it fills go into the tree. Where the tree has an equal page, the sequence uses that one from the next
        step on, in a table of its own: the plan has the old one. Returns the pages so given up, which the step still
        writes: the caller frees them after it.
        """
        sequence.num_computed = end
        first, last = sequence.num_full_pages, end // self.page_size
        given_up: list[int] = []
        for index in range(first, last):
            page = sequence.page_table[index]
            node = self._tree.insert(sequence.path[-1], self._page_key(sequence, index), page)
            if node.page != page:
                given_up.append(page)
                sequence.page_table = sequence.page_table.copy()
                sequence.page_table[index] = node.page
            sequence.path.append(node)
        return given_up

    def release(self, sequence: Sequence) -> None:
        """Takes all pages of a sequence back. The full ones stay in the tree, evictable if nobody else uses them."""
        self._free_private(sequence)
        self._tree.release(sequence.path)
        sequence.path.clear()
        sequence.page_table.clear()
        sequence.num_computed = 0

    def free(self, page: int) -> None:
        """Frees a page that `commit` returned."""
        self._allocator.free(page)

    def clear(self) -> None:
        """Forgets every page: all are free. No sequence may hold any."""
        self._allocator = PageAllocator(self._allocator.num_pages)
        self._tree = PrefixTree()

    def read_out(self) -> KvReadOut:
        total, free, cached = self._allocator.num_pages, self._allocator.num_free, self._tree.num_pages
        return KvReadOut(
            total_pages=total,
            free_pages=free,
            cached_pages=cached,
            cached_pages_in_use=cached - self._tree.num_evictable,
            private_pages=total - free - cached,
            page_size=self.page_size,
        )

    def check_integrity(self, holders: Iterable[Sequence], given_up: Iterable[int]) -> None:
        """Raises AssertionError unless every page has exactly one owner and every reference exactly one holder.

        `holders` are all sequences that may hold pages, `given_up` the pages to be freed after the step in flight.
        Takes time in proportion to the pool.
        """
        references: dict[PrefixNode, int] = {}
        private: list[int] = []
        for sequence in holders:
            full = sequence.num_full_pages
            assert sequence.page_table[:full] == [node.page for node in sequence.path[1:]], "page table is off its path"
            assert full == sequence.num_computed // self.page_size, "a full page is not in the tree"
            assert len(sequence.page_table) >= self.pages_for(sequence.num_computed), "computed tokens without a page"
            for index, node in enumerate(sequence.path[1:]):
                assert node.key == self._page_key(sequence, index), "a page holds other tokens"
                assert node.parent is sequence.path[index], "a path is broken"
            private.extend(sequence.page_table[full:])
            for node in sequence.path:
                references[node] = references.get(node, 0) + 1
        self._check_tree(references)
        cached = [node.page for node in self._tree.nodes()]
        owned = sorted([*private, *given_up, *cached, *self._allocator.free_pages()])
        assert owned == list(range(self._allocator.num_pages)), "a page has no owner or more than one"

    def _check_tree(self, references: dict[PrefixNode, int]) -> None:
        nodes = list(self._tree.nodes())
        assert len(nodes) == self._tree.num_pages, "the number of cached pages is off"
        for root in self._tree.roots():
            assert root.references == references.get(root, 0), "a root's references are off"
            assert root.references or root.children, "an empty root was kept"
        for node in nodes:
            assert node.references == references.get(node, 0), "a node's references are off"
        order = {node: place for place, node in enumerate(self._tree.eviction_order())}
        assert set(order) == {node for node in nodes if node.references == 0}, "the eviction order is incomplete"
        for node, place in order.items():
            assert all(order[child] < place for child in node.children.values()), "a parent would go before its child"

    def _shareable_pages(self, sequence: Sequence) -> int:
        return sequence.num_skippable // self.page_size

    def _page_key(self, sequence: Sequence, index: int) -> PageKey:
        start = index * self.page_size
        return tuple(sequence.token_slice(start, start + self.page_size))

    def _free_private(self, sequence: Sequence) -> None:
        while len(sequence.page_table) > sequence.num_full_pages:
            self._allocator.free(sequence.page_table.pop())
