"""For all tests. Property tests try the same examples in every run, so that a run means the same everywhere.

`scripts/test --hypothesis-profile=random` tries others; `--hypothesis-seed=N` beside it repeats the ones that failed.
"""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("random", derandomize=False, deadline=None, print_blob=True)
settings.load_profile("fixed")
