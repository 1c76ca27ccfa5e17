#!/bin/sh
# `plimsoll bench pressure` on a GPU with the model, load and script of the published figures.
#
# usage: benches/pressure_card.sh REPOSITORY MODEL [FOLDER]     keeps profile, logs, report.json and plot.svg in FOLDER
#
# The neighbour leaves 1.0, 0.5, 0.25 and 0.1 times the workspace of the model's best batch, as `plimsoll plan` says after
# `plimsoll profile` has measured it. It comes while no call is sent and the server has given back its cached workspace, so
# that what is free is all that a step can have; then calls are sent again. At the end it asks for half of what a best batch
# leaves in the cache, while the server is idle. Under load it comes once, at 0.5.
set -eu
: "${PLIMSOLL:=$(dirname "$0")/../target/release/plimsoll}"
: "${LENGTHS:=encode}" "${ROWS:=32}" "${CALLERS:=24}" "${FIXED:=16,64}" "${HOLD:=3s}" "${DECAY:=1s}"
repository=$1 model=$2
folder=${3:-$(mktemp -d)}
mkdir -p "$folder"

serve="--device cuda --models $repository --profile-dir $folder/profiles --idle-decay $DECAY"
[ -d "$folder/profiles" ] || "$PLIMSOLL" profile "$model" --device cuda --models "$repository" --profile-dir "$folder/profiles"
# shellcheck disable=SC2086
"$PLIMSOLL" plan $serve | tee "$folder/plan"
best=$(awk -v model="$model" '$1 == model { value = $(NF - 1); unit = $NF; printf "%d", value * (unit == "GiB" ? 1024 : 1) }' \
    "$folder/plan")
echo "workspace of the best batch: $best MiB"

{
    echo "hold $HOLD"
    echo "leave $((best / 2))MiB"
    echo "hold $HOLD"
    echo "free all"
    echo "hold $HOLD"
    for part in 100 50 25 10; do
        left=$((best * part / 100))
        # The driver hands out 2 MiB at a time.
        [ "$left" -ge 4 ] || left=4
        printf 'load stop\nhold 3s\nleave %dMiB\nload start\nhold %s\nfree all\nhold 2s\n' "$left" "$HOLD"
    done
    echo "load stop"
    echo "leave $((best / 2))MiB"
    echo "load start"
    echo "hold 2s"
    echo "load stop"
    echo "hold 3s"
    echo "free all"
} >"$folder/script"

# shellcheck disable=SC2086
exec "$PLIMSOLL" bench pressure --limit-by card --script "$folder/script" --fixed "$FIXED" --model "$model" \
    --rows "$ROWS" --lengths "$LENGTHS" --concurrency "$CALLERS" --json "$folder/report.json" --plot "$folder/plot.svg" \
    --logs "$folder/logs" -- $serve
