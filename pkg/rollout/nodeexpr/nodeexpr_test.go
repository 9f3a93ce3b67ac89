// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package nodeexpr

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

func gpuNode() *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "gpu-1", UID: "u-1", Labels: map[string]string{"pool": "blue"}},
		Spec:       corev1.NodeSpec{ProviderID: "cloud://1", Taints: []corev1.Taint{{Key: "gpu", Effect: corev1.TaintEffectNoSchedule}}},
		Status: corev1.NodeStatus{
			Conditions:  []corev1.NodeCondition{{Type: "RebootRequired", Status: corev1.ConditionTrue, LastTransitionTime: metav1.Unix(1000, 0)}},
			Allocatable: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")},
			NodeInfo:    corev1.NodeSystemInfo{BootID: "boot-2", KernelVersion: "6.12.4", KubeletVersion: "v1.37.2"},
		},
	}
}

func TestCheck(t *testing.T) {
	for expression, want := range map[string]string{
		"node.status.nodeInfo.kernelVersion.startsWith('6.12.')":                                           "",
		"node.status.nodeInfo.bootID != before.bootID && node.status.allocatable['nvidia.com/gpu'] == '8'": "",
		"node.status.conditions.exists(c, c.type == 'RebootRequired' && c.status == 'False')":              "",
		"semver(node.status.nodeInfo.kubeletVersion, true).compareTo(semver('1.37.2')) >= 0":               "",
		"quantity(node.status.allocatable['memory']).isGreaterThan(quantity('8Gi'))":                       "",
		"node.spec.unschedulable":  "",
		"nod.metadata.name == 'a'": "undeclared reference to 'nod'",
		"before":                   "must be of type bool, not map(string, string)",
		"'yes'":                    "must be of type bool, not string",
		"before.bootID > 5":        "found no matching overload for '_>_' applied to '(string, int)'",
		"node.metadata.name ==":    "Syntax error: ",
		"":                         "Syntax error: ",
		"authorizer.path('/').check('get').allowed()": "undeclared reference to 'authorizer'",
	} {
		err := Check(expression)
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)):
			t.Errorf("%s: got %v, want %q", expression, err, want)
		case err != nil && strings.Contains(err.Error(), "\n"):
			t.Errorf("%s: an error of several lines: %q", expression, err)
		}
	}
}

// TestCompileOnce checks that the nodes of a task do not each compile its expression.
func TestCompileOnce(t *testing.T) {
	one, two := must.Get(Compile("node.spec.unschedulable"))(t), must.Get(Compile("node.spec.unschedulable"))(t)
	is.True(t, one == two, "an expression was compiled twice")
	for i := range 200 {
		must.Get(Compile(fmt.Sprintf("%d == 1", i)))(t)
	}
	is.True(t, must.Get(Compile("node.spec.unschedulable"))(t) != one, "all expressions are kept")
}

func TestEval(t *testing.T) {
	before := v1alpha1.NodeVersions{BootID: "boot-1", KernelVersion: "6.11.0"}
	for expression, want := range map[string]any{
		"node.status.nodeInfo.kernelVersion.startsWith('6.12.')":                                             true,
		"node.status.nodeInfo.bootID != before.bootID && node.status.allocatable['nvidia.com/gpu'] == '8'":   true,
		"before.kernelVersion == '6.12.4'":                                                                   false,
		"node.metadata.name == 'gpu-1' && node.metadata.uid == 'u-1' && node.metadata.labels.pool == 'blue'": true,
		"node.status.conditions.exists(c, c.type == 'RebootRequired' && c.status == 'True')":                 true,
		"timestamp(node.status.conditions[0].lastTransitionTime).getFullYear() == 1970":                      true,
		"node.spec.unschedulable": false,
		"node.spec.taints[0].key == 'gpu' && node.spec.taints.size() == 1":                   true,
		"node.spec.providerID == 'cloud://1'":                                                true,
		"semver(node.status.nodeInfo.kubeletVersion, true).compareTo(semver('1.37.3')) >= 0": false,
		"node.status.nodeInfo.kernalVersion == '6.12.4'":                                     "no such key: kernalVersion",
		"node.status.images.size() > 0":                                                      "no such key: images",
		"node.metadata.annotations.size() > 0":                                               "no such key: annotations",
		"node.metadata.labels['pool']":                                                       "must be of type bool, not string",
	} {
		got, err := must.Get(Compile(expression))(t).Eval(Of(gpuNode()), before)
		if text, fails := want.(string); fails {
			is.True(t, err != nil && err.Error() == text && !got, "%s: got %v and %v, want false and %s", expression, got, err, text)
			continue
		}
		is.True(t, err == nil && got == want, "%s: got %v and %v, want %v", expression, got, err, want)
	}
}

// TestEmptyNode has expressions that must not fail because a node lacks something.
func TestEmptyNode(t *testing.T) {
	node := &corev1.Node{}
	for _, expression := range []string{
		"!('pool' in node.metadata.labels)", "!node.spec.unschedulable", "node.spec.taints.size() == 0", "node.status.conditions.size() == 0",
		"!('nvidia.com/gpu' in node.status.allocatable)", "node.status.nodeInfo.bootID == before.bootID", "!has(node.spec.podCIDR)",
	} {
		got, err := must.Get(Compile(expression))(t).Eval(Of(node), protocol.VersionsOf(node))
		is.True(t, err == nil && got, "%s: got %v and %v", expression, got, err)
	}
}

// TestCost has expressions that would take very long. Each must end at the limit, within 10 ms on
// an idle machine; the test allows ten times that.
func TestCost(t *testing.T) {
	node := gpuNode()
	for i := range 200 {
		node.Labels[fmt.Sprintf("label-%d", i)] = strings.Repeat("x", 60)
	}
	prepared := Of(node)
	for _, expression := range []string{
		"node.metadata.labels.all(a, node.metadata.labels.all(b, node.metadata.labels.all(c, a != '' || b != c)))",
		"node.metadata.labels.exists(a, node.metadata.labels.exists(b, (a + b + a + b).matches('(x+x+)+y')))",
		"[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, [1,2,3,4,5,6,7,8,9].all(d, [1,2,3,4,5,6,7,8,9].all(e, true)))))",
	} {
		program := must.Get(Compile(expression))(t)
		began := time.Now()
		got, err := program.Eval(prepared, v1alpha1.NodeVersions{})
		is.True(t, time.Since(began) < 100*time.Millisecond, "%s took %v", expression, time.Since(began))
		is.True(t, !got && err != nil && err.Error() == "costs more than 20000", "%s: got %v and %v", expression, got, err)
	}
}

// TestExamplesCostLittle evaluates the expressions of the examples and of the pages for users on a
// node with many conditions and labels. Each must cost a twentieth of the limit at most.
func TestExamplesCostLittle(t *testing.T) {
	node := gpuNode()
	for i := range 30 {
		node.Labels[fmt.Sprintf("label-%d", i)] = strings.Repeat("x", 60)
		node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
			Type: corev1.NodeConditionType(fmt.Sprintf("RebootRequired%d", i)), Status: corev1.ConditionFalse,
		})
	}
	prepared := Of(node)
	files := append(must.Get(filepath.Glob("../../../docs/*.md"))(t), must.Get(filepath.Glob("../../../artifacts/examples/*.yaml"))(t)...)
	found := map[string]bool{}
	for _, file := range files {
		for _, line := range doneWhen.FindAllString(string(must.Get(os.ReadFile(file))(t)), -1) {
			var task struct{ DoneWhen string }
			must.Do(t, yaml.Unmarshal([]byte(line), &task))
			found[task.DoneWhen] = true
		}
	}
	is.True(t, len(found) >= 4, "got the expressions %v", found)
	for expression := range found {
		_, details, err := must.Get(Compile(expression))(t).program.Eval(map[string]any{"node": prepared.values, "before": versions(protocol.VersionsOf(node))})
		is.True(t, err == nil && *details.ActualCost() <= CostLimit/20, "%s: got the error %v and the details %v", expression, err, details)
	}
}

// doneWhen matches an expression in a manifest, or in one on a page.
var doneWhen = regexp.MustCompile(`\bdoneWhen: \S.*`)

func BenchmarkAtTheCostLimit(b *testing.B) {
	node := gpuNode()
	for i := range 200 {
		node.Labels[fmt.Sprintf("label-%d", i)] = strings.Repeat("x", 60)
	}
	program := must.Get(Compile("node.metadata.labels.all(a, node.metadata.labels.all(b, node.metadata.labels.all(c, a != '' || b != c)))"))(b)
	for b.Loop() {
		if _, err := program.Eval(Of(node), v1alpha1.NodeVersions{}); err == nil {
			b.Fatal("no error")
		}
	}
}

// FuzzEval evaluates whatever compiles. Nothing may panic or take long.
func FuzzEval(f *testing.F) {
	f.Add("node.status.nodeInfo.bootID != before.bootID")
	f.Add("node.metadata.labels.all(a, a.matches('(x+x+)+y'))")
	f.Add("[[1]].map(x, x + x).size() > 0 || true")
	prepared := Of(gpuNode())
	f.Fuzz(func(t *testing.T, expression string) {
		if len(expression) > 1024 || Check(expression) != nil {
			return
		}
		program, err := Compile(expression)
		if err != nil {
			t.Fatalf("it is valid as a new expression, but not as a stored one: %v", err)
		}
		if _, err := program.Eval(prepared, v1alpha1.NodeVersions{}); err != nil && strings.Contains(err.Error(), "\n") {
			t.Errorf("an error of several lines: %q", err)
		}
	})
}
