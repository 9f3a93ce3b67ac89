// SPDX-FileCopyrightText: The Haulout Authors
// SPDX-License-Identifier: Apache-2.0

package podcache

import (
	"errors"
	"fmt"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	kubefake "k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"haulout.dev/haulout/pkg/testing/build"
	"haulout.dev/haulout/pkg/testing/is"
	"haulout.dev/haulout/pkg/testing/must"
)

// podOf returns a pod as the API returns it. The pod shares nothing with other pods.
func podOf(controller types.UID, i int) *corev1.Pod {
	priority, grace := int32(1000), int64(30)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprintf("web-%d", i), UID: types.UID(fmt.Sprintf("uid-%d", i)),
			GenerateName: "web-", Labels: map[string]string{"app": "web"},
			Annotations: map[string]string{corev1.PodDeletionCost: "1", "other": "x"}, Finalizers: []string{"f"},
			OwnerReferences: build.Owner("apps/v1", "ReplicaSet", "web", controller),
		},
		Spec: corev1.PodSpec{
			NodeName: "n", Priority: &priority, TerminationGracePeriodSeconds: &grace,
			Volumes:     []corev1.Volume{claimed("data")},
			Tolerations: []corev1.Toleration{{Key: "k", Operator: corev1.TolerationOpExists}},
			Containers:  []corev1.Container{{Name: "c"}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
			{Type: corev1.ContainersReady, Status: corev1.ConditionTrue},
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Unix(int64(i), 0)},
		}},
	}
}

func TestSiblingsShareWhatIsEqual(t *testing.T) {
	transform := NewTransform()
	stripped := func(pod *corev1.Pod) *corev1.Pod {
		t.Helper()
		out := must.Get(transform(pod))(t)
		return unpackPod(out)
	}
	a, b, stranger := stripped(podOf("rs", 1)), stripped(podOf("rs", 2)), stripped(podOf("other", 3))
	relabelled := podOf("rs", 4)
	relabelled.Labels["app"] = "canary"
	canary := stripped(relabelled)
	for name, shared := range map[string]func(x, y *corev1.Pod) bool{
		"labels": func(x, y *corev1.Pod) bool {
			return reflect.ValueOf(x.Labels).Pointer() == reflect.ValueOf(y.Labels).Pointer()
		},
		"annotations": func(x, y *corev1.Pod) bool {
			return reflect.ValueOf(x.Annotations).Pointer() == reflect.ValueOf(y.Annotations).Pointer()
		},
		"owners":      func(x, y *corev1.Pod) bool { return &x.OwnerReferences[0] == &y.OwnerReferences[0] },
		"tolerations": func(x, y *corev1.Pod) bool { return &x.Spec.Tolerations[0] == &y.Spec.Tolerations[0] },
		"volumes":     func(x, y *corev1.Pod) bool { return &x.Spec.Volumes[0] == &y.Spec.Volumes[0] },
		"finalizers":  func(x, y *corev1.Pod) bool { return &x.Finalizers[0] == &y.Finalizers[0] },
		"priority":    func(x, y *corev1.Pod) bool { return x.Spec.Priority == y.Spec.Priority },
		"grace": func(x, y *corev1.Pod) bool {
			return x.Spec.TerminationGracePeriodSeconds == y.Spec.TerminationGracePeriodSeconds
		},
	} {
		is.True(t, shared(a, b), "siblings do not share their %s", name)
		is.True(t, !shared(a, stranger), "pods of different controllers share their %s", name)
	}
	if canary.Labels["app"] != "canary" || a.Labels["app"] != "web" {
		t.Errorf("labels are mixed up: %v, %v", canary.Labels, a.Labels)
	}
}

// TestSiblingsOfSeveralZonesShareLabels adds pods with the labels of the zones of their nodes, each
// in another zone than the last one.
func TestSiblingsOfSeveralZonesShareLabels(t *testing.T) {
	const zones = 3
	transform := NewTransform()
	maps := map[uintptr]bool{}
	for i := range 10 * zones {
		pod := podOf("rs", i)
		pod.Labels[corev1.LabelTopologyZone] = fmt.Sprint("zone-", i%zones)
		shared := unpackPod(must.Get(transform(pod))(t)).Labels
		is.Equal(t, shared[corev1.LabelTopologyZone], fmt.Sprint("zone-", i%zones), "the zone")
		maps[reflect.ValueOf(shared).Pointer()] = true
	}
	is.Equal(t, len(maps), zones, "sets of labels in memory")
}

// TestTransformKeepsWhatStripKeeps checks that sharing and packing do not change a pod.
func TestTransformKeepsWhatStripKeeps(t *testing.T) {
	transform := NewTransform()
	for i := range 20 {
		pod := podOf(types.UID(fmt.Sprint(i%3)), i)
		if i%5 == 0 {
			pod.Spec.Volumes, pod.Labels, pod.OwnerReferences = nil, map[string]string{}, nil
		}
		switch i % 4 {
		case 1:
			pod.Status.Conditions[2].Reason = "ReadinessGatesNotReady"
		case 2:
			pod.Status.Conditions[2].Status = corev1.ConditionFalse
		case 3:
			pod.Status.Conditions[0] = corev1.PodCondition{
				Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Message: "0/3 nodes are available",
			}
			pod.Status.Phase, pod.Spec.NodeName, pod.Status.NominatedNodeName = corev1.PodPending, "", "other"
		}
		switch i % 3 {
		case 1:
			pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "h"}
		case 2:
			pod.Spec.EvictionResponders = []corev1.EvictionResponder{{Name: "example.com/r"}}
		}
		want := must.Get(Strip(pod.DeepCopy()))(t)
		packed, err := transform(pod)
		if got := unpackPod(packed); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
}

func TestVisitOn(t *testing.T) {
	factory := informers.NewSharedInformerFactory(kubefake.NewClientset(), 0)
	pods := must.Get(NewPods(factory.Core().V1().Pods().Informer()))(t)
	transform := NewTransform()
	for i := range 3 {
		pod := podOf("rs", i)
		if i == 0 {
			pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "h"}
		}
		must.Do(t, pods.Store().Add(must.Get(transform(pod))(t)))
	}
	elsewhere := podOf("rs", 3)
	elsewhere.Spec.NodeName = "other"
	must.Do(t, pods.Store().Add(must.Get(transform(elsewhere))(t)))
	visited := map[string]*corev1.Pod{}
	pods.VisitOn("n", func(pod *corev1.Pod) { visited[pod.Name] = pod.DeepCopy() })
	must.True(t, len(visited) == 3, "visited %d pods, want 3", len(visited))
	for _, want := range pods.OnNode("n") {
		is.True(t, reflect.DeepEqual(visited[want.Name], want), "got %+v, want %+v", visited[want.Name], want)
	}
}

// TestPackedPodsAreIndexedAsPods compares the keys of packed pods with those of the same pods when
// they are unpacked. The index functions, which each change of a pod calls twice, allocate only the
// keys.
func TestPackedPodsAreIndexedAsPods(t *testing.T) {
	transform := NewTransform()
	for name, tc := range map[string]struct {
		change            func(*corev1.Pod)
		node, controllers string
	}{
		"a bound pod": {func(*corev1.Pod) {}, "[n]", "[ns/rs]"},
		"a nominated pod": {func(p *corev1.Pod) {
			p.Spec.NodeName, p.Status.Phase, p.Status.NominatedNodeName = "", corev1.PodPending, "m"
		}, "[m]", "[ns/rs]"},
		"a nominated pod with a scheduling gate": {func(p *corev1.Pod) {
			p.Spec.NodeName, p.Status.Phase, p.Status.NominatedNodeName = "", corev1.PodPending, "m"
			p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}}
		}, "[]", "[ns/rs]"},
		"a failed pod that was nominated": {func(p *corev1.Pod) {
			p.Spec.NodeName, p.Status.Phase, p.Status.NominatedNodeName = "", corev1.PodFailed, "m"
		}, "[]", "[ns/rs]"},
		"a pod without a controller": {func(p *corev1.Pod) { p.OwnerReferences = nil }, "[n]", "[]"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := podOf("rs", 1)
			tc.change(pod)
			packed := must.Get(transform(pod))(t)
			for index, want := range map[string]string{podsByNode: tc.node, podsByController: tc.controllers} {
				function := map[string]cache.IndexFunc{podsByNode: indexPodByNode, podsByController: indexPodByController}[index]
				for _, object := range []any{packed, unpackPod(packed)} {
					is.Equal(t, fmt.Sprint(must.Get(function(object))(t)), want, fmt.Sprintf("%s of %T", index, object))
				}
				allocations := testing.AllocsPerRun(10, func() { _, _ = function(packed) })
				is.True(t, allocations <= 2, "%s: %v allocations", index, allocations)
			}
		})
	}
}

func TestListerOfPackedPods(t *testing.T) {
	indexer := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{
		cache.NamespaceIndex: cache.MetaNamespaceIndexFunc,
	})
	transform := NewTransform()
	for i := range 3 {
		pod := podOf("rs", i)
		if i == 0 {
			pod.Labels["app"] = "canary"
		}
		packed := must.Get(transform(pod))(t)
		must.Do(t, indexer.Add(packed))
	}
	lister := PodLister(indexer)
	if pod, err := lister.Pods("ns").Get("web-1"); err != nil || pod.UID != "uid-1" || pod.Spec.NodeName != "n" {
		t.Errorf("got %+v, %v", pod, err)
	}
	if _, err := lister.Pods("other").Get("web-1"); !apierrors.IsNotFound(err) {
		t.Errorf("got error %v, want one that says not found", err)
	}
	web := labels.SelectorFromSet(labels.Set{"app": "web"})
	all, err := lister.List(web)
	inNamespace, err2 := lister.Pods("ns").List(web)
	elsewhere, err3 := lister.Pods("other").List(web)
	if err := errors.Join(err, err2, err3); err != nil || len(all) != 2 || len(inNamespace) != 2 ||
		len(elsewhere) != 0 {
		t.Errorf("got %d, %d and %d pods, %v, want 2, 2 and none", len(all), len(inNamespace), len(elsewhere), err)
	}
}
