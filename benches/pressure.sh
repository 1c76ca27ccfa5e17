#!/bin/sh
# `plimsoll bench pressure` with the model, limit, load and script of the published figures.
#
# usage: benches/pressure.sh [FOLDER]      keeps profile, logs, report.json and plot.svg in FOLDER (default: a new one)
#
# What is chosen, and why:
# - On a CPU batches gain nothing beyond some hundred tokens, so a server as shipped needs little workspace and there is
#   nothing to fight for. On a GPU they gain up to tens of thousands. So the envelope is configured: steps of up to
#   STEP_TOKENS, all measured; at 16384 tokens the built-in embedder takes some 75 MiB for a step.
# - 97 of 100 callers send short rows, 3 send rows of 512 tokens, all rows of a call alike. A fixed batch has to be small
#   for the long ones and large for the short ones; that is what batches from a profile are for.
# - A closed loop keeps the queue deep: the goodput is what each arm can do.
# - The neighbour leaves LEFT: enough for small steps, too little for the largest. It comes once under load, and once
#   while the server is idle and has given back its workspace: whoever does not look again is killed then.
# - The safety margin is smaller than by default, since the whole limit is: the neighbour takes 32 MiB a second, and a
#   step reaches its peak in well under half of one.
set -eu
: "${PLIMSOLL:=$(dirname "$0")/../target/release/plimsoll}"
: "${LIMIT:=256MiB}" "${STEP_TOKENS:=16384}" "${LEFT:=32MiB}" "${SAFETY:=20MiB}"
: "${ROWS:=32}" "${CALLERS:=16}" "${FIXED:=4,8,16,32,64}" "${HOLD:=8s}"
folder=${1:-$(mktemp -d)}

mkdir -p "$folder/models/tiny-embed"
cat > "$folder/models/tiny-embed/model.toml" <<TOML
schema = 1
task = "embed"
length_max = 512
step_tokens_max = $STEP_TOKENS
[source]
embedded = "tiny-embed"
TOML
cat > "$folder/script" <<SCRIPT
hold $HOLD
leave $LEFT
hold $HOLD
free all
hold $HOLD
load stop
hold 3s
leave $LEFT
load start
hold $HOLD
free all
hold $HOLD
load stop
ask 75% floor 10% for 10s
hold 1s
free all
SCRIPT

serve="--models $folder/models --profile-dir $folder/profiles --memory-safety $SAFETY"
# Measured once, in peace: every arm starts from the same complete profile.
[ -d "$folder/profiles" ] || "$PLIMSOLL" profile tiny-embed --models "$folder/models" --profile-dir "$folder/profiles"
# shellcheck disable=SC2086
exec "$PLIMSOLL" bench pressure --limit "$LIMIT" --script "$folder/script" --fixed "$FIXED" \
    --rows "$ROWS" --lengths bimodal:8,512,0.03 --lengths-of calls --concurrency "$CALLERS" \
    --json "$folder/report.json" --plot "$folder/plot.svg" --logs "$folder/logs" -- $serve
