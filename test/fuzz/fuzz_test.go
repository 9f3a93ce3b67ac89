// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

// Package fuzz passes generated input to the code that reads input of users and clusters: objects,
// annotations of pods and nodes, and clusters for the planner. `make fuzz` searches for failures.
// `go test` runs the corpus in testdata and the examples of artifacts.
package fuzz

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"

	"haulout.dev/haulout/pkg/apis/maintenance"
	"haulout.dev/haulout/pkg/apis/maintenance/install"
	"haulout.dev/haulout/pkg/apis/maintenance/protocol"
	"haulout.dev/haulout/pkg/apis/maintenance/v1alpha1"
	"haulout.dev/haulout/pkg/apis/maintenance/validation"
	"haulout.dev/haulout/pkg/drain/marks"
	"haulout.dev/haulout/pkg/drain/nodeselector"
	"haulout.dev/haulout/pkg/drain/plan"
	"haulout.dev/haulout/pkg/testing/must"
)

// FuzzObjects decodes, defaults, converts and validates an object in any encoding. The functions of
// the controllers must accept a valid object, and a round trip through etcd must not change it.
func FuzzObjects(f *testing.F) {
	examples, err := filepath.Glob("../../artifacts/examples/*.yaml")
	if err != nil || len(examples) == 0 {
		f.Fatalf("got %d examples, error %v", len(examples), err)
	}
	stored, err := filepath.Glob("../../pkg/apis/maintenance/v1alpha1/testdata/HEAD/*")
	if err != nil || len(stored) == 0 {
		f.Fatalf("got %d stored objects, error %v", len(stored), err)
	}
	for _, file := range append(examples, stored...) {
		content := must.Get(os.ReadFile(file))(f)
		f.Add(content)
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	decoder := serializer.NewCodecFactory(scheme).UniversalDecoder(maintenance.SchemeGroupVersion)
	storage := protobuf.NewSerializer(scheme, scheme)
	f.Fuzz(func(t *testing.T, data []byte) {
		obj, _, err := decoder.Decode(data, nil, nil)
		if err != nil {
			return
		}
		switch o := obj.(type) {
		case *maintenance.NodeMaintenance:
			// The status is read from the server's own etcd, but another version may have written
			// it.
			_ = validation.ValidateNodeMaintenanceStatusUpdate(o, o)
			if len(validation.ValidateNodeMaintenance(o)) > 0 {
				return
			}
			versioned := &v1alpha1.NodeMaintenance{}
			convert(t, scheme, o, versioned)
			useMaintenance(t, versioned)
			store(t, scheme, storage, o, versioned, &v1alpha1.NodeMaintenance{})
		case *maintenance.Evacuation:
			_ = validation.ValidateEvacuationStatusUpdate(o, o, validation.Turns{})
			if len(validation.ValidateEvacuation(o)) > 0 {
				return
			}
			versioned := &v1alpha1.Evacuation{}
			convert(t, scheme, o, versioned)
			useEvacuation(versioned)
			store(t, scheme, storage, o, versioned, &v1alpha1.Evacuation{})
		case *maintenance.NodeMaintenanceRollout:
			_ = validation.ValidateNodeMaintenanceRolloutStatusUpdate(o, o)
			if len(validation.ValidateNodeMaintenanceRollout(o)) > 0 {
				return
			}
			versioned := &v1alpha1.NodeMaintenanceRollout{}
			convert(t, scheme, o, versioned)
			store(t, scheme, storage, o, versioned, &v1alpha1.NodeMaintenanceRollout{})
		case *maintenance.NodeTask:
			_ = validation.ValidateNodeTaskReport(&o.Status, &o.Status)
			if len(validation.ValidateNodeTask(o)) > 0 {
				return
			}
			versioned := &v1alpha1.NodeTask{}
			convert(t, scheme, o, versioned)
			store(t, scheme, storage, o, versioned, &v1alpha1.NodeTask{})
		}
	})
}

func convert(t *testing.T, scheme *runtime.Scheme, from, to runtime.Object) {
	t.Helper()
	if err := scheme.Convert(from, to, nil); err != nil {
		t.Fatalf("convert a valid object: %v", err)
	}
}

// useMaintenance calls the functions that the controllers call first for a valid object.
func useMaintenance(t *testing.T, nm *v1alpha1.NodeMaintenance) {
	t.Helper()
	selector, err := nodeselector.New(nm.Spec.NodeSelector, nm.Status.NewestNodeTimestamp, nm.Spec.NewNodes)
	must.True(t, err == nil, "a valid node selector cannot be used: %v", err)
	selector.Decide(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node", Labels: map[string]string{"pool": "blue"}}})
	targets, err := plan.CompileTargets(nm.Spec.DrainPlan)
	must.True(t, err == nil, "a valid drain plan cannot be used: %v", err)
	pod := plan.Pod{Type: v1alpha1.PodTypeDefault, Labels: map[string]string{"app": "web"}}
	targets.Cover(pod)
	rules, err := plan.RulesOf(nm.Spec.DrainPlan, time.Time{})
	must.True(t, err == nil, "valid behaviors cannot be used: %v", err)
	rules.Of(pod, time.Time{})
	for _, is := range []func(*v1alpha1.NodeMaintenance) bool{
		v1alpha1.IsHolding, v1alpha1.IsDraining, v1alpha1.IsEnding, v1alpha1.IsDone, v1alpha1.UncordonsOnly,
	} {
		is(nm)
	}
	protocol.Mention(nm)
}

func useEvacuation(e *v1alpha1.Evacuation) {
	protocol.TurnOf(&e.Status)
	protocol.KeptByBudgetAt(e, time.Minute)
	protocol.IsWithdrawn(e)
	protocol.Next(e.Spec.Evacuators, e.Status.ActiveEvacuatorClass)
}

// store encodes an object for etcd and decodes the result.
func store(
	t *testing.T, scheme *runtime.Scheme, storage *protobuf.Serializer, internal, versioned, into runtime.Object,
) {
	t.Helper()
	versioned.GetObjectKind().SetGroupVersionKind(
		v1alpha1.SchemeGroupVersion.WithKind(reflect.TypeOf(versioned).Elem().Name()),
	)
	data, err := runtime.Encode(storage, versioned)
	must.True(t, err == nil, "a valid object cannot be stored: %v", err)
	read, _, err := storage.Decode(data, nil, into)
	must.True(t, err == nil, "a stored object cannot be read: %v", err)
	again := reflect.New(reflect.TypeOf(internal).Elem()).Interface().(runtime.Object)
	convert(t, scheme, read, again)
	must.True(t, equality.Semantic.DeepEqual(internal, again), "stored\n%+v\nand read\n%+v", internal, again)
}

// FuzzPodAnnotations parses the annotation of a pod that names an evacuator.
func FuzzPodAnnotations(f *testing.F) {
	f.Add(v1alpha1.AnnotationEvacuatorPrefix+"movers.example.com", "5000/controller")
	f.Add(v1alpha1.AnnotationEvacuatorPrefix+"movers.example.com", "500")
	f.Add("other.example.com/x", "-1/")
	f.Fuzz(func(t *testing.T, key, value string) {
		class, priority, role, err := protocol.ParseAnnotation(key, value)
		if err == nil && (class == "" || protocol.CheckRole(priority, role) != "") {
			t.Fatalf("%q=%q is accepted as class %q, priority %d, role %q", key, value, class, priority, role)
		}
		everything := func(string) bool { return true }
		list, ignored := protocol.OfPod(map[string]string{key: value}, v1alpha1.EvacuatorClassDeployment, everything)
		if err != nil && protocol.IsAnnotation(key) && len(ignored) == 0 {
			t.Fatalf("%q=%q is neither accepted nor reported: %v", key, value, list)
		}
	})
}

// FuzzNodeAnnotations parses the annotation of a node, which every user with write access to nodes
// can set.
func FuzzNodeAnnotations(f *testing.F) {
	f.Add(`{"storage":"s","maintenances":{"m":"1"},"taints":["maintenance.haulout.dev/held"]}`)
	f.Add(`{"maintenances":null}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, value string) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{}}}
		for _, key := range marks.Annotations {
			node.Annotations[key] = value
		}
		if marks.Names(node).Has("") || marks.UIDs(node).Has("") {
			t.Fatalf("%q names a maintenance without a name or UID", value)
		}
		must.True(t, marks.Same(node, node), "a node differs from itself")
	})
}

// FuzzPlan plans drains of a generated cluster, with contradicting drain plans and all priorities.
func FuzzPlan(f *testing.F) {
	for seed := range 8 {
		content := make([]byte, 256)
		for i := range content {
			content[i] = byte(i * (2*seed + 1))
		}
		f.Add(content)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		world := (&reader{data}).world()
		result, err := plan.Plan(world)
		if err != nil {
			return // validation refuses this plan
		}
		again, err := plan.Plan(world)
		if err != nil || !reflect.DeepEqual(again.Messages, result.Messages) || !reflect.DeepEqual(again.Finished, result.Finished) {
			t.Fatalf("two plans for the same cluster, error %v:\n%+v\n%+v", err, result, again)
		}
		for _, m := range world.Maintenances {
			for _, node := range m.Nodes {
				if _, planned := result.Targets[node]; !planned {
					t.Fatalf("node %s of %s has no targets", node, m.Name)
				}
				if message := result.Messages[m.Name][node]; len(message) > plan.MaxMessageBytes {
					t.Fatalf("a message has %d bytes: %q", len(message), message)
				}
			}
		}
	})
}

// reader derives values from bytes. After the last byte, all values are zero.
type reader struct{ left []byte }

func (r *reader) below(n int) int {
	if len(r.left) == 0 {
		return 0
	}
	value := int(r.left[0]) % n
	r.left = r.left[1:]
	return value
}

func (r *reader) priority() int32 {
	if r.below(2) == 0 || len(r.left) < 4 {
		return int32(r.below(4)) * 1000
	}
	value := int32(binary.LittleEndian.Uint32(r.left))
	r.left = r.left[4:]
	return value
}

func (r *reader) podType() v1alpha1.PodType {
	return []v1alpha1.PodType{v1alpha1.PodTypeDefault, v1alpha1.PodTypeDaemonSet, v1alpha1.PodTypeStatic}[r.below(3)]
}

func (r *reader) app() string { return fmt.Sprintf("app-%d", r.below(3)) }

func (r *reader) entries() []v1alpha1.DrainPlanEntry {
	var entries []v1alpha1.DrainPlanEntry
	for range r.below(5) {
		entry := v1alpha1.DrainPlanEntry{PodType: r.podType(), PodPriority: r.priority()}
		if r.below(3) == 0 {
			entry.PodSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": r.app()}}
		}
		entries = append(entries, entry)
	}
	return entries
}

func (r *reader) world() plan.World {
	var world plan.World
	var names []string
	for n := range 1 + r.below(4) {
		node := &plan.Node{Name: fmt.Sprintf("node-%d", n), UID: "1"}
		for range r.below(6) {
			node.Pods = append(node.Pods, plan.Pod{
				Type: r.podType(), Priority: r.priority(), Labels: map[string]string{"app": r.app()},
			})
		}
		world.Nodes = append(world.Nodes, node)
		names = append(names, node.Name)
	}
	for m := range 1 + r.below(4) {
		one := plan.Maintenance{
			Name: fmt.Sprintf("m-%d", m), Created: time.Unix(int64(r.below(3)), 0), Plan: r.entries(),
			Before: map[string][]v1alpha1.DrainPlanEntry{},
		}
		for _, name := range names {
			if r.below(3) == 0 {
				if r.below(2) == 0 {
					one.Excluded = append(one.Excluded, name)
				}
				continue
			}
			one.Nodes = append(one.Nodes, name)
			if r.below(5) == 0 {
				one.Uncordoned = append(one.Uncordoned, name)
			}
			if r.below(4) == 0 {
				one.Before[name] = slices.Clone(r.entries())
			}
		}
		world.Maintenances = append(world.Maintenances, one)
	}
	return world
}
