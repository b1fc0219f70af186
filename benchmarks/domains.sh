#!/usr/bin/env bash
# The domain tables of docs/domains.md.
#   benchmarks/domains.sh record SETS POLICIES DEMONSTRATIONS   the recorded sets, into SETS
#   benchmarks/domains.sh train SETS SECONDS [STORE]            what the tables lack, on one GPU
# POLICIES: folder of D4RL's Adroit policies, DEMONSTRATIONS: hand_dapg's door demonstrations as npz (benchmarks/door_human.py).
# SETS must also hold D4RL's antmaze-umaze-v0.npz, halfcheetah-medium-replay-v2.npz and walker2d-medium-expert-v2.npz.
set -uo pipefail

record() {
  local sets=$1 policies=$2 demonstrations=$3 name
  one() { [ -e "$sets/c4rl/$1.npz" ] || python -m c4rl data record "$1" --size 10000 --seed 0 --output "$sets/c4rl/$1.npz" "${@:2}"; }
  for name in open-v0 open-dense-v0 umaze-v1 umaze-dense-v1 medium-v1 medium-dense-v1 large-v1 large-dense-v1; do one "maze2d-$name"; done
  for name in medium-expert medium medium-replay expert full-replay; do one "ant-$name-v2"; done
  for name in umaze-v2 umaze-diverse-v2 medium-play-v2 medium-diverse-v2 large-play-v2 large-diverse-v2 ultra-play-v0 ultra-diverse-v0; do
    one "antmaze-$name"
  done
  for name in complete partial mixed; do one "kitchen-$name-v0"; done
  one pen-cloned-v1 --policy "$policies/pen-cloned-v1-d4rl-bc.npz"
  for name in pen door hammer relocate; do one "$name-expert-v1" --policy "$policies/$name-expert-v1-d4rl-dapg.npz"; done
  [ -e "$sets/door-human-v1.npz" ] || python benchmarks/door_human.py "$demonstrations" "$sets/door-human-v1.npz"
}

train() {
  local sets=$1 end=$(($(date +%s) + $2)) store=${3:-results/store} log
  log=$(mktemp -d)
  part() { # TABLE METHODS...; a failed job ends its queue
    local table=$1 left=$((end - $(date +%s))) file code
    shift
    [ $left -lt 15 ] && return 3
    file=$log/$BASHPID.log
    python -m c4rl bench table "$table" --data "$sets" --store "$store" --output "runs/bench-$BASHPID" --device "${DEVICE:-cuda}" \
      --precision "${PRECISION:-bf16x3}" --minutes "$(python -c "print($left / 60)")" --methods "$@" >"$file" 2>&1 &
    local job=$!
    while sleep 2 && kill -0 $job 2>/dev/null; do
      grep -q "failed, going on" "$file" && kill -INT $job
    done
    wait $job
    code=$?
    echo "$table $*: exit code $code"
    [ $code -eq 0 ] || { tail -n 20 "$file"; return 1; }
  }
  local c="TD3+BC + C4" # the cheap rows of every table first, what best's rule is worth then, CQL at last
  (part antmaze BC best IQL && part antmaze "best's values everywhere" && part antmaze CQL) &
  (part antmaze TD3+BC "$c" && part antmaze "CQL + C4") &
  (part maze2d BC best IQL && part maze2d "best's cloning everywhere" "best's values everywhere" && part maze2d CQL) &
  (part maze2d TD3+BC "$c" && part maze2d "CQL + C4") &
  (part adroit BC best TD3+BC "$c" IQL && part adroit CQL "CQL + C4") &
  (part kitchen BC best TD3+BC "$c" IQL && part kitchen CQL "CQL + C4") &
  (part ant BC best TD3+BC "$c" IQL && part domains-cql CQL "CQL + C4" && part ant CQL "CQL + C4") &
  wait
}

"$@"
