"""The prefix cache: a radix tree over page-aligned prefixes, one node per page.

A node stands for the page whose tokens are its key, after all the pages on the way from the root: keys and values
depend on everything before them. Each cache salt has a root of its own: no prefix is shared between salts.

Whoever uses a node holds a reference on it and on every node above it. So a node without references has none below it
that has any, and it lost its last reference no earlier than its children did. `_unreferenced` keeps these nodes in the
order in which they lost it, children before their parents; hence its first entry is always a leaf, and at once
the least recently used one. Eviction needs no search.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

PageKey = tuple[int, ...]  # the page_size token ids of a page


@dataclass(slots=True, eq=False)
class PrefixNode:
    """One cached page, or a root (no parent, page -1, its key is empty)."""

    key: PageKey
    page: int
    salt: str
    parent: PrefixNode | None
    references: int = 0
    children: dict[PageKey, PrefixNode] = field(default_factory=dict)


class PrefixTree:
    """All cached pages of an engine. Owns the pages of its nodes until `evict` hands them out."""

    def __init__(self) -> None:
        self._roots: dict[str, PrefixNode] = {}
        self._unreferenced: OrderedDict[PrefixNode, None] = OrderedDict()
        self._num_nodes = 0

    @property
    def num_pages(self) -> int:
        """Pages in the tree, used or not."""
        return self._num_nodes

    @property
    def num_evictable(self) -> int:
        """Pages in the tree that nobody uses. All of them can be evicted, one after another."""
        return len(self._unreferenced)

    def acquire_root(self, salt: str) -> PrefixNode:
        """The salt's root with a reference for the caller; made where there is none."""
        root = self._roots.get(salt)
        if root is None:
            root = self._roots[salt] = PrefixNode(key=(), page=-1, salt=salt, parent=None)
        root.references += 1
        return root

    def find_root(self, salt: str) -> PrefixNode | None:
        """The salt's root without a reference."""
        return self._roots.get(salt)

    def acquire_child(self, parent: PrefixNode, key: PageKey) -> PrefixNode | None:
        """The child with this key and a reference for the caller, who holds one on `parent`; None if there is none."""
        node = parent.children.get(key)
        if node is None:
            return None
        if node.references == 0:
            del self._unreferenced[node]
        node.references += 1
        return node

    def insert(self, parent: PrefixNode, key: PageKey, page: int) -> PrefixNode:
        """The child with this key and a reference for the caller, who holds one on `parent`.

        The tree takes over `page` if it is the returned node's; where an equal page was there before, it stays the
        caller's.
        """
        existing = self.acquire_child(parent, key)
        if existing is not None:
            return existing
        node = PrefixNode(key=key, page=page, salt=parent.salt, parent=parent, references=1)
        parent.children[key] = node
        self._num_nodes += 1
        return node

    def release(self, path: list[PrefixNode]) -> None:
        """Gives back one reference on each node of a path that starts at its root."""
        for node in reversed(path):
            node.references -= 1
            if node.references == 0 and node.parent is not None:
                self._unreferenced[node] = None
        if path:
            self._drop_if_empty(path[0])

    def evict(self) -> int | None:
        """Removes the least recently used leaf that nobody uses and hands out its page; None if there is none."""
        if not self._unreferenced:
            return None
        node, _ = self._unreferenced.popitem(last=False)
        parent = node.parent
        assert parent is not None  # roots are never in the eviction order
        del parent.children[node.key]
        self._num_nodes -= 1
        if parent.parent is None:
            self._drop_if_empty(parent)
        return node.page

    def _drop_if_empty(self, root: PrefixNode) -> None:
        if root.references == 0 and not root.children:
            del self._roots[root.salt]

    def roots(self) -> Iterator[PrefixNode]:
        """The roots, for integrity checks."""
        return iter(self._roots.values())

    def nodes(self) -> Iterator[PrefixNode]:
        """Every node that has a page, parents first."""
        stack = [child for root in self._roots.values() for child in root.children.values()]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def eviction_order(self) -> list[PrefixNode]:
        """The nodes nobody uses, in the order in which they would be evicted."""
        return list(self._unreferenced)
