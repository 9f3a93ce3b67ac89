// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package marks

import (
	"fmt"
	"reflect"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
)

func TestReadMarkOfInvalidAnnotations(t *testing.T) {
	for name, test := range map[string]struct {
		value string
		want  Mark
	}{
		"an annotation that is not JSON":  {`who knows`, Mark{}},
		"an annotation in another format": {`{"a/b":"x"}`, Mark{}},
		"invalid names of maintenances": {
			`{"storage":"s","maintenances":{"a/b":"x","..":"y","":"z"}}`, Mark{Storage: "s"},
		},
		"a maintenance without a UID": {`{"storage":"s","maintenances":{"m":""}}`, Mark{Storage: "s"}},
		"a valid name beside an invalid one": {
			`{"storage":"s","maintenances":{"m":"1","a/b":"x"}}`, Mark{Storage: "s", Maintenances: Owners{"m": "1"}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
				Annotations: map[string]string{v1alpha1.AnnotationCordonedBy: test.value},
			}}
			if got := Read(node, v1alpha1.AnnotationCordonedBy); !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
}

// annotated returns a node that is cordoned or not and has an annotation; "" for none.
func annotated(cordoned bool, annotation, value string) *corev1.Node {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: "uid-one"}, Spec: corev1.NodeSpec{Unschedulable: cordoned}}
	if annotation != "" {
		node.Annotations = map[string]string{annotation: value}
	}
	return node
}

const ofM = `{"storage":"s","maintenances":{"m":"uid-m"}}`

func TestIsCordonedByOthers(t *testing.T) {
	for name, test := range map[string]struct {
		node *corev1.Node
		want bool
	}{
		"a schedulable node":                          {annotated(false, "", ""), false},
		"a user has cordoned it":                      {annotated(true, "", ""), true},
		"the server has cordoned it":                  {annotated(true, v1alpha1.AnnotationCordonedBy, ofM), false},
		"the annotation is invalid":                   {annotated(true, v1alpha1.AnnotationCordonedBy, "?"), true},
		"the server has only tainted it":              {annotated(true, v1alpha1.AnnotationTaintedBy, ofM), true},
		"the agent of the node has cordoned it":       {annotated(true, v1alpha1.AnnotationCordonedByAgent, "boot"), false},
		"a user has uncordoned it since its shutdown": {annotated(false, v1alpha1.AnnotationCordonedByAgent, "boot"), false},
	} {
		t.Run(name, func(t *testing.T) { is.Equal(t, IsCordonedByOthers(test.node), test.want, "cordoned by others") })
	}
}

func TestIsUntaken(t *testing.T) {
	entry := func(reason v1alpha1.NodeStatusReason, modifiers ...func(*v1alpha1.NodeMaintenanceNodeStatus)) *v1alpha1.NodeMaintenanceNodeStatus {
		return build.With(&v1alpha1.NodeMaintenanceNodeStatus{NodeRef: v1alpha1.NodeReference{Name: "one", UID: "uid-one"}, Reason: reason}, modifiers...)
	}
	ofPool := func(e *v1alpha1.NodeMaintenanceNodeStatus) { e.PoolIndex = ptr.To[int32](0) }
	withTarget := func(e *v1alpha1.NodeMaintenanceNodeStatus) { e.DrainTargets = make([]v1alpha1.DrainPlanEntry, 1) }
	const refused, gone = v1alpha1.NodeStatusNotAuthorized, v1alpha1.NodeStatusGone
	bare := annotated(false, "", "")
	for name, test := range map[string]struct {
		node  *corev1.Node
		entry *v1alpha1.NodeMaintenanceNodeStatus
		want  bool
	}{
		"the requester may not maintain it":           {bare, entry(refused), true},
		"another client has cordoned it":              {annotated(true, "", ""), entry(refused), true},
		"another maintenance holds it":                {annotated(true, v1alpha1.AnnotationCordonedBy, `{"storage":"s","maintenances":{"m":"uid-earlier"}}`), entry(refused), true},
		"it was cordoned for the maintenance":         {annotated(true, v1alpha1.AnnotationCordonedBy, ofM), entry(refused), false},
		"it was tainted for the maintenance":          {annotated(false, v1alpha1.AnnotationTaintedBy, ofM), entry(refused), false},
		"it was taken through a pool":                 {bare, entry(refused, ofPool), false},
		"pods were asked to leave":                    {bare, entry(refused, withTarget), false},
		"it is held":                                  {bare, entry(""), false},
		"it waits for its cordon":                     {bare, entry(v1alpha1.NodeStatusNotCordoned), false},
		"it is being released":                        {bare, entry(v1alpha1.NodeStatusReleasing), false},
		"it does not exist":                           {nil, entry(gone), true},
		"it does not exist, but was taken":            {nil, entry(gone, withTarget), false},
		"another node has its name now":               {bare, entry(gone, func(e *v1alpha1.NodeMaintenanceNodeStatus) { e.NodeRef.UID = "earlier" }), false},
		"it does not exist any more, and was refused": {nil, entry(refused), true},
	} {
		t.Run(name, func(t *testing.T) {
			nm := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{Name: "m", UID: "uid-m"}}
			is.Equal(t, IsUntaken(test.node, nm, test.entry), test.want, "never taken")
		})
	}
}

func TestChoose(t *testing.T) {
	// others returns n maintenances, of which m-00 is the oldest.
	others := func(n int) []*v1alpha1.NodeMaintenance {
		var out []*v1alpha1.NodeMaintenance
		for i := range n {
			out = append(out, &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{
				Name: fmt.Sprintf("m-%02d", i), CreationTimestamp: metav1.Unix(int64(i/2), 0),
			}})
		}
		return out
	}
	shutdown := func(node, boot string, created int64) *v1alpha1.NodeMaintenance {
		nm := &v1alpha1.NodeMaintenance{ObjectMeta: metav1.ObjectMeta{
			Name: protocol.ShutdownName(node, boot), CreationTimestamp: metav1.Unix(created, 0),
			Annotations: map[string]string{v1alpha1.AnnotationBootID: boot},
		}}
		nm.Spec.NodeSelector = build.Named(node)
		return nm
	}
	namesOf := func(all []*v1alpha1.NodeMaintenance) []string {
		var names []string
		for _, nm := range all {
			names = append(names, nm.Name)
		}
		return slices.Sorted(slices.Values(names))
	}
	own, earlier, of2 := shutdown("one", "b", 900), shutdown("one", "a", 800), shutdown("two", "b", 900)
	for name, test := range map[string]struct {
		selecting []*v1alpha1.NodeMaintenance
		taken     int
		wants     func(*v1alpha1.NodeMaintenance) bool
		want      []*v1alpha1.NodeMaintenance
	}{
		"none":                                           {},
		"as many as there are places":                    {selecting: others(50), want: others(50)},
		"the oldest of more":                             {selecting: others(60), want: others(50)},
		"with places that others use":                    {selecting: others(60), taken: 45, want: others(5)},
		"with more taken than there are places":          {selecting: others(60), taken: 51},
		"a shutdown of the node in addition":             {selecting: append(others(60), own), want: append(others(50), own)},
		"a shutdown of the node without any place":       {selecting: append(others(60), own), taken: 51, want: []*v1alpha1.NodeMaintenance{own}},
		"only the latest shutdown of the node":           {selecting: append(others(60), own, earlier), want: append(others(50), own)},
		"a shutdown of another node needs a place":       {selecting: append(others(60), of2), want: others(50)},
		"a shutdown and room for all":                    {selecting: append(others(10), own), want: append(others(10), own)},
		"an order by age that differs from that by name": {selecting: reversed(others(60)), want: others(50)},
		"maintenances that do not want the node": {
			selecting: append(others(60), own), want: append(others(55)[5:], own),
			wants: func(nm *v1alpha1.NodeMaintenance) bool { return nm.Name >= "m-05" },
		},
		"a shutdown that does not want the node": {
			selecting: append(others(60), earlier, own), want: append(others(50), earlier),
			wants: func(nm *v1alpha1.NodeMaintenance) bool { return nm.Name != own.Name },
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got, want := namesOf(Choose("one", test.selecting, test.taken, test.wants)), namesOf(test.want); !slices.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
}

func reversed(all []*v1alpha1.NodeMaintenance) []*v1alpha1.NodeMaintenance {
	slices.Reverse(all)
	return all
}
