from services.engine.scheduler.prefix_tree import PrefixNode, PrefixTree


def insert_path(tree: PrefixTree, keys: list[tuple[int, ...]], first_page: int, salt: str = "") -> list[PrefixNode]:
    """A path of fresh pages, numbered from `first_page`, with a reference on each node."""
    path = [tree.acquire_root(salt)]
    for page, key in enumerate(keys, start=first_page):
        path.append(tree.insert(path[-1], key, page))
    return path


def test_a_prefix_is_found_again_and_pinned_while_it_is_used() -> None:
    tree = PrefixTree()
    tree.release(insert_path(tree, [(1, 2), (3, 4)], first_page=10))
    assert (tree.num_pages, tree.num_evictable) == (2, 2)

    path = [tree.acquire_root("")]
    for key in [(1, 2), (3, 4)]:
        node = tree.acquire_child(path[-1], key)
        assert node is not None
        path.append(node)
    assert [node.page for node in path[1:]] == [10, 11]
    assert tree.acquire_child(path[-1], (5, 6)) is None
    assert tree.num_evictable == 0
    assert tree.evict() is None


def test_insert_returns_the_equal_page_that_is_there() -> None:
    tree = PrefixTree()
    path = insert_path(tree, [(1, 2)], first_page=10)
    other = [tree.acquire_root("")]
    node = tree.insert(other[0], (1, 2), 99)
    assert node is path[1]
    assert (node.page, node.references, tree.num_pages) == (10, 2, 1)


def test_evicts_leaves_before_parents_least_recently_used_first() -> None:
    tree = PrefixTree()
    old = insert_path(tree, [(1,), (2,), (3,)], first_page=10)
    new = insert_path(tree, [(1,), (7,)], first_page=20)  # shares page 10; page 20 is not taken
    assert [node.page for node in new[1:]] == [10, 21]
    tree.release(old)
    tree.release(new)
    assert [tree.evict() for _ in range(5)] == [12, 11, 21, 10, None]
    assert tree.num_pages == 0


def test_use_moves_a_prefix_to_the_end_of_the_eviction_order() -> None:
    tree = PrefixTree()
    tree.release(insert_path(tree, [(1,)], first_page=1))
    tree.release(insert_path(tree, [(2,)], first_page=2))
    tree.release(insert_path(tree, [(1,)], first_page=9))
    assert [tree.evict(), tree.evict()] == [2, 1]


def test_a_page_in_use_survives_the_eviction_of_what_hangs_below_it() -> None:
    tree = PrefixTree()
    tree.release(insert_path(tree, [(1,), (2,)], first_page=1))
    user = insert_path(tree, [(1,)], first_page=9)
    assert tree.evict() == 2
    assert tree.evict() is None
    tree.release(user)
    assert tree.evict() == 1


def test_salts_share_nothing_and_an_empty_root_goes() -> None:
    tree = PrefixTree()
    a = insert_path(tree, [(1,)], first_page=1, salt="a")
    b = insert_path(tree, [(1,)], first_page=2, salt="b")
    assert [a[1].page, b[1].page] == [1, 2]
    tree.release(a)
    tree.release(b)
    assert [root.salt for root in tree.roots()] == ["a", "b"]
    assert tree.evict() == 1
    assert [root.salt for root in tree.roots()] == ["b"]

    unused = [tree.acquire_root("c")]
    tree.release(unused)
    assert tree.find_root("c") is None


def test_a_root_in_use_stays_when_its_last_page_goes() -> None:
    tree = PrefixTree()
    tree.release(insert_path(tree, [(1,)], first_page=1))
    held = [tree.acquire_root("")]
    tree.evict()
    assert tree.find_root("") is held[0]
    tree.release(held)
    assert tree.find_root("") is None
