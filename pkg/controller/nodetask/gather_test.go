// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodetask

import (
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes/fake"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	versionedfake "haulout.dev/haulout/pkg/generated/clientset/versioned/fake"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// TestDoneWorkIsNotGrantedAgain checks that a leader with an old cache, which has offered a node a
// second time, grants no claim: the stored maintenance records that the work is done.
func TestDoneWorkIsNotGrantedAgain(t *testing.T) {
	for state, want := range map[v1alpha1.NodeTaskState]string{
		v1alpha1.NodeTaskDone:    "NodeMaintenance m has recorded that the work on it is done",
		v1alpha1.NodeTaskOffered: "",
	} {
		stored := newMaintenance("m", recorded(state), inCordon)
		f := newFacts(newMaintenance("m", inCordon), withTask(v1alpha1.NodeTaskOffered, holder("w")))
		c := &Controller{host: fake.NewClientset(f.node), maintenance: versionedfake.NewClientset(stored)}
		live := must.Get(c.look(t.Context(), f))(t)
		is.True(t, (want == "") == (live.refusal == "") && strings.Contains(live.refusal, want), "recorded %s: refused because %q, want %q", state, live.refusal, want)
	}
}
