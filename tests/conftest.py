"""What holds for all tests.

Property tests draw the same examples in every run, so that a commit passes or fails by itself. Other examples, to look
for what is not known yet: PYTEST_FLAGS='--hypothesis-profile=default'.
"""

import gc

from hypothesis import settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile("repeatable")


def pytest_collection_finish() -> None:
    """Keeps what was imported and collected out of the garbage collector's sight: to look through it takes a second,
    for which clients in this process would seem to wait."""
    gc.freeze()
