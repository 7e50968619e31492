"""`python -m services.launcher`: the whole road on this machine, as processes on loopback.

Exit code 0 after an asked-for stop, 1 when the launcher gave up, 130 when a second Ctrl-C killed the services.
"""

from __future__ import annotations

import asyncio
import sys

import httpx

from services.launcher.banner import banner
from services.launcher.logs import MergedLog
from services.launcher.ports import port_problems
from services.launcher.road import Road, plan_road
from services.launcher.run_dir import RunDirError, hold
from services.launcher.settings import LauncherSettings
from services.launcher.supervisor import RestartPolicy, Supervisor, supervise
from services.launcher.variables import take_unknown_variables

STOP_MARGIN = 5.0  # seconds beyond the services' own drain time
SECOND_ROAD = (
    "is Postroad running here already? Another one beside it needs a --run-dir and ports of its own, by these flags; "
    'with make: LAUNCHER_FLAGS="--run-dir .run/two --no-metrics --engine-port 6000 …"'
)


def main() -> int:
    """Runs the road; returns the exit code."""
    settings = LauncherSettings.parse()
    road = plan_road(settings)
    if problems := port_problems(road.ports):
        for problem in problems:
            print(f"postroad: {problem}", file=sys.stderr)
        print(f"postroad: {SECOND_ROAD}", file=sys.stderr)
        return 1
    try:
        with hold(settings.run_dir):
            return asyncio.run(_serve(settings, road))
    except RunDirError as error:
        print(f"postroad: {error}", file=sys.stderr)
        return 1


async def _serve(settings: LauncherSettings, road: Road) -> int:
    logs = settings.run_dir / "logs"
    log = MergedLog(logs, [spec.name for spec in road.services], sys.stdout, settings.log_format)
    for name, meant in take_unknown_variables():
        log.say("unknown variable", level="warning", variable=name, **({"did_you_mean": meant} if meant else {}))
    async with httpx.AsyncClient(trust_env=False, timeout=5) as client:  # no proxy between us and loopback

        async def why_not_ready() -> str:
            try:
                answer = await client.get(f"{road.url}/ready")
            except httpx.TransportError as error:
                return f"no answer from {road.url}/ready ({error or type(error).__name__})"
            return "" if answer.status_code == httpx.codes.OK else _message_of(answer)

        supervisor = Supervisor(
            road.services,
            log,
            settings.run_dir,
            why_not_ready=why_not_ready,
            on_ready=lambda: log.banner(banner(road, logs)),
            ready_timeout=settings.ready_timeout,
            stop_timeout=settings.drain_timeout + STOP_MARGIN,
            policy=RestartPolicy(max_deaths=settings.max_deaths),
        )
        return await supervise(supervisor, log)


def _message_of(answer: httpx.Response) -> str:
    """What the gateway's 503 says is missing."""
    try:
        return str(answer.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"{answer.url} answers {answer.status_code}"


if __name__ == "__main__":
    sys.exit(main())
