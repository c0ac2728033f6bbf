#!/bin/sh
# redis_login.sh FOLDER: makes `password`, for the service, and `users.acl`, for Redis, which has only its digest.
# Every container that mounts the folder can read both. The service may do what bandrank/engine/cache does, and no more.
set -eu
sh "$(dirname "$0")/password.sh" "$1/password"
digest=$(sha256sum "$1/password" | cut -d ' ' -f 1)
cat > "$1/users.acl.new" << END
user default off resetpass
user bandrank on #$digest ~bandrank:* resetchannels -@all +mget +strlen +set +unlink +ping +select
END
chmod 444 "$1/password" "$1/users.acl.new"
mv "$1/users.acl.new" "$1/users.acl"
