"""What becomes of a forked process: it works, and ends without running what its parent was about to do."""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable
from typing import NoReturn

import click

from pointsman.app.cli.main import EXIT_ERROR
from pointsman.core.model.errors import PointsmanError
from pointsman.edge.engines.local.parent import die_with_parent

_log = logging.getLogger("pointsman.cli")


def in_child(work: Callable[[], int], parent: int, blocked: Iterable[signal.Signals]) -> NoReturn:
    """Never returns. A session of its own: Ctrl-C in the terminal reaches the parent, which tells the children."""
    status = 1
    blocked = tuple(blocked)
    try:
        os.setsid()
        for number in blocked:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        die_with_parent(parent)
        status = work()
    except PointsmanError as error:
        click.echo(f"pointsman: {error}", err=True)
        status = EXIT_ERROR
    except Exception:
        _log.exception("a front end failed")
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
