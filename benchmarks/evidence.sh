#!/usr/bin/env bash
# Fills the results store on one GPU, most useful runs first; stop it at any time and run it again to continue.
#   benchmarks/evidence.sh record SETS POLICIES DEMONSTRATIONS       the recorded sets of docs/domains.md, into SETS
#   benchmarks/evidence.sh train LIST SETS SECONDS [STORE] [OUTPUT]  the runs that tables lack; LIST: locomotion or domains
#   benchmarks/evidence.sh list LIST                                 the list's parts, in order: TABLE[@START OF SETS][|METHOD...]
# Record with MuJoCo 3.11.0. POLICIES: folder of D4RL's Adroit policies, DEMONSTRATIONS: hand_dapg's door demonstrations as npz (benchmarks/door_human.py).
# SETS holds D4RL's rows as TASK.npz and recorded ones as c4rl/TASK.npz. OUTPUT holds the jobs, from which a stopped one resumes.
# `cp -rs "$PWD/results/store" STORE` makes a store of links, in which the plain files are the new entries.
# WORKERS (7) parts train at once, on DEVICE (cuda) in PRECISION (bf16x3). DRY=1 only lists what is missing.
# Start `nvidia-cuda-mps-control -d` first: without MPS the parts take turns on the GPU instead of sharing it. One part of CQL fills a GPU:
# two at once make no more updates, so WORKERS=1 finishes more of them in a limited time. If OUTPUT will not outlive the machine, stop only
# when a part has ended: an unfinished part is lost.
set -uo pipefail

c="TD3+BC + C4"
locomotion() { # C4's rows of table main, by preset and each with its control; cheaper tables in between.
  # Every missing run is in one part only: two parts would train it twice, or one would find its folder in use
  cat <<PARTS
main@halfcheetah|control: paper, K 1, λ 0
c4-plugin|TD3+BC + LN + C4 on gradients
c4-layer-norm
main@hopper|CQL + C4, authors-fixed
main@hopper|control: authors-fixed, K 1, λ 0
main@walker2d|CQL + C4, authors-fixed
main@walker2d|control: authors-fixed, K 1, λ 0
main@halfcheetah|CQL + C4, authors-fixed
main@halfcheetah|control: authors-fixed, K 1, λ 0
effective-k
clusters|control: paper, K 1, λ 0|CQL + C4, paper, K 1
lambda
frequency
c4-exact-cql|on gradients|on gradients, λ 3
main|SORL|ReBRAC
main|TSRL
alpha
rows|CQL + C4, paper, 1k rows|CQL + C4, paper, 3k rows|CQL + C4, paper, 5k rows
rows|control: paper, K 1, λ 0, 1k rows|control: paper, K 1, λ 0, 3k rows|control: paper, K 1, λ 0, 5k rows
c4-screen|control: authors, K 1, λ 0|control: authors-fixed, K 1, λ 0
cql-plugins
c4-plugin|A2PR + C4
c4-plugin|BPPO + C4
ingredients
main@hopper|CQL + C4, authors|control: authors, K 1, λ 0
main@walker2d|CQL + C4, authors|control: authors, K 1, λ 0
main@halfcheetah|CQL + C4, authors|control: authors, K 1, λ 0
PARTS
}

domains() { # the cheap rows of every table first, then the test of best's rule, and CQL last
  cat <<PARTS
antmaze|BC|best|IQL
antmaze|TD3+BC|$c
maze2d|BC|best|IQL
maze2d|TD3+BC|$c
adroit|BC|best|TD3+BC|$c|IQL
kitchen|BC|best|TD3+BC|$c|IQL
ant|BC|best|TD3+BC|$c|IQL
antmaze|best's values everywhere
maze2d|best's cloning everywhere|best's values everywhere
adroit|CQL|CQL + C4
kitchen|CQL|CQL + C4
domains-cql
antmaze|CQL
antmaze|CQL + C4
maze2d|CQL
maze2d|CQL + C4
ant|CQL|CQL + C4
PARTS
}

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

part() { # TABLE[@SETS][|METHOD...]; its first failed job ends it
  local words table sets left=$((END - $(date +%s))) file job code stopped=0
  IFS='|' read -ra words <<<"$1"
  IFS='@' read -r table sets <<<"${words[0]}"
  [ "$left" -lt 15 ] && echo "$1: no time left" && return 0
  file=$(mktemp)
  python -m c4rl bench table "$table" --data "$SETS" --store "$STORE" --output "$OUTPUT" --device "${DEVICE:-cuda}" \
    --precision "${PRECISION:-bf16x3}" --minutes "$(python -c "print($left / 60)")" ${DRY:+--dry} \
    ${sets:+--sets "$sets"} ${words[1]:+--methods "${words[@]:1}"} >"$file" 2>&1 &
  job=$!
  trap 'stopped=255; kill -INT $job' TERM # 255: xargs starts no other part
  while kill -0 $job 2>/dev/null; do
    grep -q "failed, continuing with the next" "$file" && kill -INT $job
    sleep 2
  done
  wait $job
  code=$?
  echo "$1: exit code $code" # 0: complete, 3: time was up, 130: stopped; the same command continues
  { [ $code -eq 0 ] && [ -z "${DRY:-}" ]; } || tail -n 20 "$file"
  rm "$file"
  return $stopped
}

train() {
  python -m c4rl tasks >/dev/null || { echo "evidence.sh: 'python -m c4rl' does not run, see above" >&2 && return 2; }
  export SETS=$2 END=$(($(date +%s) + $3)) STORE=${4:-results/store} OUTPUT=${5:-runs/bench}
  list "$1" | xargs -d '\n' -P "${WORKERS:-7}" -I{} "$0" part {} &
  local queue=$!
  trap 'pkill -TERM -P $queue' INT TERM # its parts, which stop their jobs
  while kill -0 $queue 2>/dev/null; do wait $queue; done
}

list() {
  case $1 in
    locomotion | domains) "$1" ;;
    *) echo "evidence.sh: found list '$1', expected locomotion or domains" >&2 && return 2 ;;
  esac
}

"$@"; exit # on one line: the file may change while it runs
