"""Time limits for requests to engines that share their cores with the test."""

from __future__ import annotations

from dataclasses import replace

from pointsman.edge.configuration.control_plane import Timeouts as ConfiguredTimeouts
from pointsman.edge.serving.timeouts import Timeouts

PATIENT_TIMEOUTS = replace(Timeouts.of(ConfiguredTimeouts()), connect_s=60.0)
"""The usual ones, but that an engine is not given up because nobody got any time for a while."""
