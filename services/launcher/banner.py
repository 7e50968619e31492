"""What the terminal shows once the road is ready: where it is, and a call to try."""

from __future__ import annotations

from pathlib import Path

from services.launcher.road import Road

_BANNER = """\
Postroad serves on {url}. An example call:

  curl {url}/v1/chat/completions -H 'content-type: application/json' {key}\\
    -d '{{"messages": [{{"role": "user", "content": "What is the capital of France?"}}], "temperature": 0}}'; echo

Logs as they were written: {logs}/. Ctrl-C stops everything."""
_KEY_HEADER = '-H "authorization: Bearer $OPENAI_API_KEY" '


def banner(road: Road, logs: Path) -> str:
    """`logs`: the folder of the log files."""
    return _BANNER.format(url=road.url, key=_KEY_HEADER if road.asks_for_keys else "", logs=logs)
