#!/bin/bash
# opensearch_login.sh FOLDER: makes `password` there, of the administrator `admin`, and in OpenSearch's configuration a
# certificate for this node alone, and the list of users, which has the administrator with a hash of the password and
# none of the users with known passwords that the image brings. Every container that mounts FOLDER can read the password.
#
# OPENSEARCH_HOME: where OpenSearch is, /usr/share/opensearch.
set -euo pipefail
home=${OPENSEARCH_HOME:-/usr/share/opensearch}
config=$home/config
umask 077

sh "$(dirname "$0")/password.sh" "$1/password"

# The stores' password is the one that OpenSearch assumes: who can read the files needs none.
keytool() {
    "${JAVA_HOME:-$home/jdk}/bin/keytool" -storetype PKCS12 -storepass changeit -noprompt "$@"
}
if ! test -s "$config/trusted.p12"; then
    rm -f "$config/node.p12" "$config/trusted.p12.new"
    keytool -genkeypair -keystore "$config/node.p12" -alias node -keyalg EC -groupname secp256r1 \
        -dname CN=opensearch -validity 36500
    keytool -exportcert -keystore "$config/node.p12" -alias node |
        keytool -importcert -keystore "$config/trusted.p12.new" -alias node
    mv "$config/trusted.p12.new" "$config/trusted.p12"
fi

ADMIN_PASSWORD=$(cat "$1/password")
export ADMIN_PASSWORD
hash=$(bash "$home/plugins/opensearch-security/tools/hash.sh" -env ADMIN_PASSWORD | grep '^\$2[aby]\$')
users=$config/opensearch-security/internal_users.yml
cat > "$users.new" << END
_meta:
  type: internalusers
  config_version: 2
admin:
  hash: "$hash"
  reserved: true
  backend_roles: [admin]
END
mv "$users.new" "$users"
chmod 755 "$1"
chmod 444 "$1/password"
