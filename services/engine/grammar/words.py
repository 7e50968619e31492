"""llguidance's errors in words for people."""

from __future__ import annotations

import re

# Its limits, which it tells in terms of its parser.
_LIMITS = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"Current row has (\d+) items; max is (\d+)", "at one place {0} of its parts may come next, more than {1}"),
        (r"Too many items \(limit (\d+)", "at one place it takes more than {0} steps to find what may come next"),
        (r"too many states: \d+ >= (\d+)", "it takes more than {0} states to tell its texts apart"),
        (r"\(grammar\) too big \(limit for this grammar: (\d+)\)", "reading its patterns takes more than {0} steps"),
        (r"\(number of symbols\) too big \(limit for this grammar: (\d+)\)", "it has more than {0} rules and patterns"),
        (
            r"fuel exhausted when checking relevance of lexemes \((\d+)\)",
            "reading its patterns takes more than {0} steps",
        ),
        (r"lexer precomputation failed", "reading its patterns takes too many steps"),
        (r"too many expressions constructed", "at one place it takes too many steps to find what its patterns allow"),
        (r"Unable to determine if regex is empty", "its patterns are too large to tell whether a text fits them all"),
    )
)


def told(error: str) -> str:
    """What an error says, a limit with its number; without llguidance's mark that details were left out."""
    for pattern, words in _LIMITS:
        if found := pattern.search(error):
            return words.format(*found.groups())
    return error.replace("<non-verbose/>", "").replace("NoExtensionBias", "nothing that fits can follow")
