"""One engine as a child of a fleet: `python -m pointsman.edge.engines.local PARENT_PID SETTINGS_AS_JSON`.

Prints `READY_PREFIX` and the URL when it can be used; everything else goes to stderr. People use `pointsman engine`.
"""

from __future__ import annotations

import os
import sys

import msgspec

from pointsman.core.model.errors import PointsmanError
from pointsman.edge.engines.local.llama_server import serve
from pointsman.edge.engines.local.parent import die_with_parent
from pointsman.edge.engines.local.process import READY_PREFIX
from pointsman.edge.engines.local.settings import LocalEngineSettings


def main(arguments: list[str]) -> int:
    """Serve until told to stop; the exit status."""
    parent_pid, settings = arguments
    die_with_parent(int(parent_pid))
    try:
        serve(msgspec.json.decode(settings, type=LocalEngineSettings), _announce)
    except PointsmanError as error:
        print(f"pointsman: {error}", file=sys.stderr)
        return 2
    return 0


def _announce(url: str) -> None:
    print(f"{READY_PREFIX}{url}", flush=True)
    os.dup2(2, 1)  # nobody reads stdout from here on


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
