"""What to paste to call a fleet."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path

from pointsman.app.cli.admin_client import DEFAULT_ADMIN_URL

_TEXT = """
Everything runs. Paste into another terminal:

  curl {url}/v1/chat/completions -H 'content-type: application/json' -d {body}

or into Python (pip install openai):

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="none")
  messages = [{{"role": "user", "content": "What is the capital of France?"}}]
  for chunk in client.chat.completions.create(model="{model}", messages=messages, stream=True):
      if chunk.choices:
          print(chunk.choices[0].delta.content or "", end="", flush=True)

What it does: {command} status{admin}.  Ctrl-C stops everything.
"""


def how_to_call(url: str, admin_url: str, model: str, command: str = "pointsman") -> str:
    """A curl line, an OpenAI SDK snippet, and how to look inside with `command`."""
    body = json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "stream": True,
        }
    )
    admin = "" if admin_url == DEFAULT_ADMIN_URL else f" --admin-url {admin_url}"
    return _TEXT.format(url=url, model=model, body=shlex.quote(body), admin=admin, command=command)


def own_command() -> str:
    """How this program can be called again from a shell."""
    if shutil.which("pointsman"):
        return "pointsman"
    started_as = Path(sys.argv[0])
    return str(started_as) if started_as.name == "pointsman" else "python -m pointsman.app.cli.main"
