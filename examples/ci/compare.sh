#!/usr/bin/env bash
# Writes plan-comment.md: what the change does to each plan (and to manifests that the planner did not write), against
# the revision $BASE. Says changed=true in $GITHUB_OUTPUT where anything differs.
set -euo pipefail
out=plan-comment.md
changed=false
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
echo '<!-- llm-deployment-planner -->' > "$out"

for tree in ${TREES:-}; do
  echo "## $tree" >> "$out"
  if [ ! -f "$tree/plan.yaml" ]; then
    echo "The plan is gone: what it describes is no longer rendered." >> "$out"
    changed=true
  elif ! git cat-file -e "$BASE:$tree/plan.yaml" 2> /dev/null; then
    echo "A new plan." >> "$out"
    changed=true
  else
    git show "$BASE:$tree/plan.yaml" > "$scratch/before.yaml"
    code=0
    plan diff "$scratch/before.yaml" "$tree" --format markdown >> "$out" || code=$?
    case $code in
      0) ;;
      1) changed=true ;;
      *) exit "$code" ;;
    esac
  fi
done

if [ -n "${MANIFESTS:-}" ]; then
  echo "## Deployments" >> "$out"
  words=()
  if [ -n "${INTENT:-}" ]; then words+=(-f "$INTENT"); fi
  if [ -n "${FLEET:-}" ]; then words+=(--fleet "$FLEET"); fi
  code=0
  # shellcheck disable=SC2086  # a list of paths
  plan assess $MANIFESTS --git "$BASE..HEAD" "${words[@]}" --format markdown > "$scratch/assess.md" || code=$?
  if [ "$code" -gt 1 ]; then exit "$code"; fi
  cat "$scratch/assess.md" >> "$out"
  if ! grep -q '^No deployment changes' "$scratch/assess.md"; then changed=true; fi
fi

cat "$out" >> "${GITHUB_STEP_SUMMARY:-/dev/null}"
echo "changed=$changed" >> "${GITHUB_OUTPUT:-/dev/null}"
cat "$out"
