// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package evacuation

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/registry/registrytest"
	"haulout.dev/haulout/pkg/testing/golden"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestAnswersForGitOps writes the answer to a create request, without a controller, on which
// test/gitops runs the health checks of GitOps tools.
func TestAnswersForGitOps(t *testing.T) {
	r := newRegistry(t, registrytest.RunEtcd(t).RESTOptions(maintenance.Resource("evacuations")))
	out := &v1alpha1.Evacuation{}
	must.Do(t, registrytest.Scheme.Convert(r.mustCreate(), out, nil))
	out.SetGroupVersionKind(v1alpha1.SchemeGroupVersion.WithKind("Evacuation"))
	out.UID, out.ResourceVersion, out.CreationTimestamp = "uid", "1", metav1.NewTime(start).Rfc3339Copy()
	golden.GitOps(t, "evacuation-created", out)
}
