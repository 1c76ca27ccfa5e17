#!/bin/sh
# `plimsoll bench pressure` on a GPU with the model, load and script of the published figures.
#
# usage: benches/pressure_card.sh REPOSITORY MODEL [FOLDER]     keeps profile, logs, report.json and plot.svg in FOLDER
#
# The neighbour leaves 1.0, 0.5, 0.25 and 0.1 times the workspace of the model's best batch, as `plimsoll plan` says after
# `plimsoll profile` has measured it. It comes while no call is sent and the server has given back its cached workspace, so
# that what is free is all that a step can have; then calls are sent again. Under load it comes once, first, at 0.5; at the
# end it leaves next to nothing, and asks for the cache of the steps when no more calls are sent.
#
# With BEFORE=1 it is there before the server starts, leaves PART percent of that workspace beside what the idle server
# needs, and gives all of it back after HOLD. The server gets a budget then: the usual one is a part of what is free at the
# start. And it is left a granule of the pools at least: a load is begun when 64 MiB are free beside the weights, of which
# the idle server of the measurement keeps 32.
#
# Four arms take some three minutes on a fast card, four with BEFORE=1 one; what they are compared by takes another before.
set -eu
: "${PLIMSOLL:=$(dirname "$0")/../target/release/plimsoll}"
: "${LENGTHS:=encode}" "${ROWS:=32}" "${CALLERS:=24}" "${FIXED:=4,16}" "${HOLD:=2s}" "${DECAY:=1s}"
: "${BEFORE:=0}" "${PART:=50}" "${BUDGET:=90%}"
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

# part PERCENT LEAST: so much of it in MiB, but not less.
part() {
    left=$((best * $1 / 100))
    [ "$left" -ge "$2" ] || left=$2
    echo "${left}MiB"
}

if [ "$BEFORE" = 1 ]; then
    serve="$serve --memory-budget $BUDGET"
    printf 'leave %s\nstart server\nhold %s\nfree all\nhold %s\n' "$(part "$PART" 32)" "$HOLD" "$HOLD" >"$folder/script"
else
    {
        printf 'hold %s\nleave %s\nhold %s\nfree all\nhold %s\n' "$HOLD" "$(part 50 4)" "$HOLD" "$HOLD"
        for percent in 100 50 25 10; do
            # The driver hands out 2 MiB at a time.
            printf 'load stop\nhold 2s\nleave %s\nload start\nhold %s\nfree all\nhold %s\n' "$(part $percent 4)" "$HOLD" "$HOLD"
        done
        # What is left is the steps' own cache, which the neighbour asks for once they are over: all but 70 MiB of 139 GiB.
        printf 'leave 4MiB\nhold %s\nload stop\nask 99.95%% floor 4MiB for 10s\nfree all\n' "$HOLD"
    } >"$folder/script"
fi

# Its last table says of each squeeze what the arm as shipped is worth: beside the best fixed batch of which no call failed
# meanwhile, and after it beside before.
# shellcheck disable=SC2086
exec "$PLIMSOLL" bench pressure --limit-by card --script "$folder/script" --fixed "$FIXED" --model "$model" \
    --rows "$ROWS" --lengths "$LENGTHS" --concurrency "$CALLERS" --json "$folder/report.json" --plot "$folder/plot.svg" \
    --logs "$folder/logs" -- $serve
