#!/usr/bin/env bash
# Trains a timm model with timm's own train.py, unmodified, on a TFDS dataset that tfds_torch reads.
#
#     git clone --depth 1 https://github.com/huggingface/pytorch-image-models   # timm's wheel has no train.py
#     examples/train_timm.sh pytorch-image-models/train.py
#
# It trains on the embedded digits, on the CPU, until DATASET and DATA_DIR name another dataset. What follows the script is
# handed to it, and beats the options below. On 2 GPUs (train.py trains in several processes on GPUs only):
#
#     PYTHON="torchrun --nproc-per-node 2" examples/train_timm.sh pytorch-image-models/train.py --device cuda
set -euo pipefail

script=${1:?"usage: train_timm.sh TRAIN_PY [ARGUMENT ...]"}
shift
data_dir=${DATA_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/tfds_torch/train_timm}
if [[ -z ${DATASET:-} ]]; then
    python -m tfds_torch.demo digits --root "$data_dir"
fi
# Digits are not to be mirrored, and the whole of each is looked at.
options=(--model resnet10t --input-size 3 32 32 --num-classes 10 --crop-pct 1 --hflip 0 --scale 0.7 1
    --batch-size 64 --epochs 4 --warmup-epochs 0 --opt adamw --lr 0.002 --workers 2 --device cpu)

exec ${PYTHON:-python} -m tfds_torch.timm "$script" \
    --dataset "tfds/${DATASET:-digits}" --data-dir "$data_dir" --train-split train --val-split test \
    "${options[@]}" "$@"
