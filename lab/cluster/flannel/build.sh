#!/bin/bash
# build.sh VERSION FILE: builds flannel's daemon of a version. The Go module proxy lacks the library of its backend for Tencent Cloud in the
# version that it asks for; a former one has what that backend calls.
set -eu
here=$(dirname "$(readlink -f "$0")")
command -v gcc >/dev/null || { echo "flannel: gcc is missing: of Debian's packages gcc and libc6-dev" >&2; exit 1; }
module=$(mktemp -d)
trap 'rm -rf "$module"' EXIT
lacking=github.com/tencentcloud/tencentcloud-sdk-go/tencentcloud/vpc
cd "$module"
{
	go mod init flannel-build
	go mod edit -replace="$lacking=$lacking@v1.3.75"
	go get "github.com/flannel-io/flannel@$1"
} >said 2>&1 || { cat said >&2; exit 1; }
export CGO_ENABLED=1
TOTAL=$(go list -deps github.com/flannel-io/flannel | wc -l) "$here/../../gobuild" flannel nice go build -v -tags netgo,osusergo \
	-ldflags '-s -w -extldflags "-static"' -o "$2" github.com/flannel-io/flannel
