// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1_test

import (
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/install"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// web returns a selector for a plan.
func web() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
}

// twelve has the entries of every plan. They are literals, so that the test notices a change of the
// constants.
var twelve = []string{
	"Default 1000000000", "Default 2000000000", "Default 2000001000", "Default 2147483647",
	"DaemonSet 1000000000", "DaemonSet 2000000000", "DaemonSet 2000001000", "DaemonSet 2147483647",
	"Static 1000000000", "Static 2000000000", "Static 2000001000", "Static 2147483647",
}

func TestDefaultDrainPlan(t *testing.T) {
	for name, test := range map[string]struct {
		plan []v1alpha1.DrainPlanEntry
		want []string
	}{
		"no plan": {nil, twelve},
		"an own entry precedes entries of higher priority, and its type is Default if it is unset": {
			plan: []v1alpha1.DrainPlanEntry{{PodPriority: 1000}}, want: slices.Concat([]string{"Default 1000"}, twelve),
		},
		"own entries between the frozen ones": {
			plan: []v1alpha1.DrainPlanEntry{
				{PodPriority: 1500000000}, {PodPriority: 5, PodType: v1alpha1.PodTypeDaemonSet},
				{PodPriority: 2100000000, PodType: v1alpha1.PodTypeStatic},
			},
			want: slices.Concat(twelve[:1], []string{"Default 1500000000"}, twelve[1:4], []string{"DaemonSet 5"},
				twelve[4:11], []string{"Static 2100000000"}, twelve[11:]),
		},
		"a frozen entry with a selector precedes the added entry without a selector": {
			plan: []v1alpha1.DrainPlanEntry{{PodPriority: 1000000000, PodSelector: web()}},
			want: slices.Concat([]string{"Default 1000000000 app=web"}, twelve),
		},
		"an existing frozen entry is not added, even if it has an empty selector": {
			plan: []v1alpha1.DrainPlanEntry{
				{PodPriority: 1000000000, PodSelector: &metav1.LabelSelector{}},
				{PodPriority: 2147483647, PodType: v1alpha1.PodTypeStatic},
			},
			want: slices.Concat([]string{"Default 1000000000 <none>"}, twelve[1:]),
		},
		"a negative priority": {
			plan: []v1alpha1.DrainPlanEntry{{PodPriority: -2147483648}},
			want: slices.Concat([]string{"Default -2147483648"}, twelve),
		},
		"a plan out of order is unchanged, except for the type": {
			plan: []v1alpha1.DrainPlanEntry{{PodPriority: 20}, {PodPriority: 10}},
			want: []string{"Default 20", "Default 10"},
		},
		"a plan with a duplicate is unchanged": {
			plan: []v1alpha1.DrainPlanEntry{{PodPriority: 10}, {PodPriority: 10}},
			want: []string{"Default 10", "Default 10"},
		},
		"a plan with an unknown type is unchanged": {
			plan: []v1alpha1.DrainPlanEntry{{PodPriority: 10, PodType: "Bare"}}, want: []string{"Bare 10"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			nm := &v1alpha1.NodeMaintenance{Spec: v1alpha1.NodeMaintenanceSpec{DrainPlan: test.plan}}
			v1alpha1.SetObjectDefaults_NodeMaintenance(nm)
			if got := describe(nm.Spec.DrainPlan); !slices.Equal(got, test.want) {
				t.Errorf("plan is\n%s, want\n%s", strings.Join(got, "\n"), strings.Join(test.want, "\n"))
			}
			is.Equal(t, nm.Spec.Stage, "Idle", "stage")
			is.Equal(t, nm.Spec.NewNodes, "Ignore", "newNodes")
			v1alpha1.SetObjectDefaults_NodeMaintenance(nm)
			if got := describe(nm.Spec.DrainPlan); !slices.Equal(got, test.want) {
				t.Errorf("defaulting twice gives\n%s", strings.Join(got, "\n"))
			}
		})
	}
	t.Run("drain targets of the status", func(t *testing.T) {
		nm := &v1alpha1.NodeMaintenance{Status: v1alpha1.NodeMaintenanceStatus{
			NodeStatuses: []v1alpha1.NodeMaintenanceNodeStatus{
				{DrainTargets: []v1alpha1.DrainPlanEntry{{PodPriority: 1}}},
			},
		}}
		v1alpha1.SetObjectDefaults_NodeMaintenance(nm)
		if got := describe(nm.Status.NodeStatuses[0].DrainTargets); !slices.Equal(got, []string{"Default 1"}) {
			t.Errorf("targets are %q: nothing may be added to them", got)
		}
	})
}

func describe(plan []v1alpha1.DrainPlanEntry) []string {
	texts := make([]string, len(plan))
	for i, e := range plan {
		texts[i] = fmt.Sprintf("%s %d", e.PodType, e.PodPriority)
		if e.PodSelector != nil {
			texts[i] += " " + metav1.FormatLabelSelector(e.PodSelector)
		}
	}
	return texts
}

// stored is the value in etcd of a maintenance named "a" in stage Drain with the additional entry
// Default 5, as v1alpha1 stored it before spec.newNodes. Do not regenerate the value: such objects
// exist in clusters.
const stored = "" +
	"6b3873000a330a206d61696e74656e616e63652e6861756c6f75742e6465762f7631616c70686131120f4e6f64654d61696e74656e616e63" +
	"651280020a110a016112001a0022002a0032003800420012e6011205447261696e1a0b10051a0744656661756c741a0f108094ebdc031a07" +
	"44656661756c741a0f1080a8d6b9071a0744656661756c741a0f10e8afd6b9071a0744656661756c741a0f10ffffffff071a074465666175" +
	"6c741a11108094ebdc031a094461656d6f6e5365741a111080a8d6b9071a094461656d6f6e5365741a1110e8afd6b9071a094461656d6f6e" +
	"5365741a1110ffffffff071a094461656d6f6e5365741a0e108094ebdc031a065374617469631a0e1080a8d6b9071a065374617469631a0e" +
	"10e8afd6b9071a065374617469631a0e10ffffffff071a0653746174696322001a0208001a002200"

// storedWithNewNodes is the same object as v1alpha1 stores it now, with newNodes: Ignore.
const storedWithNewNodes = "" +
	"6b3873000a330a206d61696e74656e616e63652e6861756c6f75742e6465762f7631616c70686131120f4e6f64654d61696e74656e616e63" +
	"651290020a110a016112001a0022002a0032003800420012f2011205447261696e1a0b10051a0744656661756c741a0f108094ebdc031a07" +
	"44656661756c741a0f1080a8d6b9071a0744656661756c741a0f10e8afd6b9071a0744656661756c741a0f10ffffffff071a074465666175" +
	"6c741a11108094ebdc031a094461656d6f6e5365741a111080a8d6b9071a094461656d6f6e5365741a1110e8afd6b9071a094461656d6f6e" +
	"5365741a1110ffffffff071a094461656d6f6e5365741a0e108094ebdc031a065374617469631a0e1080a8d6b9071a065374617469631a0e" +
	"10e8afd6b9071a065374617469631a0e10ffffffff071a065374617469632200320649676e6f7265380042001a060800400048001a002200"

func codec(t *testing.T) runtime.Codec {
	t.Helper()
	scheme := runtime.NewScheme()
	install.Install(scheme)
	codecs := serializer.NewCodecFactory(scheme)
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeProtobuf)
	must.True(t, ok, "no protobuf serializer")
	return codecs.CodecForVersions(info.Serializer, codecs.UniversalDeserializer(), v1alpha1.SchemeGroupVersion,
		maintenance.SchemeGroupVersion)
}

// TestStoredPlanReadsBackAsItWasWritten pins the twelve entries. Defaulting also runs on objects
// that are read from etcd, so a change would add other entries to immutable plans in the middle of
// their drains.
func TestStoredPlanReadsBackAsItWasWritten(t *testing.T) {
	for name, bytes := range map[string]string{"before newNodes": stored, "with newNodes": storedWithNewNodes} {
		t.Run(name, func(t *testing.T) { expectPlanAsStored(t, bytes) })
	}
}

func expectPlanAsStored(t *testing.T, bytes string) {
	t.Helper()
	data := must.Get(hex.DecodeString(bytes))(t)
	obj := must.Get(runtime.Decode(codec(t), data))(t)
	nm := obj.(*maintenance.NodeMaintenance)
	is.True(t, nm.Spec.NewNodes == maintenance.NewNodesPolicyIgnore, "newNodes is %q, want Ignore", nm.Spec.NewNodes)
	versioned := &v1alpha1.NodeMaintenance{}
	must.Do(t, v1alpha1.Convert_maintenance_NodeMaintenance_To_v1alpha1_NodeMaintenance(nm, versioned, nil))
	want := slices.Concat([]string{"Default 5"}, twelve)
	if got := describe(versioned.Spec.DrainPlan); !slices.Equal(got, want) {
		t.Errorf("plan is\n%s, want\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	again := must.Get(runtime.Encode(codec(t), nm))(t)
	if got := hex.EncodeToString(again); got != storedWithNewNodes {
		t.Errorf("it is stored as\n%s, want\n%s", got, storedWithNewNodes)
	}
}
