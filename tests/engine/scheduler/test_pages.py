import pytest

from services.engine.scheduler.pages import PageAccountingError, PageAllocator


def test_hands_out_every_page_once() -> None:
    allocator = PageAllocator(3)
    assert sorted(allocator.allocate() for _ in range(3)) == [0, 1, 2]
    assert allocator.num_free == 0
    with pytest.raises(PageAccountingError, match="no page is free"):
        allocator.allocate()


def test_a_freed_page_is_handed_out_again() -> None:
    allocator = PageAllocator(2)
    page = allocator.allocate()
    allocator.allocate()
    allocator.free(page)
    assert allocator.free_pages() == [page]
    assert allocator.allocate() == page


def test_fieldbug_21_a_second_free_is_an_error() -> None:
    allocator = PageAllocator(2)
    page = allocator.allocate()
    allocator.free(page)
    with pytest.raises(PageAccountingError, match=f"page {page} is free already"):
        allocator.free(page)
    assert allocator.num_free == 2
