"""Read by every Python process of an engine at its start: those who wait for something sleep meanwhile.

vLLM's processes wait for each other in loops of `sched_yield`, and a NIXL agent looks for work with all the time of a
core. Where engines and tests share two cores this starves everybody, the kernel's own workers included: an answer that
takes half a second takes up to 80, and now and then a process gets no time for longer than any time limit.
"""

from __future__ import annotations

import importlib.machinery
import os
import sys
import time
from collections.abc import Sequence
from types import ModuleType
from typing import Any

_YIELD_S = 50e-6
_NIXL_WAIT_US = 1000
"""At most, between two looks; what arrives wakes it sooner."""


def _sleep_a_moment() -> None:
    time.sleep(_YIELD_S)


class _GentleNixl:
    """Finds NIXL's Python interface, and makes its agents wait."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Of that one module only."""
        if not (name.startswith("nixl_") and name.endswith("._api")):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            bindings: Any = module.nixlBind
            usual = bindings.nixlAgentConfig

            class Configuration(usual):  # type: ignore[misc]
                """Its interface sets a wait of 0."""

                pthrDelay = property(  # noqa: N815
                    usual.pthrDelay.fget, lambda self, us: usual.pthrDelay.fset(self, us or _NIXL_WAIT_US)
                )

            bindings.nixlAgentConfig = Configuration

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


os.sched_yield = _sleep_a_moment
sys.meta_path.insert(0, _GentleNixl())  # type: ignore[arg-type]
