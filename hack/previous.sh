#!/usr/bin/env bash
# Builds haulout-apiserver of the commit PREVIOUS (default: the one before this) as bin/previous/haulout-apiserver, for tests that run
# it beside the present one. The folder also has its roles, under names of their own.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "${ROOT}"

PREVIOUS="${PREVIOUS:-HEAD~1}"
if ! commit="$(git rev-parse --verify --quiet "${PREVIOUS}^{commit}")"; then
	if [[ "${PREVIOUS}" != HEAD~1 ]] || ! commit="$(git rev-parse --verify --quiet HEAD)"; then
		echo "PREVIOUS=${PREVIOUS}: must be a commit of this repository" >&2
		exit 1
	fi
	echo "THIS CHECKOUT HAS NO HISTORY: the earlier server is that of this commit" >&2
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
# It needs the rights that it came with.
cp "${folder}/source/artifacts/base/rbac-server.yaml" "${folder}/"
printf 'namePrefix: previous-\nresources: [rbac-server.yaml]\n' >"${folder}/kustomization.yaml"
rm -rf "${folder}/source"
echo "${built}" >"${folder}/commit"
