#!/usr/bin/env bash
# Proves that a running stack re-ranks, stores and is watched: ready, a right ranking, a candidate that Redis took and
# gave back, a search that comes back re-ranked, and the count of requests in Prometheus.
#
#   BASE_URL=http://127.0.0.1:8000 deploy/smoke.sh
#
# API_KEY: where the service has keys, one with the scopes rank and register.
# OPENSEARCH_URL: http://127.0.0.1:9200; empty where there is no OpenSearch.
# PROMETHEUS_URL: http://127.0.0.1:9090; empty where there is no Prometheus.
# OPENSEARCH_PASSWORD: of its administrator; without it the one that the stack has made.
# Waits up to WAIT_S seconds (180) for the service to become ready and again for the first scrape; ends with 1 otherwise.
# Needs curl and python3.
set -euo pipefail

base_url=${BASE_URL:-http://127.0.0.1:8000}
opensearch_url=${OPENSEARCH_URL-http://127.0.0.1:9200}
prometheus_url=${PROMETHEUS_URL-http://127.0.0.1:9090}
wait_s=${WAIT_S:-180}
# What is on this machine is not behind a proxy.
export no_proxy="127.0.0.1,localhost,${no_proxy:-${NO_PROXY:-}}"

fail() {
    echo "smoke: $*" >&2
    exit 1
}

# until_true WHAT COMMAND...: repeats the command once a second until it succeeds or the time is over.
until_true() {
    local what=$1 deadline=$((SECONDS + wait_s))
    shift
    until "$@"; do
        ((SECONDS < deadline)) || fail "$what: not within $wait_s s"
        sleep 1
    done
    echo "ok: $what"
}

ready() {
    curl --silent --fail --max-time 5 --output /dev/null "$base_url/readyz"
}

# send METHOD PATH BODY: prints the answer.
send() {
    # Not as an argument, which every user of the machine can read.
    curl --config <([[ -z ${API_KEY:-} ]] || printf 'header = "Authorization: Bearer %s"\n' "$API_KEY") \
        --silent --show-error --fail-with-body --max-time 30 --request "$1" --header 'Content-Type: application/json' \
        --data "$3" "$base_url$2"
}

# first_title PARAMETERS: the title of the first hit of a search for hiccups.
first_title() {
    local question='{"size": 3, "query": {"match": {"text": {"query": "how to get rid of hiccups"}}},
        "ext": {"rerank": {"query_context": {"query_text_path": "query.match.text.query"}}}}'
    curl --config <(printf 'user = "admin:%s"\n' "$opensearch_password") --silent --fail --max-time 30 \
        --header 'Content-Type: application/json' --data "$question" "$opensearch_url/sample/_search?$1" |
        python3 -c 'import json, sys; print(json.load(sys.stdin)["hits"]["hits"][0]["_source"]["title"])'
}

# The set-up job has been through, and bandrank puts another text first than BM25 did.
reranked_search() {
    local before after
    before=$(first_title search_pipeline=_none 2> /dev/null) && after=$(first_title search_pipeline=bandrank 2> /dev/null) || return 1
    [[ $before != "$after" && $after == "A twitch of the diaphragm" ]]
}

# The instant query's first value, or 0 where it has none.
prometheus_value() {
    curl --silent --fail --max-time 5 --get --data-urlencode "query=$1" "$prometheus_url/api/v1/query" |
        python3 -c 'import json, sys; r = json.load(sys.stdin)["data"]["result"]; print(r[0]["value"][1] if r else 0)'
}

scraped_requests() {
    local value
    value=$(prometheus_value 'sum(bandrank_requests_total)' 2> /dev/null) || return 1
    python3 -c 'import sys; sys.exit(not float(sys.argv[1]) > 0)' "$value"
}

until_true "$base_url/readyz answers 200" ready

answer=$(send POST /rerank '{
    "query": "why are there two high tides a day",
    "candidates": [
        {"id": "bread", "text": "Yeast eats the sugars in flour and gives off gas, so the dough rises."},
        {"id": "tides", "text": "The Moon raises two bulges of water, and a coast turns through both every day."},
        {"id": "chess", "text": "The king moves two squares towards a rook, and the rook steps over him."}
    ]}') || fail "the rerank request failed: $answer"
python3 -c '
import json, sys
results = json.loads(sys.argv[1])["results"]
scores = [result["relevance_score"] for result in results]
assert sorted(result["index"] for result in results) == [0, 1, 2], "not a ranking of the three candidates"
assert scores == sorted(scores, reverse=True), "the scores rise"
assert results[0]["id"] == "tides", "the passage on tides is not first"
' "$answer" || fail "wrong ranking: $answer"
echo "ok: $base_url/rerank puts the relevant passage first"

answer=$(send PUT /candidates '{"candidates": [{"id": "smoke", "text": "A candidate of the smoke test."}]}' &&
    send POST /rerank '{"query": "smoke", "candidates": [{"id": "smoke"}]}' &&
    send DELETE /candidates '{"ids": ["smoke"]}') || fail "a candidate was not registered, ranked or deleted: $answer"
echo "ok: $base_url/candidates stores a candidate"

if [[ -n $opensearch_url ]]; then
    opensearch_password=${OPENSEARCH_PASSWORD-$(cd "$(dirname "$0")/.." &&
        docker compose exec -T opensearch cat /run/opensearch-login/password)} ||
        fail "no password of OpenSearch; OPENSEARCH_URL= leaves it out"
    until_true "$opensearch_url answers a search, re-ranked" reranked_search
else
    echo "not checked: OpenSearch, because OPENSEARCH_URL is empty"
fi

if [[ -n $prometheus_url ]]; then
    until_true "$prometheus_url has scraped bandrank_requests_total > 0" scraped_requests
else
    echo "not checked: Prometheus, because PROMETHEUS_URL is empty"
fi
