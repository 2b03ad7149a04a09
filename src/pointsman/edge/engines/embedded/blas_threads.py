"""How many threads the matrix library takes."""

from __future__ import annotations

import logging

_log = logging.getLogger("pointsman.engines.embedded")


def limit_blas_threads(threads: int) -> bool:
    """From now on, in the whole process; False, with a line in the log, where it can't be said.

    Many engines share a machine, and small matrices are slower on several cores than on one.
    """
    try:
        import threadpoolctl
    except ImportError:
        _log.warning(
            "the package threadpoolctl is not installed: matrix products may take all cores; "
            "pip install 'pointsman[embedded]', or set OPENBLAS_NUM_THREADS=%d",
            threads,
        )
        return False
    threadpoolctl.threadpool_limits(threads, user_api="blas")
    return True
