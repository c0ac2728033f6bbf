#!/bin/sh
# password.sh FILE: makes a random password there, which its owner alone can read, unless there is one already.
set -eu
umask 077
test -s "$1" && exit 0
head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n' > "$1.new"
test "$(wc -c < "$1.new")" -eq 64
mv "$1.new" "$1"
