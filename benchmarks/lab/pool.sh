#!/bin/bash
# pool.sh CONFIGS ROWS SECONDS: each config in its own process, imports overlapped, one on the card
here=$(dirname "$0")
n=$(python3 -c "import json,sys; print(len(json.load(open(sys.argv[1]))))" "$1")
end=$(( $(date +%s) + $3 ))
seq 0 $((n-1)) | xargs -P 4 -I{} sh -c \
  "python3 $here/measure_run.py $1 $2 $end {} 2>&1 | grep -vE 'train_runtime|eval_loss|Warning|warn|^$'"
