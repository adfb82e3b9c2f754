#!/usr/bin/env bash
# Every rendered tree is what its plan.yaml says. Exits with the worst code: 0, 2 (input), 4 (drift). Solves nothing.
set -euo pipefail
worst=0
for tree in ${TREES:-}; do
  echo "::group::plan check $tree"
  code=0
  plan check "$tree" || code=$?
  echo "::endgroup::"
  if [ "$code" -ne 0 ]; then
    echo "::error title=plan check $tree::files differ from $tree/plan.yaml (exit $code): change the intent and run plan, or plan render $tree"
  fi
  if [ "$code" -gt "$worst" ]; then worst=$code; fi
done
exit "$worst"
