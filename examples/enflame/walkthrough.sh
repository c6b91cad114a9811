#!/usr/bin/env bash
# From an ONNX model to the results of a served one on a simulated Enflame i20, in six steps; takes a minute or two, needs no card.
#
#     examples/enflame/walkthrough.sh [FOLDER]
#
# FOLDER (a temporary one, removed at the end, unless given) gets the model, the repository and the logs. PYTHON says which Python runs it
# (.venv/bin/python); it needs the extras compile, examples and test. Ends with 0 if the served model's results are those of its source.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
python="${PYTHON:-$root/.venv/bin/python}"
if [ $# -gt 0 ]; then
    folder="$1"
    mkdir -p "$folder"
    kept=1
else
    folder="$(mktemp -d)"
    kept=0
fi
server=""

finish() {
    local code=$?
    if [ -n "$server" ] && kill -0 "$server" 2>/dev/null; then
        kill -TERM "$server"
        wait "$server" || true
    fi
    [ "$kept" = 1 ] || rm -rf "$folder"
    exit "$code"
}
trap finish EXIT

step() { printf '\n== %s\n' "$*"; }

step "1. Compile: ONNX to model.exec"
"$python" "$root/examples/enflame/compile_model.py" --folder "$folder" --batch-sizes 1,8,128

step "2. Unit tests of the way there"
(cd "$root" && "$python" -m pytest tests/unit/model_compiler/test_compile_edges.py tests/unit/model_compiler/test_compile_for_gcu.py -q -p no:cacheprovider)

step "3. What was made"
(cd "$folder" && find model_repos | LC_ALL=C sort | sed -e 's|[^/]*/|    |g')
cat "$folder/model_repos/resnet50/config.pbtxt"
"$python" -m stoker.cli.main dump "$folder/model_repos/resnet50/1/model.exec" | sed -n -e '/^Compiled batch sizes/,/^$/p'

step "4. Serve"
rm -f "$folder/ready.json"
"$python" -m stoker.server.main --model_base_path="$folder/model_repos" --grpc_port=0 --http_port=0 --prefer_adlik=true \
    --ready_file="$folder/ready.json" >"$folder/server.log" 2>&1 &
server=$!
for _ in $(seq 300); do
    [ -e "$folder/ready.json" ] && break
    kill -0 "$server" 2>/dev/null || { tail -n 20 "$folder/server.log"; exit 1; }
    sleep 0.2
done
[ -e "$folder/ready.json" ] || { tail -n 20 "$folder/server.log"; echo "the server is not ready after a minute"; exit 1; }
cat "$folder/ready.json"
port="$("$python" -c 'import json, sys; print(json.load(open(sys.argv[1]))["grpc_port"])' "$folder/ready.json")"

step "5. A client asks, over Adlik's protocol"
source_results=("$python" "$root/examples/enflame/source_results.py" --model "$folder/model/resnet50.onnx" --folder "$folder/data")
photographs="$("$python" -c 'from pathlib import Path; from sklearn import datasets; print(Path(datasets.__file__).parent / "images")')"
"${source_results[@]}" "$photographs"
"$python" "$root/examples/resnet50/client.py" -m resnet50 -b 2 -c 5 -u "127.0.0.1:$port" -t "$folder/data/val_map.txt" \
    "$photographs" "$folder/data/imagenet_class.txt" | tee "$folder/results.txt"

step "6. The result"
"${source_results[@]}" --compare "$folder/results.txt" "$photographs"
