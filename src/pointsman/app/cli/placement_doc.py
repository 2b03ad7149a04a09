"""docs/placement-files.md, made from the types of cluster and deployment files.

`python -m pointsman.app.cli.placement_doc FILE` writes it; with `--check` it says whether FILE is up to date.
"""

from __future__ import annotations

import sys

from pointsman.app.cli.configuration_doc import tables
from pointsman.app.cli.made_page import write_or_check
from pointsman.edge.manifests.cluster_spec import ClusterSpec
from pointsman.edge.manifests.deployment_spec import DeploymentSpec
from pointsman.edge.manifests.queue_file import QueuesSpec

_HEAD = """\
# Files of placement

<!-- Made by `python -m pointsman.app.cli.placement_doc docs/placement-files.md`; change the types instead. -->

Keys of the files that [`pointsman place`](placement.md) reads. All are YAML, so JSON will do. An unknown key, a
wrong type or a value out of range ends the call with the file, the line, the key and what was expected. A deployment
file may hold several, one a YAML document.
"""
_DEPLOYMENT = "# A deployment file\n"
_CLUSTER = "# A cluster file\n"
_QUEUES = "# A file of queues\n"


def document() -> str:
    """The whole page."""
    parts = [_HEAD, _DEPLOYMENT, *tables(DeploymentSpec, ""), _CLUSTER, *tables(ClusterSpec, "")]
    parts += [_QUEUES, *tables(QueuesSpec, "")]
    return "\n".join(parts).rstrip("\n") + "\n"


def main(arguments: list[str]) -> int:
    """Write the page, or check it; the exit status."""
    return write_or_check(arguments, "pointsman.app.cli.placement_doc", document)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
