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

package main

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/cmd/screen"
	"haulout.dev/haulout/test/internal/audit"
)

func environment(variables map[string]string) func(string) string {
	return func(name string) string { return variables[name] }
}

func TestSettings(t *testing.T) {
	self := func() (string, error) { return "/src/haulout/bin/demo", nil }
	for name, test := range map[string]struct {
		variables map[string]string
		want      settings
		wrong     string
	}{
		"without variables": {
			want: settings{root: "/src/haulout", dir: ".cluster-demo", own: true, nodes: 20},
		},
		"with all variables": {
			variables: map[string]string{"CLUSTER_DIR": "/tmp/cluster/", "NODES": "30", "KEEP": "1"},
			want:      settings{root: "/src/haulout", dir: "/tmp/cluster", nodes: 30, keep: true},
		},
		"KEEP may be denied": {
			variables: map[string]string{"KEEP": "0"},
			want:      settings{root: "/src/haulout", dir: ".cluster-demo", own: true, nodes: 20},
		},
		"KEEP is neither yes nor no": {variables: map[string]string{"KEEP": "perhaps"}, wrong: "KEEP"},
		"NODES is no number":         {variables: map[string]string{"NODES": "many"}, wrong: "NODES"},
		"NODES are too few":          {variables: map[string]string{"NODES": "7"}, wrong: "NODES"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := newSettings(environment(test.variables), self)
			if test.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), test.wrong) {
					t.Fatalf("got error %v, want one that names %s", err, test.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got != test.want {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

func TestAClusterOfTheUsersIsNotTouched(t *testing.T) {
	dir := t.TempDir()
	named, own := settings{dir: dir}, settings{dir: dir, own: true}
	if err := named.check(); err != nil {
		t.Errorf("an empty folder is refused: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "state.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := named.check(); err == nil {
		t.Error("a cluster in a folder that the user has named would be stopped")
	}
	if err := own.check(); err != nil {
		t.Errorf("the cluster of an earlier demo is in the way: %v", err)
	}
}

func TestWorkloads(t *testing.T) {
	workloads, err := readWorkloads("workloads.yaml", 20)
	if err != nil {
		t.Fatal(err)
	}
	want := []workload{
		{"Deployment", "shop", "web", 120, "", "10% may be missing"},
		{"Deployment", "shop", "checkout", 60, "important", "90% must be there"},
		{"Deployment", "shop", "thumbnails", 60, "batch", ""},
		{"StatefulSet", "shop", "db", 10, "important", "1 may be missing"},
		{"Deployment", "kube-system", "dns", 20, "system-cluster-critical", "10% may be missing"},
		{"Deployment", "kube-system", "volumes", 20, "system-node-critical", "10% may be missing"},
		{"DaemonSet", "kube-system", "logs", 20, "system-node-critical", ""},
		{"Pod", "shop", "debug", 6, "", ""},
	}
	if !reflect.DeepEqual(workloads, want) {
		t.Errorf("got %+v, want %+v", workloads, want)
	}
	if got := totalPods(workloads); got != 316 {
		t.Errorf("got %d pods, want 316", got)
	}
}

func TestWorkloadsWithAnUnknownFieldAreRefused(t *testing.T) {
	_, err := parseWorkloads(
		[]byte("{apiVersion: apps/v1, kind: Deployment, metadata: {name: web}, spec: {replicos: 3}}"), 20,
	)
	if err == nil || !strings.Contains(err.Error(), "replicos") {
		t.Errorf("got error %v, want one that names the field", err)
	}
}

func TestMaintenance(t *testing.T) {
	d := &demo{settings: settings{root: filepath.Join("..", "..")}}
	text, nm, err := d.readMaintenance()
	if err != nil {
		t.Fatal(err)
	}
	if nm.Name != maintenanceName || nm.Spec.Stage != v1alpha1.NodeMaintenanceStageDrain ||
		len(nm.Spec.DrainPlan) != 12 {
		t.Errorf("got %s in stage %s with %d entries in its plan, want %s in stage Drain with 12",
			nm.Name, nm.Spec.Stage, len(nm.Spec.DrainPlan), maintenanceName)
	}
	if strings.Contains(text, "#") {
		t.Errorf("the text that is shown has comments: %s", text)
	}
}

func TestNotDrained(t *testing.T) {
	drained := func(status metav1.ConditionStatus) *v1alpha1.NodeMaintenance {
		return &v1alpha1.NodeMaintenance{Status: v1alpha1.NodeMaintenanceStatus{Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionDrained, Status: status, Reason: "Because", Message: "of this"},
		}}}
	}
	for name, test := range map[string]struct {
		nm   *v1alpha1.NodeMaintenance
		want string
	}{
		"no maintenance":     {nil, "the NodeMaintenance does not exist"},
		"no condition":       {&v1alpha1.NodeMaintenance{}, "the NodeMaintenance has no condition Drained"},
		"condition is false": {drained(metav1.ConditionFalse), "the condition Drained is False (Because): of this"},
		"condition is true":  {drained(metav1.ConditionTrue), ""},
	} {
		t.Run(name, func(t *testing.T) {
			if got := notDrained(test.nm); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestMovable(t *testing.T) {
	controller := true
	pod := func(name, owner string, phase corev1.PodPhase) corev1.Pod {
		p := corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Status:     corev1.PodStatus{Phase: phase},
		}
		if owner != "" {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: owner, Controller: &controller}}
		}
		return p
	}
	got := movable([]corev1.Pod{
		pod("web", "ReplicaSet", corev1.PodRunning), pod("bare", "", corev1.PodPending),
		pod("logs", "DaemonSet", corev1.PodRunning), pod("job", "Job", corev1.PodSucceeded),
		pod("crashed", "Job", corev1.PodFailed),
	})
	if want := []string{"ns/web", "ns/bare"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestComplaints(t *testing.T) {
	log := "I1 a\nW1 b\nE1 c\nI2 d\n\nE2 e\n"
	if got, want := complaints(log, 2), []string{"E1 c", "E2 e"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := complaints("", 2); len(got) > 0 {
		t.Errorf("got %q of an empty log", got)
	}
}

func someProgress() progress {
	entry := func(priority int32) v1alpha1.DrainPlanEntry {
		return v1alpha1.DrainPlanEntry{PodPriority: priority, PodType: v1alpha1.PodTypeDefault}
	}
	return progress{
		elapsed: 7 * time.Second,
		nodes:   []string{"node-000", "node-001", "node-002"},
		maintenance: &v1alpha1.NodeMaintenance{
			Status: v1alpha1.NodeMaintenanceStatus{NodeStatuses: []v1alpha1.NodeMaintenanceNodeStatus{
				{
					NodeRef:        v1alpha1.NodeReference{Name: "node-000"},
					DrainTargets:   []v1alpha1.DrainPlanEntry{entry(1000)},
					DrainMessage:   "Evacuating",
					PodsEvacuating: 5,
					PodsBlocked:    2,
				},
				{
					NodeRef:        v1alpha1.NodeReference{Name: "node-001"},
					DrainTargets:   []v1alpha1.DrainPlanEntry{entry(1000)},
					DrainMessage:   "Drained",
					PodsEvacuating: 1,
					PodsBlocked:    1,
				}, // not yet told that it is gone
				{NodeRef: v1alpha1.NodeReference{Name: "node-002"}},
			}},
		},
		seen: audit.Snapshot{
			Nodes: map[string]audit.NodeCount{
				"node-000": {Pods: 12, Left: 6},
				"node-001": {Pods: 3},
				"node-002": {Pods: 4, Left: 4},
			},
			Waves: []audit.Wave{
				{Entry: entry(1000), Pods: 17, Asked: 9, Gone: 9},
				{Entry: entry(v1alpha1.SystemClusterCritical), Pods: 2},
			},
			Budgets: []audit.Budget{{Name: "shop/web", Expected: 12, Floor: 10, Healthy: 10, Lowest: 10}},
		},
	}
}

func TestProgressOnATerminal(t *testing.T) {
	want := `    7 s   9 of 19 pods have left

  wave 1  priority <= 1000          [############............]   9 of 17 gone
  wave 2  system-cluster-critical   [........................]   0 of 2 gone

  NODE                                             EVACUATING  BLOCKED  MESSAGE
  node-000  [############............]   6 of 12            5        2  Evacuating
  node-001  [########################]   0 of 3             0        0  Drained
  node-002  [........................]   4 of 4             0        0

  BUDGET                     HEALTHY    NEEDED    MAY GO
  shop/web                        10        10         0`
	var got []string
	var styles []screen.Style
	for _, line := range someProgress().lines() {
		got, styles = append(got, line.Text), append(styles, line.Style)
	}
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	// Finished is green, blocked is yellow, what waits is faint.
	for line, want := range map[int]screen.Style{
		2: screen.Plain,
		3: screen.Faint,
		6: screen.Warning,
		7: screen.Good,
		8: screen.Plain,
	} {
		if styles[line] != want {
			t.Errorf("line %d (%s) has style %q, want %q", line, got[line], styles[line], want)
		}
	}
}

func TestProgressInALine(t *testing.T) {
	p := someProgress()
	want := "wave 1 of 2 (priority <= 1000), 9 of 19 pods have left; left: node-000 6, node-001 0, node-002 4; " +
		"blocked: 2"
	if got := p.summary(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	p.seen.Waves[0].Gone, p.seen.Waves[1].Gone = 17, 2
	want = "all waves are over, 19 of 19 pods have left; left: node-000 6, node-001 0, node-002 4; blocked: 2"
	if got := p.summary(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestPlainProgressIsSaidOnceAndNotTooOften(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	now := time.Unix(0, 0)
	r := &reporter{screen: screen.New(file, environment(nil)), now: func() time.Time { return now }}
	p := someProgress()
	show := func(after time.Duration, gone int) {
		now = now.Add(after)
		p.seen.Waves[0].Gone = gone
		r.show(p)
	}
	show(time.Hour, 9)
	show(time.Second, 10)   // too soon
	show(2*time.Second, 10) // said
	show(time.Hour, 10)     // nothing new
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(content), "\n"); got != 2 {
		t.Errorf("got %d lines, want 2:\n%s", got, content)
	}
}

func TestJudgement(t *testing.T) {
	for name, test := range map[string]struct {
		checks []audit.Check
		want   error
	}{
		"all promises were kept": {checks: []audit.Check{{Kept: true, Text: "a"}, {Kept: true, Text: "b"}}},
		"one was not": {
			checks: []audit.Check{{Kept: true, Text: "a"}, {Text: "b"}},
			want:   errors.New("1 of 2 checks failed"),
		},
	} {
		t.Run(name, func(t *testing.T) {
			null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer null.Close()
			d := &demo{screen: screen.New(null, environment(nil)), checks: test.checks}
			if got := d.judge(); (got == nil) != (test.want == nil) || got != nil && got.Error() != test.want.Error() {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}
