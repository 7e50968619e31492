"""The files of a tokenizer that puts a beginning-of-sequence token before every text, as Llama's does."""

from __future__ import annotations

import json
from collections.abc import Mapping

from tokenizers import Tokenizer, processors

BOS = 0  # <|endoftext|>


def files_with_bos(files: Mapping[str, bytes], template: str) -> dict[str, bytes]:
    """Made of the default model's."""
    inner = Tokenizer.from_buffer(files["tokenizer.json"])
    inner.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", BOS)]
    )
    config = {**json.loads(files["tokenizer_config.json"]), "bos_token": "<|endoftext|>"}
    return {
        "tokenizer.json": inner.to_str().encode(),
        "tokenizer_config.json": json.dumps(config).encode(),
        "chat_template.jinja": template.encode(),
    }
