#!/usr/bin/env bash
# Builds haulout-apiserver of the commit PREVIOUS as bin/previous/haulout-apiserver, for tests that
# run it together with the present one. The folder also has its roles, under separate names. The
# default is the newest commit that is a day older than this one: the server of the preceding commit
# is usually the same.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "${ROOT}"

if [[ -n "${PREVIOUS:-}" ]]; then
	if ! commit="$(git rev-parse --verify --quiet "${PREVIOUS}^{commit}")"; then
		echo "PREVIOUS=${PREVIOUS}: must be a commit of this repository" >&2
		exit 1
	fi
else
	commit="$(git rev-list -1 --before="$(($(git log -1 --format=%ct) - 86400))" HEAD)"
	if [[ -z "${commit}" ]]; then
		commit="$(git rev-parse --verify HEAD)"
		echo "THIS CHECKOUT HAS NO COMMIT THAT IS A DAY OLDER: the earlier server is that of this commit" >&2
	fi
fi
folder="${ROOT}/bin/previous"
built="${commit} $(go env GOVERSION)"
if [[ -x "${folder}/haulout-apiserver" && "$(cat "${folder}/commit" 2>/dev/null)" == "${built}" ]]; then
	exit 0
fi
echo "Building haulout-apiserver of ${commit:0:7}"
rm -rf "${folder}"
mkdir -p "${folder}/source"
git archive "${commit}" | tar -x -C "${folder}/source"
(cd "${folder}/source" && go build -o "${folder}/haulout-apiserver" ./cmd/apiserver)
# The previous server needs the rights of its own commit.
cp "${folder}/source/artifacts/base/rbac-server.yaml" "${folder}/"
printf 'namePrefix: previous-\nresources: [rbac-server.yaml]\n' >"${folder}/kustomization.yaml"
rm -rf "${folder}/source"
echo "${built}" >"${folder}/commit"
