/*
Copyright The Haulout Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package nodemaintenance

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
)

func another(
	name string, stage v1alpha1.NodeMaintenanceStage, selector *corev1.NodeSelector, holds ...string,
) *v1alpha1.NodeMaintenance {
	nm := &v1alpha1.NodeMaintenance{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       v1alpha1.NodeMaintenanceSpec{Stage: stage, NodeSelector: selector},
	}
	for _, node := range holds {
		nm.Status.NodeStatuses = append(nm.Status.NodeStatuses, v1alpha1.NodeMaintenanceNodeStatus{
			NodeRef: v1alpha1.NodeReference{Name: node},
		})
	}
	return nm
}

func TestWarnings(t *testing.T) {
	cluster := []*corev1.Node{
		node("blue-1", "blue"), node("blue-2", "blue"), node("red-1", "red"), node("home", "home"),
		node("cp-1", "cp", "control-plane"), node("cp-2", "cp", "control-plane"),
	}
	grouped := node("group-1", "group")
	grouped.Labels["karpenter.sh/nodepool"] = "default"
	for name, test := range map[string]struct {
		nodes   []*corev1.Node
		others  []*v1alpha1.NodeMaintenance
		request request
		want    []string
	}{
		"nothing to say": {nodes: cluster, request: request{nm: maintain(pools("blue"))}},
		"no node": {
			nodes:   cluster,
			request: request{nm: maintain(pools("green"))},
			want: []string{
				"spec.nodeSelector: no node matches now; existing nodes that match later join the maintenance",
			},
		},
		"no node, and new nodes join": {
			nodes:   cluster,
			request: request{nm: maintain(pools("green"), joins)},
			want:    []string{"spec.nodeSelector: no node matches now; nodes that match later join the maintenance"},
		},
		"all nodes": {
			nodes:   cluster,
			request: request{nm: maintain(pools("blue", "red", "home", "cp"))},
			want: []string{
				"spec.nodeSelector: the Haulout server itself runs on node home",
				"spec.nodeSelector: all nodes of the cluster match (6)",
				"spec.nodeSelector: all control-plane nodes match (2)",
			},
		},
		"the control plane": {
			nodes:   cluster,
			request: request{nm: maintain(pools("cp"))},
			want:    []string{"spec.nodeSelector: all control-plane nodes match (2)"},
		},
		"the server's node": {
			nodes:   cluster,
			request: request{nm: maintain(pools("home"))},
			want:    []string{"spec.nodeSelector: the Haulout server itself runs on node home"},
		},
		"it goes for Idle, too": {
			nodes:   cluster,
			request: request{nm: maintain(pools("home"), atStage("Idle"))},
			want:    []string{"spec.nodeSelector: the Haulout server itself runs on node home"},
		},
		"Complete needs none": {
			nodes:   cluster,
			request: request{nm: maintain(pools("home"), atStage("Complete"))},
		},
		"a deletion needs none": {nodes: cluster, request: request{old: maintain(pools("home"))}},
		"another reason needs none": {
			nodes:   cluster,
			request: request{nm: maintain(pools("home"), because("x")), old: maintain(pools("home"))},
		},
		"another stage warns again": {
			nodes:   cluster,
			request: request{nm: maintain(pools("home")), old: maintain(pools("home"), atStage("Cordon"))},
			want:    []string{"spec.nodeSelector: the Haulout server itself runs on node home"},
		},
		"the server is warned of nothing": {nodes: cluster, request: request{by: self, nm: maintain(pools("home"))}},
		"others, active on the same nodes": {
			nodes: cluster,
			others: []*v1alpha1.NodeMaintenance{
				another("a", "Drain", pools("blue")),
				another("by-status", "Cordon", pools("red"), "blue-2"),
				another("by-selector", "Drain", pools("blue", "red")),
				another("elsewhere", "Drain", pools("red")),
				another("has-left", "Drain", pools("blue"), "red-1"),
				another("idle", "Idle", pools("blue")),
				another("over", "Complete", pools("blue"), "blue-1"),
			},
			request: request{nm: maintain(pools("blue"))},
			want:    []string{"spec.nodeSelector: nodes are already under maintenance by by-selector, by-status"},
		},
		"a status that grows large": {
			nodes:   manyNodes(5000),
			request: request{nm: maintain(pools("blue"))},
			want: []string{
				"spec.drainPlan: the status of 5002 nodes may take 1.2 MiB; messages of individual nodes may be omitted",
			},
		},
		"a group that an autoscaler may add nodes to": {
			nodes:   append(cluster, grouped),
			request: request{nm: maintain(pools("group"), joins)},
			want: []string{
				"spec.newNodes: Join also drains nodes that an autoscaler adds to groups of karpenter.sh/nodepool",
			},
		},
		"the same with Ignore": {nodes: append(cluster, grouped), request: request{nm: maintain(pools("group"))}},
		"newNodes becomes Join": {
			nodes:   append(cluster, grouped),
			request: request{nm: maintain(pools("group"), joins), old: maintain(pools("group"))},
			want: []string{
				"spec.newNodes: Join also drains nodes that an autoscaler adds to groups of karpenter.sh/nodepool",
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if test.request.by == nil {
				test.request.by = bob
			}
			f := newFixture(t, may(append(allOf(test.nodes), "")...), test.nodes, test.others...)
			ctx, warnings := f.context(test.request)
			if err := f.validate(ctx, test.request); err != nil {
				t.Fatal(err)
			}
			if got := warnings.Texts(); !slices.Equal(got, test.want) {
				t.Errorf("warnings are\n%s, want\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
		})
	}
}

func TestWarningsAreFewAndShort(t *testing.T) {
	f := newFixture(t, may(), nil)
	f.plugin.warners = []warner{func(context.Context, *write) []string {
		var texts []string
		for range 9 {
			texts = append(texts, strings.Repeat("ä", 200))
		}
		return texts
	}}
	texts := f.plugin.warnings(t.Context(), &write{nm: maintain(pools("blue")), change: &change{}})
	if len(texts) != warningsAtMost {
		t.Errorf("%d warnings, want %d", len(texts), warningsAtMost)
	}
	for _, text := range texts {
		if n := utf8.RuneCountInString(text); n > warningLength {
			t.Errorf("a warning of %d characters", n)
		}
	}
}

func TestListNames(t *testing.T) {
	var hundred []string
	for i := range 100 {
		hundred = append(hundred, fmt.Sprintf("maintenance-%02d", i))
	}
	long := strings.Repeat("x", 253)
	for name, test := range map[string]struct {
		names []string
		want  string
	}{
		"one": {[]string{"a"}, "by a"},
		"two": {[]string{"a", "b"}, "by a, b"},
		"more than there is room for": {
			names: hundred,
			want: "by maintenance-00, maintenance-01, maintenance-02, maintenance-03, maintenance-04, " +
				"maintenance-05 and 94 more",
		},
		"a long one":    {[]string{long}, "by " + strings.Repeat("x", 116) + "…"},
		"two long ones": {[]string{long, "b"}, "by " + strings.Repeat("x", 100) + "… and 1 more"},
	} {
		t.Run(name, func(t *testing.T) {
			got := listNames("by ", test.names)
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if n := utf8.RuneCountInString(got); n > warningLength {
				t.Errorf("%d characters", n)
			}
		})
	}
}
