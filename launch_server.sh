#!/usr/bin/env bash
# Serve the shipped bundle: PORT=30000 MODEL_PATH=/path/to/model bash launch_server.sh
#
# Environment: PORT, MODEL_PATH (required); HOST (127.0.0.1); LOOP_PYTHON (the Python that has the engine);
# LOOP_BUNDLE (a directory with an effective.json, instead of the shipped one); LOOP_DEVICE; LOOP_RUNTIME_DIR;
# LOOP_NO_OVERLAY=1 (safe mode: the original configuration).
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
python="${LOOP_PYTHON:-}"
if [ -z "$python" ]; then
  if [ -x "$here/.venv/bin/python" ]; then python="$here/.venv/bin/python"; else python="python3"; fi
fi
if ! command -v -- "$python" >/dev/null; then
  echo "launch_server.sh: no program at '$python'; set LOOP_PYTHON to the Python that has the engine" >&2
  exit 2
fi
export LOOP_PYTHON="$python"
# -B: a read-only workspace must not be written to.
exec "$python" -B "$here/loop/launch.py"
