#!/usr/bin/env bash
# All that is to be measured on a machine with one CUDA card, in at most 40 minutes; run again, it goes on.
#
#   benchmarks/gpu.sh [--out DIR] [--minutes N] [--only STEP …]      results.json, results.md, each step's output
#   benchmarks/gpu.sh --smoke                                       tiny sizes on any machine
#
# PYTHON: the interpreter, by default the environment's own. LMDYN_DATA: real corpora, where there are any.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
exec "${PYTHON:-python3}" "$here/gpu_kit.py" "$@"
