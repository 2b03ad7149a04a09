"""`pointsman convert`: Dynamo's deployments to deployment files."""

from __future__ import annotations

from pathlib import Path

import click

from pointsman.app.cli.output import STDOUT
from pointsman.app.cli.piped import check_piped
from pointsman.core.model.errors import ConfigError
from pointsman.edge.manifests.dynamo import convert_dynamo
from pointsman.edge.manifests.manifest_text import STDIN, read_manifest

_MOST_BYTES = 16 * 2**20


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path), required=False)
def convert(file: Path, out: Path | None) -> int:
    """Make deployment files (docs/placement.md) of Dynamo's, to stdout or OUT.

    FILE (`-`: stdin) holds DynamoGraphDeployments (v1alpha1, v1beta1) or DynamoDeployments, one or more YAML documents
    or what `kubectl get` lists.
    What is not carried over is listed on stderr and above each deployment.
    """
    check_piped({"FILE": file})
    converted = convert_dynamo(*read_manifest(file, "a deployment", _MOST_BYTES))
    text = "---\n".join(each.text for each in converted)
    if out is None or str(out) == STDOUT:
        click.echo(text, nl=False)
    else:
        if file != STDIN and out.exists() and out.samefile(file):
            raise ConfigError(f"{out}: is the file that is read; name another one to write")
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{out}: can't be written: {error.strerror}") from error
    harmless = 0
    for each in converted:
        for note in each.notes:
            if note.matters:
                click.echo(f"note: {note}", err=True)
            else:
                harmless += 1
    if harmless:
        click.echo(f"note: {harmless} fields without a part in placement are left out; the file names them", err=True)
    return 0
