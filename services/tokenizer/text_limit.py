"""How long a text may be, known before it is encoded: encoding takes up to 170 times a text's size in memory."""

from __future__ import annotations

from dataclasses import dataclass

from services.common.errors import ContextLengthExceeded, TooLarge

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class TextLimit:
    """The bounds on a text's size in UTF-8."""

    max_mib: int
    max_model_len: int  # tokens; 0 if it is not known yet
    longest_token: int  # bytes

    def check(self, text: str, param: str) -> None:
        """Raises ContextLengthExceeded for a text that cannot fit the model, TooLarge for one over `max_mib`."""
        size = len(text) if text.isascii() else len(text.encode())
        fitting = self.max_model_len * self.longest_token
        if self.max_model_len and size > fitting:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {self.max_model_len} tokens. However, your prompt has {size} "
                f"bytes: tokens of this model have at most {self.longest_token} bytes, so that a prompt of more than "
                f"{fitting} cannot fit. Please reduce the length of the prompt.",
                param,
            )
        if size > self.max_mib * MIB:
            raise TooLarge(f"a text has {size} bytes, more than the {self.max_mib} MiB that are encoded at once", param)
