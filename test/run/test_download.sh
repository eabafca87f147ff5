#!/bin/sh
# test_download.sh - download.sh, download_gpt2.sh and download_fineweb.sh, with curl and with wget, from a server here
# that has the layout of huggingface.co: a large file is a redirect with the SHA-256 in X-Linked-ETag, a small one a
# redirect to an answer with git's SHA-1 as its ETag.
. "$(dirname "$0")/../shell.sh"
python3 -c '' 2> /dev/null || { skip_test "downloads from a server" "no python3"; close_tests; }

cat > "$dir/server.py" <<'END_OF_SERVER'
import hashlib, http.server, sys

def content(path):                      # 300 kB for a large file
    name = path.rsplit("/", 1)[1]
    return (path.encode() * 10000)[:300000] if name.endswith((".safetensors", ".bin")) else path.encode()

class Handler(http.server.BaseHTTPRequestHandler):
    interrupted = set()
    def do_GET(self):
        client = self.headers["User-Agent"]
        kind, _, path = self.path.strip("/").partition("/")
        if kind not in ("blob", "small"):
            path, data = self.path, content(self.path)
            if "gpt2-xl" in path:
                return self.send_error(404)
            is_large = len(data) == 300000
            self.send_response(302 if is_large else 307)
            if is_large:
                sum_of = "0" * 64 if "gpt2-large" in path else hashlib.sha256(data).hexdigest()
                self.send_header("X-Linked-ETag", f'"{sum_of}"')
            host = f"http://{self.headers['Host']}" if is_large else ""
            self.send_header("Location", f"{host}/{'blob' if is_large else 'small'}{path}")
            self.send_header("Content-Length", "0")
            return self.end_headers()
        data = content("/" + path)
        first = int(self.headers.get("Range", "bytes=0-")[6:-1])
        print(kind, path, first, file=log, flush=True)
        if first >= len(data):
            return self.send_error(416)
        self.send_response(206 if first else 200)
        sha1 = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        if "unstated" not in path:
            self.send_header("ETag", f'"{"f" * 64}"' if kind == "blob" else f'W/"{sha1}"')
        self.send_header("Content-Range", f"bytes {first}-{len(data) - 1}/{len(data)}")
        self.send_header("Content-Length", str(len(data) - first))
        self.end_headers()
        if "gpt2-medium" in path and kind == "blob" and client not in self.interrupted:
            self.interrupted.add(client)
            self.wfile.write(data[:100000])         # and the connection is closed
        else:
            self.wfile.write(data[first:])
    def log_message(self, *_):
        pass

log = open(sys.argv[1] + "/log", "a")
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
with open(sys.argv[1] + "/port", "w") as file:
    print(server.server_port, file=file)
server.serve_forever()
END_OF_SERVER
python3 "$dir/server.py" "$dir" &
trap 'kill $!; rm -rf "$dir"' EXIT
wait_for . "$dir/port"
export HF_ENDPOINT="http://127.0.0.1:$(cat "$dir/port")" no_proxy=127.0.0.1
path=$PATH

for client in curl wget; do
    command -v $client > /dev/null || { skip_test "downloads with $client" "no $client"; continue; }
    mkdir "$dir/$client"
    for tool in sh $client awk cat dirname env grep head mkdir mktemp mv rm sed seq sha1sum sha256sum tail tr wc; do
        ln -s "$(command -v $tool)" "$dir/$client/$tool"
    done
    PATH=$dir/$client
    got=$dir/got-$client url=$HF_ENDPOINT/any/file
    get() { sh -c '. scripts/download.sh; get "$@"' download.sh "$got/$1" "$2" "${3:-$url}" "use it"; }
    right=$(printf /any/file | sha256sum)
    refuses "download.sh: $url has another checksum than 0123" get file 0123
    is "what is left" "$(PATH=$path ls "$got")" ""
    for time in first second; do
        expect "the $time time" get file "${right%% *}"
        is "it says" "$(cat "$dir/expect.out")" "$got/file: checksum verified; next: use it"
    done
    is "the file" "$(cat "$got/file")" /any/file
    refuses "file exists and is another file" get file 0123
    refuses "the server states no checksum" get other stated "$HF_ENDPOINT/unstated/file"
    is "what is left" "$(PATH=$path ls "$got")" file
    close_test "with $client a download is verified, also one that is there"

    expect "gpt2" sh scripts/download_gpt2.sh gpt2 "$got/gpt2"
    is "what it says" "$(tail -n 1 "$dir/expect.out")" \
        "$got/gpt2/model.safetensors: checksum verified; next: ./train_gpt --sample $got/gpt2 --prompt 'It was'"
    is "its files" "$(PATH=$path ls "$got/gpt2" | tr '\n' ' ')" "config.json merges.txt model.safetensors vocab.json "
    is "the file" "$(cat "$got/gpt2/vocab.json")" /openai-community/gpt2/resolve/main/vocab.json
    expect "again" env HF_ENDPOINT=http://127.0.0.1:1 sh scripts/download_gpt2.sh gpt2 "$got/gpt2"
    refuses "gpt3: want gpt2, gpt2-medium" sh scripts/download_gpt2.sh gpt3
    refuses "resolve/main/config.json: no answer" env HF_ENDPOINT=http://127.0.0.1:1 sh scripts/download_gpt2.sh \
        gpt2-medium "$got/medium"
    : > "$dir/log"
    # wget goes on by itself
    [ $client = wget ] || refuses "model.safetensors: it was interrupted; the same command continues" \
        sh scripts/download_gpt2.sh gpt2-medium "$got/medium"
    [ $client = wget ] || is "what is there" "$(wc -c < "$got/medium/model.safetensors.part")" 100000
    expect "the rest" sh scripts/download_gpt2.sh gpt2-medium "$got/medium"
    is "what was sent" "$(grep -o 'safetensors [0-9]*' "$dir/log" | tr '\n' ' ')" "safetensors 0 safetensors 100000 "
    # a kill before the last step
    mv "$got/medium/model.safetensors" "$got/medium/model.safetensors.part"
    expect "all of it is there" sh scripts/download_gpt2.sh gpt2-medium "$got/medium"
    is "its files" "$(PATH=$path ls "$got/medium" | tr '\n' ' ')" "config.json merges.txt model.safetensors vocab.json "
    refuses "model.safetensors has another checksum than 0000" sh scripts/download_gpt2.sh gpt2-large "$got/large"
    is "what is left" "$(PATH=$path ls "$got/large" | tr '\n' ' ')" "config.json merges.txt vocab.json "
    refuses "config.json: HTTP/1.0 404 Not Found" sh scripts/download_gpt2.sh gpt2-xl "$got/xl"
    is "what is left" "$(PATH=$path ls "$got/xl")" ""
    printf '%0300001d' 0 > "$got/gpt2/model.safetensors.part"       # a part of another version
    rm "$got/gpt2/model.safetensors"
    refuses "resolve/main/model.safetensors" sh scripts/download_gpt2.sh gpt2 "$got/gpt2"
    expect "it starts again" sh scripts/download_gpt2.sh gpt2 "$got/gpt2"
    close_test "GPT-2 is downloaded with $client, continued, and never half-written under its name"

    scripts=$PWD/scripts
    expect "shards" sh -c 'cd "$1" && exec sh "$2" 2' - "$got" "$scripts/download_fineweb.sh"
    is "its files" "$(PATH=$path ls "$got/data/fineweb" | tr '\n' ' ')" \
        "fineweb_train_000001.bin fineweb_train_000002.bin fineweb_val_000000.bin "
    is "what it says" "$(tail -n 1 "$dir/expect.out")" "next: ./train_gpt 'data/fineweb/fineweb_train_*.bin' \
--val-data 'data/fineweb/fineweb_val_*.bin' --model gpt2"
    for shards in 0 1029 -1 many 1000000; do
        refuses "$shards: want 1 to 1028 shards" sh scripts/download_fineweb.sh $shards
    done
    close_test "shards of FineWeb are downloaded with $client"
    PATH=$path
done
close_tests
